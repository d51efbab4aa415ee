"""inspect-ai's local sandbox for `make bench-sandbox`: a process a call in a folder of its own, contains nothing."""

import asyncio
import threading

from inspect_ai.util._sandbox.local import LocalSandboxEnvironment
from programs import Run, serve_programs


def opened() -> Run:
    """`exec` of `python -c`, on a loop that lives as long as the side does."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    sandbox = LocalSandboxEnvironment()

    def run(source: str) -> str:
        asked = sandbox.exec(["python", "-c", source], timeout=60)
        return str(asyncio.run_coroutine_threadsafe(asked, loop).result(90).stdout)

    return run


serve_programs(("inspect-ai",), {"local": opened})
