"""An engine of vLLM servers believes only what can be true, and loses no turn: whatever a server does, there is an
answer from the newest weights, or a fault that says why not, within its deadline.
"""

import json
import time
import weakref
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
import torch
from fake_server import Reply, error, nobody
from fake_vllm import TOKENIZER, broken, changed, hang_up, said, silence, vllm
from families import stock_model

from palaestra import Request, Start, TrainingHalted, UsageError
from palaestra.agents.adapters import add_adapter, effective_weights
from palaestra.agents.engines.vllm import checks, fleet, replica
from palaestra.agents.engines.vllm.checks import refused_on_cpu
from palaestra.agents.engines.vllm.engine import VllmEngine
from palaestra.agents.engines.vllm.routing import StickyRoutes
from palaestra.agents.engines.vllm.transfer import Transfer
from palaestra.agents.engines.weight_files import read_each
from palaestra.agents.policies.tiny import tiny_model
from palaestra.endpoint.config import Secret

MODEL = stock_model("qwen3", 400)
STOPS = frozenset({3, 4})
LONG = 30.0
"""Seconds that nothing here takes."""


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    for module in (checks, replica):
        monkeypatch.setattr(module, "HEALTH_SECONDS", 3.0)
    monkeypatch.setattr(fleet, "_FIRST_WAIT_SECONDS", 0.02)
    monkeypatch.setattr(fleet, "_SETTLE_SECONDS", 0.3)


@contextmanager
def engine_of(*servers, **options):
    options = {"answer_seconds": 10.0, "restart_seconds": 5.0} | options
    engine = VllmEngine(MODEL, STOPS, urls=[getattr(server, "url", server) for server in servers], **options)
    try:
        yield engine
    finally:
        engine.close()


def ask(engine, number=1, max_tokens=5, seed=0):
    requests = [Request(n, Start(n, seed), 0, (), (), [9, 8, 7], max_tokens) for n in range(number)]
    return [engine.submit(request) for request in requests]


def answers(engine, tickets, seconds=LONG):
    done, until = {}, time.monotonic() + seconds
    while len(done) < len(tickets):
        assert time.monotonic() < until, "turns are lost"
        for completion in engine.poll(0.1):
            assert completion.ticket in tickets
            assert completion.ticket not in done
            done[completion.ticket] = completion
    return done


PAGE = Reply(b"<html>Welcome to nginx</html>")
REFUSED = {
    "is no vLLM server": {"version": lambda body, truth: PAGE},
    "does not say its version": {"version": lambda body, truth: {"version": None}},
    "refused with 404": {"version": lambda body, truth: error(404, "Not Found")},
    "is vLLM 0.31.2; expected a version from 0.32 and below 0.34": {
        "version": lambda body, truth: {"version": "0.31.2"}
    },
    "is vLLM 0.34.0": {"version": lambda body, truth: {"version": "0.34.0"}},
    "without what palaestra adds to it": {"palaestra_describe": lambda body, truth: error(500, "no such method")},
    "gives raw_logprobs": {
        "palaestra_describe": lambda body, truth: {"results": [truth["results"][0] | {"logprobs_mode": "raw_logprobs"}]}
    },
    "vocab_size 401; the one in training has 400": {
        "palaestra_describe": lambda body, truth: {"results": [truth["results"][0] | {"vocab_size": 401}]}
    },
    "num_hidden_layers 7": {
        "palaestra_describe": lambda body, truth: {"results": [truth["results"][0] | {"num_hidden_layers": 7}]}
    },
    "has another tokenizer": {"tokenize": lambda body, truth: {"tokens": [1, *truth["tokens"][1:]]}},
    "gave no answer within": {"version": silence},
}


def test_a_server_that_cannot_be_trained_with_is_refused_in_a_sentence():
    with vllm(MODEL.config) as server, engine_of(server) as engine:
        for reason, lies in REFUSED.items():
            server.lies, began = lies, time.monotonic()
            with pytest.raises(UsageError, match=reason) as refusal:
                engine.check(TOKENIZER, 64)
            assert server.url in str(refusal.value)
            assert time.monotonic() - began < 20, reason
        server.lies = {}
        engine.check(TOKENIZER, 64)


def test_a_server_that_is_not_there_and_rows_that_are_too_short_are_refused():
    with (
        nobody() as url,
        engine_of(url.removesuffix("/v1")) as engine,
        pytest.raises(UsageError, match="no connection"),
    ):
        engine.check(TOKENIZER, 64)
    with vllm(MODEL.config) as server, engine_of(server) as engine:
        with pytest.raises(UsageError, match="have 64 tokens, and those of the run up to 65"):
            engine.check(TOKENIZER, 65)
        engine.check(TOKENIZER, 64)


FIVE = [7] * 5
NAN = Reply(json.dumps(said(FIVE, "x")).replace("-1.5", "NaN", 1).encode())
WRONG = {
    "no choice": lambda body, truth: {"choices": []},
    "no log-probs for 5 tokens": changed(logprobs=None),
    "gave 4 log-probs for 5 tokens": changed(
        logprobs={"content": said([7] * 4, "x")["choices"][0]["logprobs"]["content"]}
    ),
    "log-prob of nan": lambda body, truth: NAN,
    "log-prob of 0.7": changed(logprobs={"content": [{"token_id": 7, "logprob": 0.7}] * 5}),
    "are of other tokens": changed(token_ids=[7, 7, 8, 7, 7]),
    "not all whole numbers from 0 to 399": changed(token_ids=[7, 7, 400, 7, 7]),
    "6 tokens, and at most 5": lambda body, truth: said([7] * 6, "x"),
    "do not end where a turn ends": changed(token_ids=[7, 3, 7, 7, 7]),
    "says 'stop'": changed(finish_reason="stop"),
    "ended for 'repetition'": changed(finish_reason="repetition"),
    "stopped after 4 of 5 tokens": lambda body, truth: said([7] * 4, "x"),
    "does not say which weights": changed(weight_versions=None),
    "which weights chose its 5": changed(weight_versions=[{"version": "x", "start": 0, "end": 4}]),
    "not JSON": lambda body, truth: PAGE,
    "EngineCore encountered an issue": broken,
    "from weights that it was not given": changed(weight_versions=[{"version": "default", "start": 0, "end": 5}]),
    "connection failed": hang_up,
}


def test_an_answer_that_cannot_be_true_is_asked_for_again_and_then_a_fault():
    with vllm(MODEL.config) as server, engine_of(server) as engine:
        for reason, lie in WRONG.items():
            server.lies["generate"] = lie
            (completion,) = answers(engine, ask(engine)).values()
            assert reason in completion.fault
            assert f"given up after {fleet.TRIES} tries" in completion.fault
            assert len(server.asked) == fleet.TRIES, reason
            assert not completion.ids
            server.asked.clear()
        server.lies.clear()
        assert not any(completion.fault for completion in answers(engine, ask(engine, 3)).values())


def test_what_the_server_refuses_is_a_fault_at_once():
    refuse = {"generate": lambda body, truth: error(400, "Token id 5000 is out of vocabulary")}
    with vllm(MODEL.config, **refuse) as server, engine_of(server) as engine:
        (completion,) = answers(engine, ask(engine)).values()
        assert "refused with 400: Token id 5000 is out of vocabulary" in completion.fault
        assert len(server.asked) == 1


def test_a_server_that_dies_under_load_costs_no_turn_and_is_given_the_newest_weights_when_it_is_back():
    with vllm(MODEL.config) as first, vllm(MODEL.config) as second, engine_of(first, second) as engine:
        engine.update_weights(MODEL.named_parameters(), 3)
        engine.pause("keep")
        tickets = ask(engine, 10)
        engine.resume()
        first.lies |= {"generate": hang_up, "health": broken}
        first.restart()
        tickets += ask(engine, 20, seed=1)
        done = answers(engine, tickets)
        assert not any(completion.fault for completion in done.values())
        assert {version for completion in done.values() for version in completion.versions} == {3}
        first.lies.clear()
        until = time.monotonic() + LONG
        while first.tag == "default":
            assert time.monotonic() < until
            time.sleep(0.01)
        assert first.loaded == second.loaded


def test_a_server_that_was_started_anew_in_between_is_not_believed():
    with vllm(MODEL.config) as server, engine_of(server) as engine:
        answers(engine, ask(engine))
        server.restart()
        (completion,) = answers(engine, ask(engine)).values()
        assert not completion.fault
        assert server.tag != "default"
        assert len(server.asked) == 3


def test_when_all_servers_are_gone_a_turn_gets_a_fault_in_time():
    with vllm(MODEL.config) as server, engine_of(server, restart_seconds=0.5) as engine:
        answers(engine, ask(engine))
        server.lies |= {"generate": hang_up, "health": broken}
        done = answers(engine, ask(engine, 4))
        assert all("no server was ready within 0.5 s" in one.fault for one in done.values())
        with pytest.raises(Exception, match="no server took the weights of step 1 within"):
            engine.update_weights(MODEL.named_parameters(), 1)


@pytest.mark.prove
def test_a_turn_has_a_deadline_which_stands_still_in_a_pause():
    with vllm(MODEL.config) as server, engine_of(server, answer_seconds=2.0) as engine:
        engine.update_weights(MODEL.named_parameters(), 0)
        server.running.clear()  # It is slow.
        tickets = ask(engine, 2)
        engine.pause()
        time.sleep(4.0)
        engine.resume()
        assert not any(one.fault for one in answers(engine, tickets).values())
        assert len(server.asked) == 2
        server.lies["generate"] = silence
        (completion,) = answers(engine, ask(engine), seconds=60).values()
        assert "no answer within 2 s" in completion.fault


def test_the_least_loaded_server_is_asked():
    with vllm(MODEL.config) as first, vllm(MODEL.config) as second, engine_of(first, second) as engine:
        engine.update_weights(MODEL.named_parameters(), 0)
        for server in (first, second):
            server.running.clear()  # They are slow.
        tickets = ask(engine, 20)
        until = time.monotonic() + LONG
        while len(first.asked) + len(second.asked) < 20:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert len(first.asked) == len(second.asked) == 10
        engine.resume()
        answers(engine, tickets)


def test_the_turns_of_a_row_go_to_the_server_that_has_computed_its_beginning():
    with ExitStack() as stack:
        servers = [stack.enter_context(vllm(MODEL.config)) for _ in range(4)]
        engine = stack.enter_context(engine_of(*servers))
        engine.update_weights(MODEL.named_parameters(), 0)
        for length in (3, 13, 23):
            engine.pause()  # Until all are submitted, so that no turn ends before.
            # In another order each time, as tools answer.
            rows = sorted(range(12), key=lambda row: row * length % 13)
            requests = [Request(row, Start(row, 0), length, (), (), [row + 10] * length, 5) for row in rows]
            tickets = [engine.submit(request) for request in requests]
            engine.resume()
            answers(engine, tickets)
        assert computed_tokens(servers) == 12 * 23  # 12 * 39 if no turn found the beginning of its row.


def computed_tokens(servers):
    """Return how many tokens the servers had to compute, each with a cache of the rows that it has computed."""
    total = 0
    for server in servers:
        cached = dict.fromkeys(range(50), 0)
        for body in server.asked:
            row, length = body["token_ids"][0], len(body["token_ids"])
            total, cached[row] = total + length - cached[row], length
    return total


def test_a_row_leaves_a_server_that_is_overloaded_or_gone():
    routes, servers = StickyRoutes(), [replica.Replica(f"http://127.0.0.1:{port}", Secret("")) for port in (1, 2, 3)]
    home = routes.choose(7, servers)
    assert routes.choose(7, servers) is home
    home.load = 4  # The mean is 4/3.
    assert (other := routes.choose(7, servers)) is not home
    home.load = 0
    assert routes.choose(7, servers) is other
    assert routes.choose(7, [server for server in servers if server is not other]) is not other


def test_noise_belongs_to_run_episode_and_turn():
    with vllm(MODEL.config) as server, engine_of(server, seed=1) as engine, engine_of(server, seed=2) as other:
        for asked in (engine, engine, other):
            answers(asked, ask(asked, 3))
        seeds = [body["sampling_params"]["seed"] for body in server.asked]
        assert sorted(seeds[:3]) == sorted(seeds[3:6])
        assert len(set(seeds)) == 6


def test_a_server_sleeps_while_the_trainer_learns_and_takes_weights_before_its_cache():
    steps = []

    def noted(name):
        return lambda body, truth: steps.append(name) or truth

    names = ("sleep", "wake_up", "palaestra_load", "resume")
    with vllm(MODEL.config, **{name: noted(name) for name in names}) as server, engine_of(server) as engine:
        engine.update_weights(MODEL.named_parameters(), 0)
        answers(engine, ask(engine))
        steps.clear()
        engine.release()
        engine.update_weights(MODEL.named_parameters(), 1)
        engine.reclaim()
        assert steps == ["sleep", "wake_up", "palaestra_load", "wake_up", "resume"]
        steps.clear()
        engine.reclaim()
        assert steps == []
        (completion,) = answers(engine, ask(engine)).values()
        assert set(completion.versions) == {1}


def test_weights_arrive_as_they_were_given_and_their_folder_goes():
    with vllm(MODEL.config) as server, engine_of(server) as engine:
        engine.update_weights(MODEL.named_parameters(), 7)
        folder = Path(server.loaded)
        stored = dict(read_each(folder))
        assert all(torch.equal(stored[name], weight) for name, weight in MODEL.named_parameters())
        for version in range(8, 12):
            engine.update_weights(MODEL.named_parameters(), version)
        assert len(list(folder.parent.iterdir())) == 2
        assert engine.version == 11
    assert not folder.parent.exists()


def test_an_adapter_that_is_added_later_is_sent_merged_and_the_model_is_not_kept():
    model = stock_model("qwen3", 400)
    with vllm(MODEL.config) as server:
        engine = VllmEngine(model, STOPS, urls=[server.url], answer_seconds=10.0, restart_seconds=5.0)
        with closing(engine):
            add_adapter(model, 2, 4.0, ["q_proj"])
            for layer in model.modules():
                if hasattr(layer, "lora_B"):
                    torch.nn.init.ones_(layer.lora_B["default"].weight)
            sent = {name: weight.clone() for name, weight in effective_weights(model)}
            answers(engine, ask(engine))
            stored = dict(read_each(Path(server.loaded)))
            assert stored.keys() == sent.keys()
            assert all(torch.equal(stored[name], weight) for name, weight in sent.items())
            changed = "model.layers.0.self_attn.q_proj.weight"
            assert not torch.equal(sent[changed], MODEL.get_parameter(changed))
            kept = weakref.ref(model)
            del model, layer
            assert kept() is None
            engine.update_weights(sent.items(), 1)


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ({"results": [{"head_gap": 0.4}]}, "output head differs from them by 0.4"),
        ({"results": [{"error": "there are no safetensors in /x"}]}, "there are no safetensors in /x"),
        ({"results": [{}]}, "differs from them by inf"),
    ],
)
def test_weights_that_did_not_arrive_stop_the_run(lie, reason):
    halts = pytest.raises(TrainingHalted, match=reason)
    with vllm(MODEL.config, palaestra_load=lambda *_: lie) as server, engine_of(server) as engine, halts:
        engine.update_weights(MODEL.named_parameters(), 0)


def test_a_release_of_vllm_whose_classes_do_not_fit_the_transfer_stops_the_run_with_a_sentence(monkeypatch):
    async def opened(self, replica):
        raise TypeError("Can't instantiate abstract class Source")

    monkeypatch.setattr(Transfer, "_opened", opened)
    halts = pytest.raises(TrainingHalted, match="this release of vllm does not fit the transfer by nccl: Can't inst")
    with vllm(MODEL.config) as server, engine_of(server, transfer="nccl") as engine, halts:
        engine.update_weights(MODEL.named_parameters(), 0)


def test_a_cancelled_turn_is_stopped_at_its_server():
    with vllm(MODEL.config) as server, engine_of(server) as engine:
        engine.update_weights(MODEL.named_parameters(), 0)
        server.running.clear()
        (ticket,) = ask(engine)
        until = time.monotonic() + LONG
        while not server.asked:
            assert time.monotonic() < until
            time.sleep(0.01)
        engine.cancel(ticket)
        while not server.aborted:
            assert time.monotonic() < until
            time.sleep(0.01)
        assert server.aborted == [f"generate-tokens-{server.asked[0]['request_id']}"]
        assert engine.poll(0.1) == []


def test_a_model_whose_heads_are_too_narrow_for_vllm_on_cpu_is_known():
    assert "those of this model are 16 wide" in refused_on_cpu(tiny_model(512).config)
    config = tiny_model(512).config
    config.head_dim = 32
    assert refused_on_cpu(config) == ""
