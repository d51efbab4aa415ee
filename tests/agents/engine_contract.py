"""What every engine whose weights a trainer changes must do, whatever it is made of: one suite, run over each backend.

A backend's test module subclasses `EngineContract` and defines a fixture `served` that gives a `Served`; it may be of
any scope, for every test leaves the engine idle, and equal to `served.model`. Where a backend may differ by nature, the
fields of `Served` say so. What only one backend promises (bits, slots, servers that die) is tested beside it.
"""

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from palaestra import Request, Start, UsageError
from palaestra.protocols import TrainedEngine

PAUSES = ("abort", "wait", "keep")
_rows = count(50_000_000)


@dataclass
class Served:
    """An engine, and the stock transformers model whose weights it must answer from."""

    engine: TrainedEngine
    model: Any
    """In float32, apart from the engine: its weights reach the engine by `update_weights` alone."""
    stops: frozenset[int]
    """What ends a turn: about one word in thirty."""
    longest: int
    """Tokens of the longest row that the engine takes, answer included."""
    tolerance: float = 2e-5
    """Between its log-probs and those of a stock forward pass."""
    updates: int = 10
    """Changes of the weights that the suite makes in a row."""
    seconds: float = 60.0
    """In which some turns of a hundred tokens are surely answered."""
    slack: float = 2.0
    """Seconds that `poll` may take beyond its timeout."""
    computes_anew: bool = True
    """Whether a turn that goes on after an update reads nothing that the old weights computed."""
    held: Callable[[], int] | None = None
    """Bytes that only answering needs, for engines that can tell."""

    def change(self, scale: float = 0.05) -> int:
        """New weights for the model and then for the engine; their version."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn_like(parameter) * scale * parameter.std().nan_to_num(1.0).clamp(min=0.01))
        version = self.engine.version + 1
        self.engine.update_weights(self.tensors(), version)
        assert self.engine.version == version
        return version

    def tensors(self) -> Iterable[tuple[str, Any]]:
        """The model's weights, as a trainer sends them."""
        return self.model.named_parameters()

    def prompt(self, length: int, seed: int = 0) -> list[int]:
        """Some words."""
        draw = np.random.default_rng([length, seed])
        return [int(word) for word in draw.integers(1, self.model.config.vocab_size, length)]

    def ask(self, ids: list[int], *, seed: int = 0, max_tokens: int = 12, **options: Any) -> tuple[int, Request]:
        """Submit a turn; its ticket, and the request."""
        row = next(_rows)
        request = Request(row, Start(row % 1000, seed), 0, (), (), ids, max_tokens, **options)
        return self.engine.submit(request), request

    def turns(self, number: int, max_tokens: int = 60) -> dict[int, Request]:
        """Submit some turns of different lengths, of which two begin alike."""
        lengths = (9, 9, 30, 5, 17, 60)
        return dict(self.ask(self.prompt(lengths[n % 6], n // 2), seed=n, max_tokens=max_tokens) for n in range(number))

    def answers(self, asked: dict[int, Request], done: dict[int, Any] | None = None) -> dict[int, Any]:
        """Poll until all are answered: none without an answer, none twice, and nothing that was not asked."""
        done, until = {} if done is None else done, time.monotonic() + self.seconds
        while len(done) < len(asked):
            assert time.monotonic() < until, f"{len(asked) - len(done)} of {len(asked)} turns are lost"
            self.look(asked, done, 0.2)
        for ticket, completion in done.items():
            self.check(asked[ticket], completion)
        assert self.engine.poll() == [], "something was answered twice"
        return done

    def look(self, asked: dict[int, Request], done: dict[int, Any], timeout: float) -> None:
        """Poll once."""
        for completion in self.engine.poll(timeout):
            assert completion.ticket in asked, "an answer that nobody asked for"
            assert completion.ticket not in done, "a turn was answered twice"
            assert not completion.fault, completion.fault
            done[completion.ticket] = completion

    def begin(self, asked: dict[int, Request], done: dict[int, Any]) -> None:
        """Let the turns get going, but hardly end."""
        for _ in range(4):
            self.look(asked, done, 0.01)

    def check(self, request: Request, completion: Any) -> None:
        """What holds for any answer."""
        said = list(completion.ids)
        assert 1 <= len(said) == len(completion.logprobs) == len(completion.versions) <= request.max_tokens
        assert np.isfinite(completion.logprobs).all()
        assert not self.stops.intersection(said[:-1]), "it went on behind a stop"
        assert completion.cut is (said[-1] not in self.stops)
        if completion.cut:
            assert len(said) == min(request.max_tokens, self.longest - len(request.ids))
        assert list(completion.versions) == sorted(completion.versions)

    def gap(self, request: Request, completion: Any, model: Any = None, *, of_version: int | None = None) -> float:
        """The largest difference between the answer's log-probs and those of a stock forward pass."""
        expected = rescore(model or self.model, request, list(completion.ids))
        gaps = np.abs(np.asarray(completion.logprobs) - expected)
        chosen = [of_version is None or version == of_version for version in completion.versions]
        return float(gaps[chosen].max(initial=0.0))


def rescore(model: Any, request: Request, said: list[int]) -> np.ndarray:
    """Log-probs of what was said, in the distribution that the request asks to sample from."""
    return distribution(model, request, said).gather(1, torch.tensor(said)[:, None])[:, 0].numpy()


@torch.no_grad()
def distribution(model: Any, request: Request, said: list[int]) -> torch.Tensor:
    """Log-probs of all words wherever one was said, after a stock forward pass."""
    ids = torch.tensor([[*request.ids, *said]], device=model.device)
    logits = model(input_ids=ids).logits[0, len(request.ids) - 1 : -1].double()
    if request.temperature:
        logits = truncated(logits / request.temperature, request.top_p, request.top_k, request.min_p)
    return torch.log_softmax(logits, -1).cpu()


def truncated(logits_TV: torch.Tensor, top_p: float, top_k: int, min_p: float) -> torch.Tensor:
    """Logits of the words that stay: first min-p, then top-k, then top-p of what is left; as vLLM has it."""
    kept_TV = logits_TV.softmax(-1)
    kept_TV = torch.where(kept_TV >= min_p * kept_TV.amax(-1, keepdim=True), kept_TV, 0.0)
    for line, kept_V in enumerate(kept_TV):
        order_V = kept_V.argsort(descending=True)
        if top_k:
            kept_V[order_V[top_k:]] = 0.0
        sorted_V = kept_V[order_V] / kept_V.sum()
        kept_TV[line, order_V[sorted_V.cumsum(0) - sorted_V >= top_p]] = 0.0
    return torch.where(kept_TV > 0, logits_TV, -torch.inf)


SAMPLING = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.6},
    {"top_p": 0.6},
    {"top_k": 5},
    {"min_p": 0.3},
    {"temperature": 0.8, "top_p": 0.8, "top_k": 20, "min_p": 0.02},
]


class EngineContract:
    """The suite."""

    @pytest.mark.parametrize("options", SAMPLING, ids=lambda options: ",".join(options) or "plain")
    def test_log_probs_are_those_of_the_distribution_that_was_sampled_from(self, served, options):
        asked = dict(served.ask(served.prompt(5 + n), seed=n, **options) for n in range(6))
        for ticket, completion in served.answers(asked).items():
            assert served.gap(asked[ticket], completion) < served.tolerance
            assert set(completion.versions) == {served.engine.version}

    def test_turns_of_different_sampling_run_together(self, served):
        asked = dict(served.ask(served.prompt(12), seed=n, **options) for n, options in enumerate(SAMPLING * 2))
        for ticket, completion in served.answers(asked).items():
            assert served.gap(asked[ticket], completion) < served.tolerance

    @pytest.mark.parametrize("options", [{}, {"top_k": 8}, {"temperature": 0.7, "top_p": 0.3}, {"min_p": 0.4}], ids=str)
    def test_what_is_sampled_follows_the_distribution(self, served, options):
        draws, prompt = 400, served.prompt(4)
        asked = dict(served.ask(prompt, seed=seed, max_tokens=1, **options) for seed in range(draws))
        found = Counter(completion.ids[0] for completion in served.answers(asked).values())
        request = next(iter(asked.values()))
        expected = draws * distribution(served.model, request, [0])[0].exp().numpy()
        observed = np.array([found[word] for word in range(len(expected))])
        assert not observed[expected == 0].any(), "words outside of the truncated distribution were sampled"
        common = expected >= 5
        expected = np.append(expected[common], max(expected[~common].sum(), 1e-9))
        observed = np.append(observed[common], observed[~common].sum())
        square, freedom = float(((observed - expected) ** 2 / expected).sum()), len(expected) - 1
        assert square < freedom + 4.5 * np.sqrt(2 * max(freedom, 1))

    def test_temperature_0_takes_the_likeliest_word(self, served):
        ticket, request = served.ask(served.prompt(8), temperature=0.0, top_p=0.5)
        completion = served.answers({ticket: request})[ticket]
        row = torch.tensor([[*request.ids, *completion.ids]])
        with torch.no_grad():
            logits = served.model(input_ids=row).logits[0, 7:-1]
        assert list(completion.ids) == logits.argmax(-1).tolist()
        assert served.gap(request, completion) < served.tolerance

    def test_a_turn_ends_at_a_stop_or_is_flagged_as_cut(self, served):
        done = served.answers(served.turns(30, max_tokens=20))
        assert {completion.cut for completion in done.values()} == {True, False}

    def test_a_row_is_cut_where_the_engine_takes_no_more(self, served):
        ticket, request = served.ask(served.prompt(served.longest - 3), max_tokens=50)
        served.answers({ticket: request})

    def test_a_request_that_cannot_be_answered_is_refused(self, served):
        for ids, room in (([], 4), ([1], 0), (served.prompt(served.longest), 1)):
            with pytest.raises(UsageError):
                served.ask(ids, max_tokens=room)
        ticket, request = served.ask(served.prompt(3))
        served.answers({ticket: request})

    def test_a_cancelled_turn_is_not_answered_and_the_others_are(self, served):
        asked, done = served.turns(9), {}
        served.engine.cancel(min(asked))
        served.look(asked, done, 0.01)
        for ticket in sorted(set(asked) - set(done))[1::3]:
            served.engine.cancel(ticket)
            del asked[ticket]
        asked.pop(min(asked))
        found = served.answers(asked, done)
        assert set(found) == set(asked)
        before = served.engine.sampled
        assert served.engine.poll(0.1) == []
        assert served.engine.sampled == before >= sum(len(completion.ids) for completion in found.values())

    def test_log_probs_stay_exact_after_many_updates(self, served):
        ticket, request = served.ask(served.prompt(10))
        before = served.answers({ticket: request})[ticket]
        for number in range(served.updates):
            version = served.change()
            ticket, request = served.ask(served.prompt(10), seed=number)
            completion = served.answers({ticket: request})[ticket]
            assert served.gap(request, completion) < served.tolerance
            assert set(completion.versions) == {version}
        assert served.gap(request, before) > 1e-3, "the weights were hardly changed, so that nothing is shown"

    def test_weights_that_do_not_fit_are_refused(self, served):
        tensors = dict(served.model.named_parameters())
        name, tensor = list(tensors.items())[-1]
        for wrong in ({**tensors, "nobody.weight": tensor}, {key: tensors[key] for key in tensors if key != name}):
            with pytest.raises(UsageError, match=rf"nobody\.weight|{name}"):
                served.engine.update_weights(wrong.items(), served.engine.version + 1)
        served.change()
        ticket, request = served.ask(served.prompt(6))
        assert served.gap(request, served.answers({ticket: request})[ticket]) < served.tolerance

    def test_new_weights_are_taken_one_by_one(self, served):
        """A trainer that holds a part of each weight gathers a whole one only when it is asked for it."""
        alive = weakref.WeakSet()
        most = 0

        def gathered():
            nonlocal most
            for name, parameter in served.model.named_parameters():
                tensor = parameter.detach().clone()
                alive.add(tensor)
                most = max(most, len(alive))
                yield name, tensor
                del tensor

        served.engine.update_weights(gathered(), served.engine.version + 1)
        assert most <= 2, "the next one is gathered while the last one has a name"

    @pytest.mark.parametrize("mode", PAUSES)
    def test_a_pause_loses_no_turn_and_weights_may_change_in_it(self, served, mode):
        asked, done = served.turns(8), {}
        served.begin(asked, done)
        old, before = served.engine.version, {name: p.clone() for name, p in served.model.named_parameters()}
        served.engine.pause(mode)
        for _ in range(3):  # Answers of the time before may still be under way.
            served.look(asked, done, 0.1)
        late = served.turns(3)
        sampled, ready = served.engine.sampled, set(done)
        for _ in range(3):
            served.look(asked | late, done, 0.1)
        assert served.engine.sampled == sampled, "it samples while it is paused"
        assert not set(done) & set(late)
        new = served.change()
        served.engine.resume()
        found = served.answers(asked | late, done)
        for ticket, completion in found.items():
            versions = set(completion.versions)
            assert versions <= ({old} if ticket in ready else {new} if ticket in late else {old, new})
            assert mode == "keep" or len(versions) == 1
            if len(versions) == 1 or served.computes_anew:
                assert served.gap((asked | late)[ticket], completion, of_version=new) < served.tolerance
        with torch.no_grad():
            present = {name: p.clone() for name, p in served.model.named_parameters()}
            served.model.load_state_dict(before, strict=False)
            for ticket, completion in found.items():
                assert served.gap((asked | late)[ticket], completion, of_version=old) < served.tolerance
            served.model.load_state_dict(present, strict=False)

    def test_pauses_may_be_said_twice_and_nothing_need_be_in_flight(self, served):
        for mode in PAUSES:
            served.engine.pause(mode)
            served.engine.pause(mode)
            asked, done = served.turns(1), {}
            served.look(asked, done, 0.05)
            assert not done
            served.engine.resume()
            served.engine.resume()
            served.answers(asked)

    @pytest.mark.parametrize("paused", [False, True])
    def test_release_gives_memory_back_and_loses_no_turn(self, served, paused):
        asked, done = served.turns(8), {}
        served.begin(asked, done)
        if paused:
            served.engine.pause("keep")
        busy = served.held() if served.held else 1
        served.engine.release()
        if served.held:
            assert served.held() <= busy // 20
        late = served.turns(2)
        served.look(asked | late, done, 0.1)
        assert not set(done) & set(late)
        version = served.change()
        served.engine.reclaim()
        served.engine.resume()
        ready = set(done)
        for ticket, completion in served.answers(asked | late, done).items():
            if ticket not in ready:
                assert set(completion.versions) == {version}
                assert served.gap((asked | late)[ticket], completion) < served.tolerance

    def test_poll_returns_in_time(self, served):
        asked, done = served.turns(6), {}
        for timeout in (0.0, 0.3):
            _in_time(lambda timeout=timeout: served.look(asked, done, timeout), timeout + served.slack)
        served.engine.pause("keep")
        _in_time(lambda: served.look(asked, done, 0.3), 0.3 + served.slack)
        served.engine.resume()
        served.answers(asked, done)
        _in_time(lambda: served.engine.poll(0.3), 0.3 + served.slack)


def _in_time(work: Callable[[], object], seconds: float) -> None:
    began = time.monotonic()
    work()
    assert time.monotonic() - began < seconds
