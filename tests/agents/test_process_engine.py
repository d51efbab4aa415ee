"""The engine in a process of its own: the contract, and what only a process can do: die, and be left behind."""

import copy
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from engine_contract import EngineContract, Served
from test_engine_contract import STOPS, contract_model
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from palaestra.agents.engines.process import EngineLost, ProcessEngine
from palaestra.agents.engines.torch_engine import TorchEngine


@pytest.fixture(scope="module", params=["tied", "untied"])
def served_of_module(request):
    model = contract_model(request.param == "tied")
    engine = ProcessEngine(model, STOPS, slots=5, deadline=60)
    yield Served(engine, model, STOPS, longest=128, held=lambda: engine.held_bytes)
    engine.close()


@pytest.mark.prove
class TestProcessEngine(EngineContract):
    """All of the contract, one child for each kind of head."""

    @pytest.fixture
    def served(self, served_of_module):
        return served_of_module


@pytest.fixture
def served():
    model = contract_model()
    # As a trainer leaves it: with an attention function that this process alone knows.
    AttentionInterface.register("of_a_trainer", sdpa_attention_forward)
    AttentionMaskInterface.register("of_a_trainer", sdpa_mask)
    model.set_attn_implementation("of_a_trainer")
    engine = ProcessEngine(model, STOPS, slots=5, deadline=60)
    yield Served(engine, model, STOPS, longest=128)
    engine.close()
    assert not engine._folder.exists()


@pytest.mark.prove
def test_its_answers_are_those_of_the_engine_in_this_process(served):
    """Before and after an update, and for turns that an update found in flight."""
    here = Served(TorchEngine(copy.deepcopy(served.model), STOPS, slots=5), served.model, STOPS, longest=128)
    for _ in range(2):
        asked = served.turns(6, max_tokens=20)
        theirs = served.answers(asked)
        ours = here.answers({here.engine.submit(request): request for request in asked.values()})
        assert [one.ids for _, one in sorted(theirs.items())] == [one.ids for _, one in sorted(ours.items())]
        for ticket, completion in theirs.items():
            assert served.gap(asked[ticket], completion) < served.tolerance
        here.engine.update_weights(served.model.named_parameters(), served.change())
    asked, done = served.turns(6), {}
    served.begin(asked, done)
    served.change()
    served.answers(asked, done)


@pytest.mark.prove
@pytest.mark.parametrize("when", ["running", "paused", "released"])
def test_a_child_that_is_killed_is_started_again_and_no_turn_is_lost(served, when):
    version = served.change()
    asked, done = served.turns(8), {}
    served.begin(asked, done)
    if when == "paused":
        served.engine.pause("keep")
    if when == "released":
        served.engine.release()
    before = served.engine.sampled
    os.kill(served.engine._child.pid, signal.SIGKILL)
    late, request = served.ask(served.prompt(5))
    if when != "running":
        served.look(asked, done, 0.5)
        ready = len(done)
        assert served.engine.poll(0.5) == []
        assert ready == len(done)
    served.engine.reclaim()
    served.engine.resume()
    for ticket, completion in served.answers(asked | {late: request}, done).items():
        assert set(completion.versions) == {version}
        assert served.gap((asked | {late: request})[ticket], completion) < served.tolerance
    assert served.engine.sampled >= before


@pytest.mark.prove
def test_a_child_that_always_dies_is_an_error_with_its_last_words(served):
    served.engine._dtype = "float33"
    os.kill(served.engine._child.pid, signal.SIGKILL)
    with pytest.raises(EngineLost, match="no attribute 'float33'"):
        served.answers(dict([served.ask(served.prompt(5))]))
    with pytest.raises(EngineLost, match="ended"):
        served.engine.release()


@pytest.mark.prove
def test_a_child_that_is_silent_is_replaced(served):
    served.engine._deadline = 60.0  # Enough for a start, on a busy machine.
    served.seconds = 240.0
    asked, done = served.turns(3), {}
    os.kill(served.engine._child.pid, signal.SIGSTOP)
    served.answers(asked, done)


@pytest.mark.prove
def test_signals_to_the_group_of_a_run_leave_the_child_to_the_run():
    """torchrun, `timeout` and a closed terminal signal a group. A run handles that after its step."""
    program = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_engine_contract import contract_model\n"
        "from palaestra.agents.engines.process import ProcessEngine\n"
        "engine = ProcessEngine(contract_model(), [7], slots=2)\n"
        "child = engine._child.pid\n"
        "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):\n"
        "    signal.signal(number, lambda *_: None)\n"
        "    os.killpg(0, number)\n"
        "    engine.held_bytes\n"
        "assert engine._child.pid == child\n"
        "engine.close()\n"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, start_new_session=True)
    assert not ran.returncode, ran.stderr


@pytest.mark.prove
def test_the_child_ends_with_the_process_that_started_it():
    program = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_engine_contract import contract_model\n"
        "from palaestra.agents.engines.process import ProcessEngine\n"
        "engine = ProcessEngine(contract_model(), [7], slots=2)\n"
        "print(engine._child.pid, engine._folder, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__).parent)], capture_output=True, text=True, timeout=120
    )
    pid, folder = ran.stdout.split()
    until = time.monotonic() + 20
    while (Path("/proc", pid).exists() or Path(folder).exists()) and time.monotonic() < until:
        time.sleep(0.1)
    assert not Path("/proc", pid).exists()
    assert not Path(folder).exists()
