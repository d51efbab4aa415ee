"""`python -I -S .../runner ROLE [SETTINGS]`: be the supervisor or, started by it, a zygote.

The folder is made a package called `runner` without putting its parent on the path: what lies beside it is nobody's
business here, least of all the agent's.
"""

import importlib
import importlib.util
import os
import sys


def main() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != folder]
    spec = importlib.util.spec_from_file_location(
        "runner", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    sys.modules["runner"] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    role = sys.argv[1] if len(sys.argv) > 1 else ""
    if role not in ("supervisor", "zygote"):
        sys.exit(f"what to be is {role!r}; expected supervisor or zygote")
    importlib.import_module(f"runner.{role}").main()


if __name__ == "__main__":
    main()
