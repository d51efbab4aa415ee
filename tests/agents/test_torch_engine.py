"""The built-in engine samples from the model it was given, and from nothing else: not from caches, slots or company."""

import copy
from itertools import count, pairwise

import families
import numpy as np
import pytest
import torch
from made_tensors import Made

from palaestra import Request, Start, UsageError
from palaestra.agents import Agent, TokenLimits, play
from palaestra.agents.engines import sampling
from palaestra.agents.engines.noise import row_key, uniform
from palaestra.agents.engines.sampling import SamplingSettings, sample
from palaestra.agents.engines.slots import SlotCache
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


MODELS = [*(("tiny", family) for family in ("tiny", "qwen2.5")), *(("llama", family) for family in families.TOKENIZERS)]
MODELS += [("qwen2", "qwen2.5"), ("qwen3", "qwen3")]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(("name", "family"), MODELS)
def test_log_probs_are_those_of_a_fresh_forward_pass_under_every_template(name, family, temperature):
    """Also of grouped heads and of an output layer that is not tied."""
    chat = talkative(family)
    size = len(chat.tokenizer)
    model = tiny_model(size, layers=2, seed=1) if name == "tiny" else families.stock_model(name, size)
    episodes = played(model, chat, episodes=12, temperature=temperature)
    rows = [row for episode in episodes for row in episode.rows]
    gaps = [families.fresh_logprobs(model, row, temperature) - row.logprobs[row.sampled] for row in rows]
    assert max(np.abs(gap).max() for gap in gaps) < 2e-5
    assert max(len(episode.attempt.messages) for episode in episodes) > 2, "no episode had several turns"


def test_a_decode_step_reads_keys_that_heads_share_without_a_copy_of_them():
    """transformers below 5.23 repeated them for each head, which took several times the memory and the time."""
    model = families.stock_model("qwen3", 400)
    config = model.config
    assert config.num_attention_heads >= 2 * config.num_key_value_heads
    served, rows, length = engine(model, slots=4, stops=()), 4, 500
    for row in range(rows):
        served.submit(request([row + 1] * length))
    served.poll()
    with Made() as made:
        served.poll()
    keys = rows * config.num_key_value_heads * length * config.head_dim * torch.float32.itemsize
    assert 0 < made.largest < keys / 2


@pytest.mark.parametrize("slots", [1, 3, 32])
def test_slots_do_not_change_what_is_sampled(slots):
    assert ids_of(played(slots=slots)) == ids_of(played(slots=8))


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


def test_new_weights_in_the_middle_of_a_turn_read_all_of_it_anew():
    first, second = tiny_model(300, layers=2, seed=1), tiny_model(300, layers=2, seed=2)
    served, fresh = engine(first, stops=[]), engine(second, stops=[])
    served.submit(request([5, 6, 7]))
    for _ in range(3):
        assert served.poll() == []
    served.update_weights(second.named_parameters(), version=1)
    (done,) = finish(served, 1).values()
    assert done.versions == [0] * 3 + [1] * 5
    fresh.submit(request([5, 6, 7, *done.ids[:3]], max_tokens=5))
    (expected,) = finish(fresh, 1).values()
    assert done.ids[3:] == expected.ids
    np.testing.assert_allclose(done.logprobs[3:], expected.logprobs, atol=2e-5)


def test_a_model_with_windows_is_refused():
    model = copy.deepcopy(MODEL)
    model.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(UsageError, match="sliding_attention"):
        engine(model)


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


def test_noise_is_uniform_and_neighbours_have_nothing_to_do_with_each_other():
    keys = torch.tensor([row_key(0, task, 1, 0) for task in range(64)])
    found = torch.stack([uniform(keys, torch.full_like(keys, position)) for position in range(2000)])
    assert found.dtype == torch.float64
    assert 0 < found.min() < 1e-3 < 1 - 1e-3 < found.max() < 1
    counts = torch.histc(found, 100, 0, 1)
    assert float(((counts - counts.mean()) ** 2 / counts.mean()).sum()) < 99 + 4.5 * (2 * 99) ** 0.5
    between_positions = torch.corrcoef(torch.stack([found[:-1].flatten(), found[1:].flatten()]))[0, 1]
    assert abs(float(between_positions)) < 0.01
    assert float(torch.corrcoef(found.T)[~torch.eye(64, dtype=bool)].abs().max()) < 0.12


@pytest.mark.parametrize("words", [5, 511, 512, 513, 151_936])
@pytest.mark.parametrize("number", [2.0**-49, 0.5, 1 - 2.0**-49])
def test_the_smallest_and_the_largest_number_hit_a_word_that_can_be_said(monkeypatch, words, number):
    """Sums of float32 blocks round; a number at the end of one must not fall out of it, nor on a word left out."""
    monkeypatch.setattr(sampling, "uniform", lambda keys, _: torch.full(keys.shape, number, dtype=torch.float64))
    logits = torch.randn(4, words, generator=torch.Generator().manual_seed(words)) * 3
    logits[:, [0, -1]] = -torch.inf
    settings = SamplingSettings.of([0] * 4, [None] * 4, logits.device)
    for truncated in (False, True):
        found, logprobs = sample(logits, torch.zeros(4, dtype=int), settings, greedy=False, truncated=truncated)
        assert torch.isfinite(logprobs).all()
        torch.testing.assert_close(logprobs, torch.log_softmax(logits, -1).gather(1, found[:, None])[:, 0])


def test_sampling_from_a_large_vocabulary_follows_the_softmax():
    """Words of a vocabulary like Qwen's, counted in 40 groups of equal probability, of which many words are tiny."""
    words, draws = 151_936, 600
    logits = torch.randn(words, generator=torch.Generator().manual_seed(1)) * 4
    ends = torch.softmax(logits.double(), 0).cumsum(0)
    group = (ends * 40).long().clamp(max=39)
    expected = torch.zeros(40, dtype=torch.float64).index_add_(0, group, torch.softmax(logits.double(), 0)) * draws
    observed = torch.zeros(40, dtype=torch.float64)
    for part in torch.arange(draws).split(20):
        settings = SamplingSettings.of([row_key(0, int(n), 0, 0) for n in part], [None] * 20, logits.device)
        found, _ = sample(logits.expand(20, -1), part, settings, greedy=False, truncated=False)
        observed += torch.bincount(group[found], minlength=40)
    full = expected > 5
    square = float(((observed - expected) ** 2 / expected)[full].sum())
    assert square < int(full.sum()) + 4.5 * (2 * int(full.sum())) ** 0.5


@pytest.mark.parametrize("trains", [True, False])
def test_modes_of_the_model_are_not_the_engine_s_affair(trains):
    """A trainer switches them for its pass; the engine answers without dropout in any, and leaves them as they are."""
    model = copy.deepcopy(MODEL)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    model.train(trains)
    model.model.norm.training = not trains
    before = [module.training for module in model.modules()]
    served = engine(model)
    ticket = served.submit(request([5, 6, 7]))
    done = finish(served, 1)[ticket]
    assert [module.training for module in model.modules()] == before
    alone = engine(MODEL)
    alone.submit(request([5, 6, 7]))
    assert done.ids == finish(alone, 1)[0].ids


# Memory.


@pytest.mark.parametrize("cache_tokens", [260, 640, 1200])
def test_a_cache_of_few_tokens_holds_no_more_and_every_turn_is_answered_as_in_a_large_one(cache_tokens):
    """Rows of very different lengths that outgrow it: some are put back and begin anew, with the same words."""
    requests = [
        request([1 + (n * k) % 250 for k in range(length)], start=Start(n, 7), max_tokens=60)
        for n, length in enumerate([5, 150, 20, 30, 8, 190, 5, 70, 9, 30, 12, 40])
    ]
    found, most = {}, {}
    for tokens in (cache_tokens, None):
        served = engine(slots=8, stops={999}, cache_tokens=tokens)
        tickets = [served.submit(one) for one in requests]
        done, most[tokens] = {}, 0
        while len(done) < len(tickets):
            done |= {completion.ticket: completion for completion in served.poll()}
            most[tokens] = max(most[tokens], served.held_bytes)
        found[tokens] = [done[ticket] for ticket in tickets]
    token_bytes = 2 * 2 * 4 * 16 * 4
    assert most[cache_tokens] <= cache_tokens * token_bytes < most[None]
    for few, many in zip(found[cache_tokens], found[None], strict=True):
        assert few.ids == many.ids
        np.testing.assert_allclose(few.logprobs, many.logprobs, atol=2e-5)


def test_a_row_that_grows_to_8192_tokens_copies_a_bounded_cache_some_times_an_octave():
    """On the meta device: only the sizes are computed."""
    config = families.stock_model("qwen3", 60).config
    cache, sizes = SlotCache(config, 1024, torch.float32, torch.device("meta"), 272_384), []
    for length in range(1, 8192):
        size = cache.size_for(length, 1)
        if size != (cache.places, cache.room):
            cache.resize(*size)
            sizes.append(size)
    assert len(sizes) < 40
    assert all(places * room <= 272_384 for places, room in sizes)
    assert all(later[1] <= 1.3 * former[1] + 64 for former, later in pairwise(sizes) if former[1] >= 512)


def test_when_a_long_row_has_ended_short_ones_have_its_place():
    served = engine(slots=8, stops={999}, cache_tokens=512)
    served.submit(request([1 + n % 200 for n in range(300)], max_tokens=4))
    for n in range(12):
        served.submit(request([5, 6, 7 + n], max_tokens=30))
    widths = []
    for _ in range(30):
        before = served.sampled
        served.poll()
        widths.append(served.sampled - before)
    assert widths[0] == 1
    assert max(widths) >= 8


def test_a_row_that_can_never_fit_is_refused_in_words():
    with pytest.raises(UsageError, match="cache_tokens is 64"):
        engine(cache_tokens=64).submit(request(list(range(1, 61)), max_tokens=4))
    engine(cache_tokens=64).submit(request(list(range(1, 60)), max_tokens=4))


@pytest.mark.parametrize("changed", ["seed", "task", "start_seed", "turn"])
def test_what_is_sampled_changes_with_every_part_of_the_key(changed):
    def sampled(seed=0, task=1, start_seed=2, turn=3):
        served = engine(stops={999}, seed=seed)
        served.submit(request([5, 6, 7], start=Start(task, start_seed), turn=turn, max_tokens=12))
        return finish(served, 1)[0].ids

    assert sampled() == sampled()
    assert sampled(**{changed: 9}) != sampled()
