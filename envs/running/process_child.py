"""Program of a process that runs functions of plain data. It is started as a file, before anything is imported.

It reads JSON (which function, with which data), imports the function by its module's name, and answers in JSON. It dies
with its parent: at the end of its socket, or by the kernel's signal while it computes.
"""

import ctypes
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import sys
import time
from typing import Any

LENGTH = struct.Struct("!I")
STARTED, FAILED = b"S", b"F"
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve calls until the parent closes the socket."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # The parent died before the line above.
        return
    connection = socket.socket(fileno=descriptor)
    hello = json.loads(read(connection) or b"null")
    sys.path[:] = hello["path"]
    while (request := read(connection)) is not None:
        serve(connection, json.loads(request))


def serve(connection: socket.socket, request: dict[str, Any]) -> None:
    """Run one function. An error before it begins is not the agent's fault.

    The function is a loader: from its data it makes the function to run, which gets its timeout in seconds.
    """
    try:
        module, _, name = request["function"].partition(":")
        begin = getattr(importlib.import_module(module), name)(request["data"])
    except BaseException as error:  # An author's module may even exit; the parent must be told, or it waits.
        connection.sendall(FAILED)
        write(connection, {"fault": f"{type(error).__name__}: {error}"})
        return
    connection.sendall(STARTED)
    write(connection, {"value": begin(request["seconds"])})


def main_file() -> str | None:
    """Return the file of the parent's own program, for the child."""
    return getattr(sys.modules.get("__main__"), "__file__", None)


def module_of(name: str, main_file: str | None) -> Any:
    """Import a module by name. The parent's own program is loaded from its file, under another name, and not run."""
    if name != "__main__":
        return importlib.import_module(name)
    name = "__palaestra_main__"
    if name not in sys.modules:
        module = type(sys)(name)
        sys.modules[name] = module
        module.__dict__.update(runpy.run_path(str(main_file), run_name=name))
    return sys.modules[name]


def read(connection: socket.socket) -> bytes | None:
    """Read a message; None at the end."""
    head = exactly(connection, LENGTH.size)
    return None if head is None else exactly(connection, LENGTH.unpack(head)[0])


def exactly(connection: socket.socket, size: int, until: float | None = None) -> bytes | None:
    """Read `size` bytes, or raise TimeoutError at the time `until`; None if the other side closed the socket."""
    data = bytearray()
    while len(data) < size:
        if until is not None:
            if (seconds := until - time.monotonic()) <= 0:
                raise TimeoutError
            connection.settimeout(seconds)
        part = connection.recv(min(size - len(data), 2**16))
        if not part:
            return None
        data += part
    return bytes(data)


def write(connection: socket.socket, message: Any) -> None:
    """Send a message as JSON."""
    data = json.dumps(message).encode()
    connection.sendall(LENGTH.pack(len(data)) + data)


if __name__ == "__main__":
    main()
