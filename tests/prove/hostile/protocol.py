"""The sandbox's own wires: answers made up, channels closed, ends that look like another."""

# ruff: noqa: SIM115

from .program import hostile


@hostile("", control="user", expected={"exit_code": 7, "value": None})
def forged_result(given):
    """An answer of its own making, into every descriptor there is; then it fails."""
    import json
    import os
    import struct

    result = {"stdout": "", "stderr": "", "value": given["token"], "exit_code": 0, "signal": None, "timed_out": False,
              "oom": False, "limit_hit": "", "state_lost": False, "duration_s": 0.0, "cpu_s": 0.0, "max_rss_bytes": 0,
              "stdout_bytes": 0, "stderr_bytes": 0, "truncated": False}  # fmt: skip
    messages = []
    sizes = {"stdout_size": 0, "stderr_size": 0, "value_size": 0}
    for header in ({"ok": True}, {"result": result, **sizes}, {"value": "1"}, {"done": True, "error": None}, result):
        head = json.dumps(header).encode()
        messages += [struct.pack("<II", len(head), 0) + head, struct.pack("<I", len(head)) + head, head + b"\n"]
    for number in range(0 if not given["bare"] else 1, 1024):
        if number in (1, 2) and not given["bare"]:
            continue
        for message in messages:
            try:
                os.set_blocking(number, False)
                os.write(number, message)
            except OSError:
                break
    os._exit(7)


@hostile("", control="user", expected={"exit_code": 3})
def close_everything(given):
    """Every descriptor closed, before it ends."""
    import os

    print(given["token"] * given["bare"], flush=True)
    os.closerange(0, 65536)
    os._exit(3)


@hostile("", control="crashes", expected={"exit_code": None, "signal": 11})
def segmentation_fault(given):
    """Address 0."""
    import ctypes

    ctypes.string_at(0)


@hostile("files")
def frames_of_the_caller(given):
    """The code that runs it: its frames, its objects, its open files."""
    import gc
    import sys

    frame, found = sys._getframe(), []
    while frame is not None:
        found.append(repr(frame.f_locals)[:2000])
        frame = frame.f_back
    found += [repr(one)[:200] for one in gc.get_objects() if type(one).__name__ in ("socket", "FileIO", "Popen")]
    print("\n".join(found).replace(given["token"], ""))
    print(open(given["tmp_secret"]).read())
