"""Frames survive any cutting, output stays within its cap, and a reply that is not right is Broken, never a Result."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as some

from palaestra.envs.sandboxes import Result
from palaestra.envs.sandboxes.framed import read_result
from palaestra.envs.sandboxes.runner.output import Kept, Pipe
from palaestra.envs.sandboxes.runner.preload import choose
from palaestra.envs.sandboxes.runner.wire import HEADER_BYTES, LENGTHS, FrameError, Reader, pack
from palaestra.errors import Broken

GOOD = {
    "exit_code": 0, "signal": None, "timed_out": False, "oom": False, "limit_hit": "", "stdout_bytes": 2,
    "stderr_bytes": 0, "state_lost": False, "duration_s": 0.1, "cpu_s": 0.1, "max_rss_bytes": 1,
}  # fmt: skip


@given(some.lists(some.tuples(some.dictionaries(some.text(), some.integers()), some.binary())), some.integers(1, 9))
def test_frames_come_out_as_they_went_in_however_they_are_cut(frames: list[tuple[dict, bytes]], cut: int) -> None:
    stream = b"".join(pack(header, body) for header, body in frames)
    reader, found = Reader(2**20), []
    for at in range(0, len(stream), cut):
        reader.feed(stream[at : at + cut])
        while (frame := reader.take()) is not None:
            found.append(frame)
    assert found == frames and reader.empty


@pytest.mark.parametrize(
    "data",
    [
        LENGTHS.pack(HEADER_BYTES + 1, 0),
        LENGTHS.pack(2, 101),
        LENGTHS.pack(2, 0) + b"[]",
        LENGTHS.pack(3, 0) + b"{x}",
        LENGTHS.pack(2, 0) + b"\xff\xff",
        LENGTHS.pack(100_000, 0) + b"[" * 100_000,
    ],
)
def test_what_is_no_frame_is_refused_before_it_is_kept(data: bytes) -> None:
    reader = Reader(100)
    reader.feed(data)
    with pytest.raises(FrameError):
        reader.take()


@given(some.lists(some.binary(max_size=300)), some.integers(1, 64))
def test_head_and_tail_are_kept_and_all_is_counted(parts: list[bytes], cap: int) -> None:
    kept, whole = Kept(cap), b"".join(parts)
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
    kept = Kept(8192)
    for _ in range(2000):
        kept.feed(bytes(2**16))
    assert kept.size == 2000 * 2**16 and len(kept._head) + len(kept._tail) < 2**18


def test_a_pipe_that_others_hold_open_is_drained_without_waiting() -> None:
    pipe = Pipe(100)
    held = os.dup(pipe.writing)
    try:
        os.write(held, b"words")
        pipe.given()
        pipe.drain()
        assert pipe.kept.text() == b"words"
    finally:
        os.close(held)
        pipe.close()


def test_a_result_is_read_and_what_is_wrong_is_broken() -> None:
    header = {"result": GOOD, "stdout_size": 2, "stderr_size": 0, "value_size": 1}
    assert read_result(header, b"ab6") == Result(
        stdout="ab", value="6", stdout_bytes=2, duration_s=0.1, cpu_s=0.1, max_rss_bytes=1
    )
    wrong = [
        {**header, "stdout_size": 9},
        {**header, "stdout_size": -1, "stderr_size": 3},
        {**header, "value_size": None},
        {**header, "result": None},
        {**header, "result": {**GOOD, "exit_code": "0"}},
        {**header, "result": {**GOOD, "timed_out": 0}},
        {**header, "result": {**GOOD, "limit_hit": "luck"}},
        {"error": "text"},
        {},
    ]
    for reply in wrong:
        with pytest.raises(Broken):
            read_result(reply, b"ab6")


def test_the_zygote_is_chosen_by_what_a_program_names() -> None:
    assert choose(b"from sympy import *") == choose(b"import numpy, sympy") == "scientific"
    assert choose(b"import numpy as np") == choose(b"import pandas") == "numpy"
    assert choose(b"print('hello')") == choose(b"import json, numpyro_like") == "bare"
