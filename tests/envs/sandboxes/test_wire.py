"""Frames survive any cutting, output stays within its cap, and a reply that is not right is Broken, never a Result."""

import os
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as some

from palaestra.envs.sandboxes import Result
from palaestra.envs.sandboxes.framed import checked, read_result
from palaestra.envs.sandboxes.result import Limited
from palaestra.envs.sandboxes.runner.output import Capture, Outputs
from palaestra.envs.sandboxes.runner.preload import choose
from palaestra.envs.sandboxes.runner.wire import HEAD_BYTES, LENGTHS, LIMITED, RESULT, FrameError, FrameReader, pack
from palaestra.errors import Broken

heads = some.dictionaries(some.text(), some.integers()) | some.binary().map(lambda rest: b"\0" + rest)


@given(some.lists(some.tuples(heads, some.binary())), some.integers(1, 9))
def test_frames_come_out_as_they_went_in_however_they_are_cut(frames: list[tuple[dict | bytes, bytes]], cut: int):
    stream = b"".join(pack(header, body) for header, body in frames)
    reader, found = FrameReader(2**20), []
    for at in range(0, len(stream), cut):
        reader.feed(stream[at : at + cut])
        while (frame := reader.take()) is not None:
            found.append(frame)
    assert found == frames and reader.empty


TOO_LONG = [LENGTHS.pack(HEAD_BYTES + 1, 0), LENGTHS.pack(2, 101)]
HEADS = [b"[]", b"", b"{x}", b"\xff\xff", b"[" * 100_000]


@pytest.mark.parametrize("data", [*TOO_LONG, *(LENGTHS.pack(len(head), 0) + head for head in HEADS)])
def test_what_is_no_frame_is_refused_before_it_is_kept(data: bytes) -> None:
    reader = FrameReader(100)
    reader.feed(data)
    with pytest.raises(FrameError):
        reader.take()


@given(some.lists(some.binary(max_size=300)), some.integers(1, 64))
def test_head_and_tail_are_kept_and_all_is_counted(parts: list[bytes], cap: int) -> None:
    kept, whole = Capture(cap), b"".join(parts)
    for part in parts:
        kept.feed(part)
    assert kept.size == len(whole) and kept.cut == (len(whole) > cap)
    if not kept.cut:
        assert kept.text() == whole
    else:
        head, tail = whole[: cap - cap // 2], whole[len(whole) - cap // 2 :]
        middle = f"\n[... {len(whole) - cap} of {len(whole)} bytes left out ...]\n".encode()
        assert kept.text() == head + middle + tail


def test_a_flood_costs_no_memory() -> None:
    kept = Capture(8192)
    for _ in range(2000):
        kept.feed(bytes(2**16))
    assert kept.size == 2000 * 2**16 and len(kept._head) + len(kept._tail) < 2**18


def test_what_a_program_left_is_read_from_both_outputs_and_who_holds_one_open_is_not_waited_for() -> None:
    outputs = Outputs(100, None)
    held = os.dup(outputs.err.writing)
    try:
        os.write(held, b"words")
        for pipe in outputs.both:
            pipe.close_writing_end()
            pipe.drain()
        assert (outputs.out.capture.text(), outputs.err.capture.text()) == (b"", b"words")
        outputs.begin()
        assert outputs.err.capture.size == 0
    finally:
        os.close(held)
        for pipe in outputs.both:
            pipe.close()


def result(limit: int = 0, sizes: tuple[int, int, int] = (2, 0, 1)) -> bytes:
    return RESULT.pack(0, -1, True, False, False, limit, 2, 0, 0.1, 0.2, 1, *sizes)


def test_a_result_is_read_and_what_is_wrong_is_broken() -> None:
    assert read_result(result(LIMITED.index("scratch")), b"ab6") == Result(
        stdout="ab", value="6", exit_code=0, signal=None, timed_out=True, limit_hit="scratch", stdout_bytes=2,
        duration_s=0.1, cpu_s=0.2, max_rss_bytes=1,
    )  # fmt: skip
    sizes = (9, 0, 1), (3, 0, 1), (2, 0, 2**31 - 1)
    for reply in (
        *(result(sizes=one) for one in sizes),
        result(len(LIMITED)),
        result()[:-1],
        b"\0",
        {"error": "x"},
        {},
    ):
        with pytest.raises(Broken):
            read_result(reply, b"ab6")
    assert get_args(Limited) == LIMITED
    with pytest.raises(Broken, match="nobody asked"):
        checked(result())


def test_the_zygote_is_chosen_by_what_a_program_names() -> None:
    assert choose(b"from sympy import *") == choose(b"import numpy, sympy") == "scientific"
    assert choose(b"import numpy as np") == choose(b"import pandas") == "numpy"
    assert choose(b"print('hello')") == choose(b"import json, numpyro_like") == "bare"
