"""A vLLM server that dies at the worst moment comes back with the newest weights: asleep, while it is released or
woken, while weights are being sent. Old weights are never sampled from.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from engine_contract import Served
from fake_server import error
from fake_vllm import broken, hang_up
from serving_vllm import ServingVllm, stand_in
from test_engine_contract import STOPS, contract_model

from palaestra import Broken
from palaestra.agents.engines.vllm import fleet, keeper, own_servers
from palaestra.agents.engines.vllm.engine import VllmEngine
from palaestra.agents.engines.vllm.launch import Launch
from palaestra.agents.engines.vllm.own_servers import OwnServers, Watch

LONGEST = 128
SECONDS = 300
"""Against a hang alone."""


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(fleet, "_FIRST_WAIT_SECONDS", 0.02)
    monkeypatch.setattr(fleet, "_SETTLE_SECONDS", 0.3)
    monkeypatch.setattr(own_servers, "_CHECK_SECONDS", 0.02)


@contextmanager
def served_by(serving, *others):
    with serving.server:
        model = contract_model()
        engine = VllmEngine(model, STOPS, urls=[serving.url, *others], answer_seconds=10.0, restart_seconds=10.0)
        try:
            yield Served(engine, model, STOPS, LONGEST)
        finally:
            engine.close()


def require_newest(served, asked, ready):
    """All turns that were not answered before are answered from the newest weights."""
    done = served.answers(asked | served.turns(2), dict(ready))
    for ticket, completion in done.items():
        if ticket not in ready:
            assert set(completion.versions) == {served.engine.version}
            if ticket in asked:
                assert served.gap(asked[ticket], completion) < served.tolerance


STAGES = ("sleep", "wake_up", "pause", "palaestra_load", "update_weight_version", "reset_prefix_cache", "resume")


@pytest.mark.parametrize("stage", STAGES)
def test_a_server_that_dies_at_any_stage_of_a_release_loses_no_turn_and_answers_from_the_newest_weights(stage):
    serving = ServingVllm(contract_model(), LONGEST)
    starting = [broken, broken]

    def die(body, truth):
        del serving.lies[stage]
        serving.restart()
        serving.lies["health"] = lambda body, truth: starting.pop()(body, truth) if starting else truth
        return hang_up(body, truth)

    with served_by(serving) as served:
        served.change()
        asked, ready = served.turns(8), {}
        served.begin(asked, ready)
        serving.lies[stage] = die
        served.engine.release()
        served.look(asked, ready, 0.0)
        served.change()
        served.engine.reclaim()
        require_newest(served, asked, ready)
        assert stage not in serving.lies and not starting, "it did not die"
        assert serving.asleep == set()


def test_a_server_that_is_lost_in_its_sleep_gets_no_weights_before_the_next_update():
    """The trainer may change them meanwhile, and needs the memory."""
    serving = ServingVllm(contract_model(), LONGEST)
    with served_by(serving) as served:
        served.change()
        serving.lies["sleep"] = hang_up
        served.engine.release()
        serving.lies.clear()
        serving.restart()
        for _ in range(100):
            served.engine._faults(served.engine._shape_fault)  # The engine has time to do something.
        assert len(serving.folders) == 1
        served.change()
        served.engine.reclaim()
        require_newest(served, {}, {})
        assert len(serving.folders) == 2


def test_a_turn_that_a_server_refuses_in_a_pause_is_asked_again_and_no_weights_are_sent_anew():
    serving = ServingVllm(contract_model(), LONGEST)

    async def late(body, truth):
        del serving.lies["generate"]
        while not serving.paused:
            await asyncio.sleep(0.001)
        return error(503, "Generation is paused. Please retry after it resumes.")

    with served_by(serving) as served:
        served.change()
        serving.lies["generate"] = late
        asked = served.turns(1)
        served.engine.pause("wait")
        served.engine.resume()
        require_newest(served, asked, {})
        assert len(serving.folders) == 1


def test_a_server_that_gets_its_weights_while_a_pause_ends_is_not_left_paused():
    first, second = (ServingVllm(contract_model(), LONGEST) for _ in range(2))
    resumed = threading.Event()

    def lost(body, truth):
        del second.lies["pause"]
        return hang_up(body, truth)

    async def given(body, truth):
        while not resumed.is_set():
            await asyncio.sleep(0.001)
        return truth

    async def resume(body, truth):
        resumed.set()
        while not served.engine._fleet.replicas[1].ready:
            await asyncio.sleep(0.001)
        return truth

    with second.server, served_by(first, second.url) as served:
        served.change()
        second.lies |= {"pause": lost, "palaestra_load": given}
        first.lies["resume"] = resume
        served.engine.pause()
        served.engine.resume()
        require_newest(served, served.turns(4), {})
        assert second.asked and len(first.asked + second.asked) == 6, "a turn was asked again"


class FakeProcess:
    """A server that a watch may end and start."""

    url = "http://127.0.0.1:9"

    def __init__(self, starts=()):
        self.runs, self.log, self.starts = True, [], list(starts)
        self.done = threading.Event()
        self.ending = lambda: None

    def healthy(self):
        return self.runs

    def tail(self):
        return "out of memory"

    def stop(self):
        self.log.append("stop")
        self.runs = False
        self.ending()

    def start(self):
        self.log.append("start")
        self.runs = True

    def wait(self, seconds):
        if self.starts and self.starts.pop(0) == "fails":
            self.runs = False
            raise Broken("vLLM ended while it started")
        self.done.set()

    def restore(self):
        return "it has the model's own weights"


def test_a_server_that_does_not_start_at_once_is_started_again_and_one_that_never_does_is_given_up():
    slow, hopeless = FakeProcess(["fails", "fails"]), FakeProcess(["fails"] * 9)
    watch = Watch([slow])
    thread = threading.Thread(target=watch.run)
    thread.start()
    slow.runs = False
    assert slow.done.wait(SECONDS)
    watch.stop()
    thread.join(SECONDS)
    assert slow.log.count("start") == 3
    hopeless.runs = False
    with pytest.raises(Broken, match="died 5 times"):
        Watch([hopeless]).run()


def test_no_server_is_started_after_the_end_or_while_its_memory_is_used_by_others():
    server = FakeProcess()
    watch = Watch([server])
    thread = threading.Thread(target=watch.run)
    looked, seen = threading.Event(), []
    server.ending = lambda: (seen.append(1), len(seen) > 3 and looked.set())
    watch.may_start.clear()
    server.runs = False
    thread.start()
    assert looked.wait(SECONDS)
    assert "start" not in server.log, "its memory is used by others"

    stopping = threading.Thread(target=watch.stop)
    ending, calls = threading.Event(), []

    def end_of_the_run():
        calls.append(1)
        if len(calls) == 1:
            stopping.start()
            ending.set()
            assert watch.ended.wait(SECONDS)

    with watch._lock:  # Or it may start the server between the two.
        server.ending = end_of_the_run
        watch.may_start.set()
    assert ending.wait(SECONDS)
    stopping.join(SECONDS)
    thread.join(SECONDS)
    assert not server.runs


def test_a_server_outlives_the_thread_that_started_it_and_ends_with_the_process():
    program = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
    children = []

    def start():
        command = [sys.executable, keeper.__file__, str(os.getpid()), sys.executable, "-c", program]
        children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert said(children[0], "began")

    def said(child, text):
        child.stdin.write(f"{text}\n")
        child.stdin.flush()
        return child.stdout.readline() == f"{text}\n"

    thread = threading.Thread(target=start)
    thread.start()
    number = thread.native_id
    thread.join(SECONDS)
    while Path(f"/proc/self/task/{number}").exists():
        pass
    (child,) = children
    with child:
        assert all(said(child, f"still here {count}") for count in range(1000))
        child.terminate()
        assert child.wait(SECONDS) == -signal.SIGKILL


@pytest.mark.prove
def test_a_child_that_is_killed_in_its_sleep_starts_with_the_next_update_and_not_before(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(stand_in(tmp_path / "package")), prepend=os.pathsep)
    model = contract_model()
    model.save_pretrained(tmp_path / "model")
    launch = Launch(Path(sys.executable), str(tmp_path / "model"), "cuda", dtype="float32", max_model_len=LONGEST)
    looked, again = threading.Semaphore(0), Watch._start_again
    monkeypatch.setattr(Watch, "_start_again", lambda *of: (again(*of), looked.release()))
    own = OwnServers([launch], start_seconds=SECONDS)
    own.start()
    own.watch_in_background()
    engine = VllmEngine(model, STOPS, urls=own.urls, own_servers=own, shares_memory=True, restart_seconds=SECONDS)
    served, (server,) = Served(engine, model, STOPS, LONGEST), own.servers
    try:
        served.change()
        asked, ready = served.turns(4), {}
        served.begin(asked, ready)
        engine.release()
        served.look(asked, ready, 0.0)
        os.killpg(server._process.pid, signal.SIGKILL)
        for _ in range(3):
            assert looked.acquire(timeout=SECONDS)
        assert not server.runs
        served.change()
        engine.reclaim()
        require_newest(served, asked, ready)
        assert server.runs
    finally:
        engine.close()
        own.stop()
