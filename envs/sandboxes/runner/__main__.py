"""`python -I -S .../runner ROLE [SETTINGS]`: be the supervisor or, started by it, a zygote.

Its folder is imported as the package `runner`. The folder above it is on the path for that one import alone: nothing
else that lies there may be imported here, least of all by the agent.
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
