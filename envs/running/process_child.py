"""Program of a process that runs functions on plain data. It is started as a file, without importing palaestra first.

It reads JSON (the name of a function, and its data), imports the function's module, and answers in JSON. It ends with
its parent: when its socket is closed, or by a signal of the kernel while it computes.
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
    """Run one function and send its value. If the function cannot be loaded, send an error, which is not the agent's
    fault.

    The function of the request is a loader: from its data it makes the function to run, which gets its timeout in
    seconds.
    """
    try:
        module, _, name = request["function"].partition(":")
        begin = getattr(importlib.import_module(module), name)(request["data"])
    except BaseException as error:  # An author's module may even exit; without a message the parent would wait.
        connection.sendall(FAILED)
        write(connection, {"fault": f"{type(error).__name__}: {error}"})
        return
    connection.sendall(STARTED)
    write(connection, {"value": begin(request["seconds"])})


def main_file() -> str | None:
    """Return the file of the main program of this process, the parent, for the child; None if there is no file."""
    return getattr(sys.modules.get("__main__"), "__file__", None)


def module_of(name: str, main_file: str | None) -> Any:
    """Import a module by name. The main program of the parent is loaded from its file under a name other than
    "__main__", so that its main block is not run."""
    if name != "__main__":
        return importlib.import_module(name)
    name = "__palaestra_main__"
    if name not in sys.modules:
        module = type(sys)(name)
        sys.modules[name] = module
        module.__dict__.update(runpy.run_path(str(main_file), run_name=name))
    return sys.modules[name]


def read(connection: socket.socket) -> bytes | None:
    """Read a message; return None if the other side closed the socket."""
    head = exactly(connection, LENGTH.size)
    return None if head is None else exactly(connection, LENGTH.unpack(head)[0])


def exactly(connection: socket.socket, size: int, until: float | None = None) -> bytes | None:
    """Read `size` bytes, or raise TimeoutError at the time `until`; return None if the other side closed the socket."""
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
