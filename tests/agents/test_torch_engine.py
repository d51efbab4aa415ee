"""The built-in engine samples from the model it was given, and from nothing else: not from caches, slots or company."""

import copy
from collections import Counter
from itertools import count

import families
import numpy as np
import pytest
import torch

from palaestra import Ending, Request, Start, UsageError
from palaestra.agents import Agent, TokenLimits, play
from palaestra.agents.engines import noise
from palaestra.agents.engines.noise import gumbel, row_key, word_keys
from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.agents.policies.tiny import tiny_model


def talkative(family):
    """A chat with so many stops that a random model takes several turns."""
    chat = families.chat(family)
    chat.stops |= set(range(20, 250, 6))
    return chat


CHAT = talkative("tiny")
MODEL = tiny_model(len(CHAT.tokenizer), layers=2, seed=1)
LIMITS = TokenLimits(max_turn_tokens=24, max_episode_tokens=400)
rows_used = count(10_000_000)


def engine(model=MODEL, slots=8, stops=CHAT.stops, **options):
    return TorchEngine(model, stops, slots=slots, **options)


def request(ids, *, start=None, turn=0, max_tokens=8, temperature=1.0, row=None):
    row = next(rows_used) if row is None else row
    return Request(row, start or Start(0, 0), turn, (), (), ids, max_tokens, temperature)


def finish(served, wanted):
    done = {}
    for _ in range(2000):
        for completion in served.poll():
            done[completion.ticket] = completion
        if len(done) == wanted:
            return done
    raise AssertionError("the engine never finished")


def played(model=MODEL, chat=CHAT, slots=8, episodes=16, *, served=None, temperature=1.0, seed=0, limits=LIMITS):
    agent = Agent(served or engine(model, slots, chat.stops, seed=seed), chat)
    found = play(agent, families.Talk(slots), families.starts(episodes), limits=limits, temperature=temperature)
    return sorted(found, key=lambda episode: episode.start.task)


def ids_of(episodes):
    return [[row.ids.tolist() for row in episode.rows] for episode in episodes]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("name", ["tiny", "llama", "qwen2", "qwen3, grouped heads, untied"])
def test_log_probs_are_those_of_a_fresh_forward_pass(name, temperature):
    model = MODEL if name == "tiny" else families.stock_model(name.split(",")[0], len(CHAT.tokenizer))
    episodes = played(model, temperature=temperature)
    gap = 0.0
    for episode in episodes:
        for row in episode.rows:
            gap = max(gap, np.abs(families.fresh_logprobs(model, row, temperature) - row.logprobs[row.sampled]).max())
    assert gap < 2e-5
    assert max(len(episode.attempt.messages) for episode in episodes) > 2, "no episode had several turns"


@pytest.mark.parametrize("family", sorted(families.TOKENIZERS))
def test_log_probs_hold_under_every_template(family):
    chat = talkative(family)
    model = families.stock_model("llama", len(chat.tokenizer))
    for episode in played(model, chat, episodes=8):
        for row in episode.rows:
            gap = np.abs(families.fresh_logprobs(model, row) - row.logprobs[row.sampled])
            assert gap.max() < 2e-5


def test_what_was_sampled_is_what_is_recorded_and_only_that():
    """Every id the engine handed out is marked in the row, in order; every other token is not."""
    handed = {}

    class Watched(TorchEngine):
        def poll(self, timeout=0.0):
            done = super().poll(timeout)
            for completion in done:
                handed.setdefault(asked[completion.ticket], []).extend(completion.ids)
            return done

        def submit(self, request):
            ticket = super().submit(request)
            asked[ticket] = request.start
            return ticket

    asked = {}
    episodes = played(served=Watched(MODEL, CHAT.stops, slots=8))
    for episode in episodes:
        (row,) = episode.rows
        assert row.ids[row.sampled].tolist() == handed[episode.start]
        assert int(row.sampled.sum()) == episode.sampled_tokens == len(handed[episode.start])
        assert (row.versions[row.sampled] == 0).all()
        assert (row.versions[~row.sampled] == -1).all()
        assert (row.logprobs[~row.sampled] == 0).all()


@pytest.mark.parametrize("slots", [1, 3, 32])
def test_slots_do_not_change_what_is_sampled(slots):
    assert ids_of(played(slots=slots)) == ids_of(played(slots=8))


def test_more_rows_than_slots_do_not_change_what_is_sampled():
    """Twelve conversations over an engine with two slots: every cache is lost between turns."""
    expected = ids_of(played(slots=12))
    agent = Agent(engine(slots=2), CHAT)
    found = play(agent, families.Talk(12), families.starts(16), limits=LIMITS)
    assert ids_of(sorted(found, key=lambda episode: episode.start.task)) == expected


class Forgetful(TorchEngine):
    """Gets its own weights again all the time, in the middle of turns."""

    polls = 0

    def poll(self, timeout=0.0):
        self.polls += 1
        if self.polls % 3 == 0:
            self.update_weights(((name, p.clone()) for name, p in self.model.named_parameters()), version=self.polls)
        return super().poll(timeout)


def test_caches_that_are_dropped_in_mid_flight_do_not_change_what_is_sampled():
    episodes = played(served=Forgetful(MODEL, CHAT.stops, slots=8))
    assert ids_of(episodes) == ids_of(played())
    assert len({v for e in episodes for r in e.rows for v in r.versions[r.sampled]}) > 3


def test_each_token_carries_the_version_of_the_weights_that_chose_it():
    served = engine()
    served.submit(request([5, 6, 7], max_tokens=6))
    versions = []
    for version in range(6):
        done = served.poll()
        versions.append(served.version)
        served.update_weights(MODEL.named_parameters(), version=version + 1)
    assert done[0].versions == versions == [0, 1, 2, 3, 4, 5]


def test_new_weights_are_used_at_once_and_old_caches_are_not():
    first, second = tiny_model(300, layers=2, seed=1), tiny_model(300, layers=2, seed=2)
    served, fresh = engine(first), engine(second)
    served.submit(request([5, 6, 7], row=1))
    (done,) = finish(served, 1).values()
    served.update_weights(second.named_parameters(), version=1)
    row = [5, 6, 7, *done.ids, 9, 10]
    served.submit(request(row, row=1, turn=1))
    fresh.submit(request(row, turn=1))
    again, expected = finish(served, 1)[1], finish(fresh, 1)[0]
    assert again.ids == expected.ids
    np.testing.assert_allclose(again.logprobs, expected.logprobs, atol=2e-5)


@pytest.mark.parametrize("wrong", ["unknown", "missing"])
def test_weights_that_do_not_fit_are_refused(wrong):
    tensors = dict(MODEL.named_parameters())
    tensors |= {"nobody.weight": torch.zeros(1)} if wrong == "unknown" else {}
    if wrong == "missing":
        tensors.pop("model.norm.weight")
    with pytest.raises(UsageError, match=r"nobody\.weight|model\.norm\.weight"):
        engine(copy.deepcopy(MODEL)).update_weights(tensors.items(), version=1)


def test_greedy_takes_the_likeliest_token():
    served = engine(stops={999})
    prompt = [5, 6, 7, 8]
    served.submit(request(prompt, temperature=0.0, max_tokens=10))
    (done,) = finish(served, 1).values()
    with torch.no_grad():
        logits = MODEL(input_ids=torch.tensor([prompt + done.ids])).logits[0]
    assert done.ids == logits.argmax(-1)[3:-1].tolist()


def test_turns_of_different_temperatures_keep_apart():
    served = engine(stops={999})
    tickets = {t: served.submit(request([5, 6, 7], start=Start(1, 1), temperature=t)) for t in (0.0, 1.0, 0.5)}
    together = finish(served, 3)
    for temperature, ticket in tickets.items():
        alone = engine(stops={999})
        alone.submit(request([5, 6, 7], start=Start(1, 1), temperature=temperature))
        assert finish(alone, 1)[0].ids == together[ticket].ids


def test_a_turn_stops_at_a_stop_or_is_flagged_as_cut():
    served = engine(stops=range(0, 300, 6))
    for seed in range(40):
        served.submit(request([5, 6, 7], start=Start(0, seed), max_tokens=5))
    done = finish(served, 40).values()
    assert {completion.cut for completion in done} == {True, False}
    for completion in done:
        assert len(completion.ids) == len(completion.logprobs) == len(completion.versions) <= 5
        assert (completion.ids[-1] % 6 == 0) is not completion.cut
        assert all(token % 6 for token in completion.ids[:-1])
        if completion.cut:
            assert len(completion.ids) == 5


def test_a_stop_at_the_very_last_token_is_no_cut():
    served = engine(stops=range(300))
    served.submit(request([5], max_tokens=1))
    (done,) = finish(served, 1).values()
    assert not done.cut


def test_a_cancelled_turn_is_never_answered_and_frees_its_slot():
    served = engine(slots=1, stops={999})
    gone = served.submit(request([5, 6, 7], max_tokens=100))
    served.poll()
    queued = served.submit(request([5, 6], max_tokens=100))
    kept = served.submit(request([8, 9], start=Start(3, 3), max_tokens=4))
    served.cancel(gone)
    served.cancel(queued)
    done = finish(served, 1)
    assert list(done) == [kept]
    alone = engine(slots=1, stops={999})
    alone.submit(request([8, 9], start=Start(3, 3), max_tokens=4))
    assert finish(alone, 1)[0].ids == done[kept].ids
    assert served.poll() == []


@pytest.mark.parametrize(("ids", "room"), [([], 4), ([1], 0)])
def test_a_request_for_nothing_is_refused(ids, room):
    with pytest.raises(UsageError, match="max_tokens"):
        engine().submit(request(ids, max_tokens=room))


def test_a_model_with_windows_is_refused():
    model = copy.deepcopy(MODEL)
    model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(UsageError, match="sliding_attention"):
        engine(model)


def test_a_row_that_was_rewritten_is_not_read_from_its_cache():
    """The longest common prefix is kept, whatever follows it."""
    served = engine(stops={999})
    served.submit(request([5, 6, 7, 8, 9], row=77, max_tokens=3))
    finish(served, 1)
    for row in ([5, 6, 1, 2], [5], [5, 6, 1, 2, 3, 4, 5, 6, 7, 8]):
        ticket = served.submit(request(row, row=77, turn=1, max_tokens=3))
        fresh = engine(stops={999})
        fresh.submit(request(row, turn=1, max_tokens=3))
        assert finish(served, 1)[ticket].ids == finish(fresh, 1)[0].ids


def test_long_rows_grow_the_cache_without_harm():
    served = engine(slots=3, stops={999})
    prompts = [[1 + (i * k) % 250 for i in range(length)] for k, length in ((3, 5), (7, 90), (11, 260))]
    tickets = [served.submit(request(p, start=Start(k, 0), max_tokens=20)) for k, p in enumerate(prompts)]
    done = finish(served, 3)
    for k, prompt in enumerate(prompts):
        ids = torch.tensor([prompt + done[tickets[k]].ids])
        with torch.no_grad():
            expected = torch.log_softmax(MODEL(input_ids=ids).logits[0], -1)[len(prompt) - 1 : -1]
        expected = expected.gather(1, ids[0, len(prompt) :, None])[:, 0]
        np.testing.assert_allclose(done[tickets[k]].logprobs, expected, atol=2e-5)


# The noise.


def test_noise_has_the_mean_and_spread_of_gumbel_and_is_always_finite():
    keys = torch.tensor([row_key(0, task, 1, 0) for task in range(50)])
    found = gumbel(keys, torch.arange(50), word_keys(4000, keys.device))
    assert torch.isfinite(found).all()
    assert float(found.mean()) == pytest.approx(0.5772, abs=0.02)
    assert float(found.std()) == pytest.approx(1.2825, abs=0.02)
    # Neighbouring words and positions have nothing to do with each other.
    assert abs(float(torch.corrcoef(torch.stack([found[:, :-1].flatten(), found[:, 1:].flatten()]))[0, 1])) < 0.01
    assert abs(float(torch.corrcoef(found)[~torch.eye(50, dtype=bool)].abs().max())) < 0.1


@pytest.mark.parametrize("hashed", [0, 0xFFFFFFFF])
def test_the_largest_and_the_smallest_noise_are_finite(monkeypatch, hashed):
    """In float32 the last of 2**24 values rounds to 1 and its Gumbel is infinite; 2**23 are used."""
    monkeypatch.setattr(noise, "_mix", lambda x: torch.full_like(x, hashed))
    found = gumbel(torch.tensor([1]), torch.tensor([1]), torch.tensor([1, 2]))
    assert torch.isfinite(found).all()
    assert 2.5 < float(found.abs().max()) < 20


@pytest.mark.parametrize("changed", ["seed", "task", "start_seed", "turn"])
def test_what_is_sampled_changes_with_every_part_of_the_key(changed):
    def sampled(seed=0, task=1, start_seed=2, turn=3):
        served = engine(stops={999}, seed=seed)
        served.submit(request([5, 6, 7], start=Start(task, start_seed), turn=turn, max_tokens=12))
        return finish(served, 1)[0].ids

    assert sampled() == sampled()
    assert sampled(**{changed: 9}) != sampled()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampling_frequencies_follow_the_softmax(temperature):
    served = engine(slots=256, stops=range(300))
    prompt = [5, 6, 7]
    with torch.no_grad():
        logits = MODEL(input_ids=torch.tensor([prompt])).logits[0, -1]
    draws = 8192
    for seed in range(draws):
        served.submit(request(prompt, start=Start(0, seed), max_tokens=1, temperature=temperature))
    found = Counter(completion.ids[0] for completion in finish(served, draws).values())
    expected = torch.softmax(logits / temperature, -1).numpy() * draws
    common = expected >= 5
    observed = np.array([found[token] for token in range(len(expected))])
    observed = np.append(observed[common], observed[~common].sum())
    expected = np.append(expected[common], expected[~common].sum())
    square = ((observed - expected) ** 2 / np.maximum(expected, 1e-9))[expected > 0].sum()
    freedom = len(expected) - 1
    assert square < freedom + 4.5 * np.sqrt(2 * freedom)


def test_an_ending_by_length_is_told_by_the_row():
    episodes = played(episodes=24, limits=TokenLimits(max_turn_tokens=8, max_episode_tokens=120))
    assert {episode.ending for episode in episodes} == {Ending.LENGTH_LIMIT, Ending.ANSWERED}
    for episode in episodes:
        (row,) = episode.rows
        assert row.sampled[-1]
        assert (int(row.ids[-1]) in CHAT.stops) is (episode.ending is Ending.ANSWERED)
