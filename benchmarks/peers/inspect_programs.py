"""inspect-ai's local sandbox for `make bench-sandbox`: a process per call in its own folder, without isolation."""

import asyncio
import threading

from inspect_ai.util._sandbox.local import LocalSandboxEnvironment
from programs import Run, serve_programs


def opened() -> Run:
    """Return a function that runs a program by `python -c`, on an event loop that runs until the side ends."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    sandbox = LocalSandboxEnvironment()

    def run(source: str) -> str:
        asked = sandbox.exec(["python", "-c", source], timeout=60)
        return str(asyncio.run_coroutine_threadsafe(asked, loop).result(90).stdout)

    return run


serve_programs(("inspect-ai",), {"local": opened})
