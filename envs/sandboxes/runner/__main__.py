"""`python -I -S .../runner ROLE [SETTINGS]`: run the supervisor or a zygote, which the supervisor starts.

The folder of this file is imported as the package `runner`. The folder above it is on `sys.path` only for this import,
so that nothing else in it can be imported, above all not by the agent.
"""

import importlib
import os
import sys


def main() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    above, package = os.path.split(folder)
    path = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    sys.path[:] = [above]
    importlib.import_module(package)
    sys.path[:] = path
    role = sys.argv[1] if len(sys.argv) > 1 else ""
    if role not in ("supervisor", "zygote"):
        sys.exit(f"what to be is {role!r}; expected supervisor or zygote")
    importlib.import_module(f"{package}.{role}").main()


if __name__ == "__main__":
    main()
