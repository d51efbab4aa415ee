"""The docker sandbox keeps the interface's promises: programs, sessions, files, deadlines, both kinds of callers."""

import asyncio
import time

import pytest

from palaestra.envs.sandboxes import Limits
from palaestra.envs.sandboxes.docker import DockerSandbox
from palaestra.errors import Broken, UsageError

pytestmark = pytest.mark.docker


def test_a_program_runs_and_what_it_did_is_told(docker_sandbox: DockerSandbox) -> None:
    done = docker_sandbox.run_once("import sys; print(6 * 7); sys.stderr.write('hm'); sys.exit(3)")
    assert (done.stdout, done.stderr, done.exit_code) == ("42\n", "hm", 3)
    assert docker_sandbox.run_once("print(input())", stdin=b"given").stdout == "given\n"
    assert docker_sandbox.run_once("print(open('a/b').read())", files={"a/b": b"there"}).stdout == "there\n"
    assert docker_sandbox.run_once("1 / 0").stderr.endswith("ZeroDivisionError: division by zero\n")
    done = docker_sandbox.run_once("import numpy, sympy; print(numpy.arange(4).sum(), sympy.factor('x**2 - 1'))")
    assert done.stdout == "6 (x - 1)*(x + 1)\n", done.stderr


def test_a_session_keeps_variables_and_files_until_it_is_reset(docker_sandbox: DockerSandbox) -> None:
    with docker_sandbox.start(files={"a.txt": b"one"}) as session:
        assert session.run("x = open('a.txt').read()").ok
        assert session.run("x * 2", show_last=True).value == "'oneone'"
        session.put("deep/b.bin", bytes(range(256)))
        assert session.listdir() == ["a.txt", "deep/"]
        assert session.get("deep/b.bin") == bytes(range(256))
        assert session.run(["sh", "-c", "cat a.txt; exit 4"]).exit_code == 4
        with pytest.raises(OSError, match="stay below"):
            session.get("../outside")
        session.reset()
        assert session.listdir() == []
        assert "NameError" in session.run("x").stderr
        with pytest.raises(UsageError, match="fork"):
            session.fork()


def test_time_ends_a_run_and_not_its_session(docker_sandbox: DockerSandbox) -> None:
    with docker_sandbox.start() as session:
        for _ in range(3):  # On a busy machine the console may not answer the interrupt in time, and is replaced.
            session.run("kept = 7")
            begun = time.monotonic()
            done = session.run("while True: pass", timeout=3.0)  # it has begun by then, or could not be interrupted
            assert done.timed_out
            assert done.limit_hit == "seconds"
            assert time.monotonic() - begun < 30.0
            if not done.state_lost:
                break
        assert session.run("kept", show_last=True).value == "7"


def test_async_callers_share_the_loop(docker_sandbox: DockerSandbox) -> None:
    async def race() -> list[list[str]]:
        program = "import time; print({}, time.monotonic()); time.sleep(8)"
        runs = [docker_sandbox.arun_once(program.format(index), timeout=60.0) for index in range(4)]
        return [result.stdout.split() for result in await asyncio.gather(*runs)]

    numbers, begun = zip(*asyncio.run(race()), strict=True)
    assert numbers == ("0", "1", "2", "3")
    assert max(map(float, begun)) - min(map(float, begun)) < 3 * 8, "they ran one after another"


def test_a_session_may_have_tighter_limits_and_no_wider_ones(docker_sandbox: DockerSandbox) -> None:
    tight = Limits(scratch_bytes=2**20, output_bytes=100)
    with docker_sandbox.start(limits=tight) as session:
        done = session.run("open('big', 'wb').write(bytes(3 * 2**20))")
        assert "No space left on device" in done.stderr
        assert session.run("print('x' * 1000)").limit_hit == "output"
    with pytest.raises(UsageError, match="at most"):
        docker_sandbox.start(limits=Limits(memory_bytes=2**40))


def test_a_closed_sandbox_says_so(opened: object) -> None:
    sandbox = opened()  # type: ignore[operator]
    session = sandbox.start()
    sandbox.close()
    sandbox.close()
    with pytest.raises((Broken, UsageError)):
        session.run("1")
    with pytest.raises(UsageError, match="closed"):
        sandbox.run_once("1")


CPLUSPLUS = """
#include <iostream>
int main() { long a, b; std::cin >> a >> b; std::cout << a * b << std::endl; }
"""


def test_the_judge_image_compiles_and_runs_three_languages(opened: object) -> None:
    sandbox = opened("judge", Limits(seconds=20, memory_bytes=2**30))  # type: ignore[operator]
    with sandbox.start(files={"main.cc": CPLUSPLUS.encode()}) as session:
        built = session.run(["g++", "-O2", "-std=c++17", "-o", "main", "main.cc"])
        assert built.exit_code == 0, built.stderr
        assert session.run(["./main"], stdin=b"6 7").stdout == "42\n"
        assert session.run(["node", "-e", "console.log(6 * 7)"]).stdout == "42\n"
        assert session.run(["python3", "-c", "print(6 * 7)"]).stdout == "42\n"
        wrong = session.run(["g++", "-x", "c++", "-"], stdin=b"int main( {")
        assert wrong.exit_code == 1
        assert "error" in wrong.stderr
        missing = session.run(["no-such-program"])
        assert missing.exit_code not in (0, None)
