"""The engine computes nothing twice and nothing for idle rows; and whatever it shares, moves or drops, the answers are
those of the model alone."""

import copy
from itertools import count

import numpy as np
import pytest
import torch

from palaestra import Request, Start
from palaestra.agents.engines.rows import common
from palaestra.agents.engines.torch_engine import TorchEngine
from palaestra.agents.policies.tiny import tiny_model

VOCABULARY = 300
MODEL = tiny_model(VOCABULARY, layers=2, seed=1)
rows_used = count(20_000_000)


def text(length, seed=0):
    return np.random.default_rng([length, seed]).integers(1, VOCABULARY, length).tolist()


def request(ids, *, seed=0, task=0, turn=0, max_tokens=8, temperature=1.0, row=None):
    row = next(rows_used) if row is None else row
    return Request(row, Start(task, seed), turn, (), (), ids, max_tokens, temperature)


def finish(served, wanted):
    done = {}
    for _ in range(3000):
        for completion in served.poll():
            done[completion.ticket] = completion
        if len(done) >= wanted:
            return done
    raise AssertionError("the engine never finished")


def alone(asked, model=MODEL):
    served = TorchEngine(model, (), slots=1)
    served.submit(asked)
    return finish(served, 1)[0]


def fresh_logprobs(ids, said, temperature=1.0, model=MODEL):
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids + list(said)])).logits[0].float() / temperature
    return torch.log_softmax(logits, -1)[len(ids) - 1 : -1].gather(1, torch.tensor(said)[:, None])[:, 0].numpy()


class Watched(TorchEngine):
    """Notes the shape of every pass: rows, tokens a row, positions attended to."""

    def __init__(self, model=MODEL, **options):
        super().__init__(model, (), **options)
        self.passes = []

    def _forward(self, ids, positions, places, span):
        self.passes.append((*ids.shape, span))
        return super()._forward(ids, positions, places, span)

    @property
    def computed(self):
        return sum(rows * tokens for rows, tokens, _ in self.passes)


# What is shared.


def test_a_prompt_is_computed_once_for_its_whole_group():
    served = Watched(slots=16)
    prompts = [text(50, group) for group in range(2)]
    asked = [request(prompts[n // 8], task=n // 8, seed=n, temperature=1.0 if n % 2 else 0.6) for n in range(16)]
    for one in asked:
        served.submit(one)
    served.poll()
    assert served.passes == [(2, 50, 50)]
    for ticket, done in finish(served, 16).items():
        assert done.ids == alone(asked[ticket]).ids
        np.testing.assert_allclose(done.logprobs, alone(asked[ticket]).logprobs, atol=2e-5)


@pytest.mark.parametrize("running", [True, False])
def test_a_rollout_that_comes_later_copies_the_prompt_from_whoever_holds_it(running):
    served = Watched(slots=3)
    prompt = text(60)
    served.submit(request(prompt, seed=1, max_tokens=30 if running else 1))
    served.poll()
    served.passes.clear()
    late = [request(prompt, seed=seed) for seed in (2, 3)]
    tickets = [served.submit(one) for one in late]
    served.poll()
    assert [shape[:2] for shape in served.passes] == [(3 if running else 1, 1), (1, 1)][0 if running else 1 :]
    done = finish(served, 2)
    for ticket, one in zip(tickets, late, strict=True):
        assert done[ticket].ids == alone(one).ids


def test_prompts_that_begin_alike_are_computed_from_where_they_differ():
    served = Watched(slots=12)
    system = text(100)
    asked = [request(system + text(10, task), task=task, seed=n) for task in range(1, 5) for n in range(3)]
    for one in asked:
        served.submit(one)
    served.poll()
    assert served.passes == [(1, 110, 110), (3, 10, 110)]
    for ticket, done in finish(served, 12).items():
        assert done.ids == alone(asked[ticket]).ids


def test_a_short_common_beginning_is_not_waited_for():
    served = Watched(slots=4)
    for task in range(1, 5):
        served.submit(request(text(6) + text(40, task), task=task))
    served.poll()
    assert served.passes == [(4, 46, 46)]


def test_two_rows_may_take_each_other_s_place_and_copy_what_lay_there():
    """Both places are given away; each holds what the newcomer in the other begins with."""
    served = Watched(slots=2)
    first, second = text(70, 1), text(70, 2)
    for prompt in (first, second):
        served.submit(request(prompt, max_tokens=1))
    finish(served, 2)
    served.passes.clear()
    asked = [request([*second, 3, 4], seed=5), request([*first, 5, 6], seed=6)]
    tickets = [served.submit(one) for one in asked]
    served.poll()
    assert served.passes == [(2, 2, 72)]
    done = finish(served, 2)
    assert [done[ticket].ids for ticket in tickets] == [alone(one).ids for one in asked]


def test_a_turn_costs_what_it_adds_though_its_row_was_moved():
    """Row 3 waits for its tool while the others end, are moved together and go on."""
    served = Watched(slots=8)
    turns = {
        row: request(text(20, row), row=row, max_tokens=4 if row == 3 else 30 if row > 5 else 6) for row in range(8)
    }
    tickets = {row: served.submit(turns[row]) for row in turns}
    done = {}
    while len(done) < 6:
        done |= {completion.ticket: completion for completion in served.poll()}
    for _ in range(3):
        served.poll()
    for row in (3, 1):
        served.passes.clear()
        ids = [*turns[row].ids, *done[tickets[row]].ids, 7, 8, 9]
        again = served.submit(request(ids, row=row, turn=1, max_tokens=5))
        found = finish(served, 1)
        assert served.passes[1][:2] == (1, 4), "one token that was never fed, and three that are new"
        np.testing.assert_allclose(found[again].logprobs, fresh_logprobs(ids, found[again].ids), atol=2e-5)


# What is not computed.


def test_a_decode_step_is_as_wide_as_rows_run_and_spans_the_longest_of_them():
    served = Watched(slots=32)
    served.submit(request(text(200), max_tokens=3))
    for row in range(1, 20):
        served.submit(request(text(10, row), task=row, max_tokens=3 + row))
    widths, spans = [], []
    for _ in range(22):
        served.passes.clear()
        served.poll()
        decode = [shape for shape in served.passes if shape[1] == 1]
        widths += [rows for rows, _, _ in decode]
        spans += [span for _, _, span in decode]
    assert widths == [-(-left // 4) * 4 for left in (20, 20, *range(19, 0, -1))]
    assert spans[0] > 200
    assert max(spans[2:]) <= 10 + 22


# What must not matter.


@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_and_goes_every_answer_is_the_model_s(seed):
    """Random work: common beginnings, later turns, cancelled turns, rewritten rows, weights in mid-flight."""
    rng = np.random.default_rng(seed)
    served = TorchEngine(MODEL, range(0, VOCABULARY, 25), slots=int(rng.integers(1, 9)), seed=seed)
    systems = [text(int(rng.integers(1, 70)), 100 + n) for n in range(3)]
    prompts = [systems[n % 3] + text(int(rng.integers(1, 12)), n) for n in range(7)]
    open_turns, idle, answered = {}, [], 0
    for step in range(220):
        for _ in range(int(rng.integers(0, 3)) if step < 130 else 0):
            if idle and rng.random() < 0.6:
                row, ids, turn = idle.pop(int(rng.integers(len(idle))))
                ids = ids[: int(rng.integers(1, len(ids) + 1))] if rng.random() < 0.1 else ids
            else:
                row, ids, turn = next(rows_used), prompts[int(rng.integers(7))], 0
            ids = ids + text(int(rng.integers(0, 9)), step) if turn else ids
            temperature = float(rng.choice([0.0, 0.7, 1.0]))
            asked = request(
                ids, row=row, seed=row, turn=turn, max_tokens=int(rng.integers(1, 14)), temperature=temperature
            )
            open_turns[served.submit(asked)] = asked
        if open_turns and rng.random() < 0.05:
            ticket = int(rng.choice(list(open_turns)))
            served.cancel(ticket)
            del open_turns[ticket]
        if rng.random() < 0.03:
            served.update_weights([(n, p.clone()) for n, p in MODEL.named_parameters()], version=step)
        for done in served.poll():
            asked = open_turns.pop(done.ticket)
            expected = fresh_logprobs(asked.ids, done.ids, asked.temperature or 1.0)
            np.testing.assert_allclose(done.logprobs, expected, atol=2e-5)
            idle.append((asked.row, [*asked.ids, *done.ids], asked.turn + 1))
            answered += 1
            if answered % 5 == 0:
                assert alone_with(asked, served).ids == done.ids
    assert not open_turns
    assert answered > 40


def alone_with(asked, served):
    other = TorchEngine(MODEL, range(0, VOCABULARY, 25), slots=1, seed=served.seed)
    other.submit(asked)
    return finish(other, 1)[0]


def work(first_row):
    """Two turns of groups that share prompts, over fewer slots than rows."""
    return [
        request(text(30 + 9 * (n // 4), n // 4), row=first_row + n, seed=n, task=n // 4, max_tokens=3 + n % 7)
        for n in range(24)
    ]


def played_twice(served, first_row):
    """Everything that two turns of the work gave, in order of tickets."""
    found = []
    asked = work(first_row)
    for _ in range(2):
        tickets = [served.submit(one) for one in asked]
        done = finish(served, len(asked))
        found += [(done[ticket].ids, done[ticket].logprobs) for ticket in tickets]
        asked = [
            request([*one.ids, *done[ticket].ids, 9, 8], row=one.row, seed=one.start.seed, task=one.start.task, turn=1)
            for one, ticket in zip(asked, tickets, strict=True)
        ]
    return found


def test_the_same_work_gives_the_same_bits():
    assert played_twice(TorchEngine(MODEL, (), slots=10), 0) == played_twice(TorchEngine(MODEL, (), slots=10), 500)


@pytest.mark.parametrize("diverged", [False, True])
def test_after_new_weights_the_engine_is_as_new_to_the_last_bit(diverged):
    """So that a run which goes on in another process, with an engine that never played, stays the same run."""
    old = tiny_model(VOCABULARY, layers=2, seed=2)
    served = TorchEngine(old, (), slots=10)
    if diverged:
        for layer in old.model.layers:
            layer.self_attn.v_proj.weight.data.fill_(float("inf"))
    played_twice(served, 900)
    prompts = [text(150), *(one.ids for one in work(0)[::4])]
    tickets = [served.submit(request(ids, row=row, max_tokens=5 + 4 * row)) for row, ids in enumerate(prompts)]
    for _ in range(9):
        served.poll()
    served.cancel(tickets[4])
    finish(served, len(prompts) - 3)
    served.update_weights(MODEL.named_parameters(), version=1)
    assert played_twice(served, 0) == played_twice(TorchEngine(copy.deepcopy(MODEL), (), slots=10), 700)


def test_a_pass_that_fails_leaves_no_place_that_claims_what_it_does_not_hold():
    """The rows would copy crosswise: when the pass fails, each place already holds the other's prompt."""
    served = TorchEngine(MODEL, (), slots=2)
    first, second = text(50, 1), text(50, 2)
    for prompt in (first, second):
        served.submit(request(prompt, max_tokens=1))
    finish(served, 2)
    forward = served._forward

    def fails(*_):
        raise RuntimeError("out of memory")

    served._forward = fails
    asked = [request(second + text(20, 3), seed=3), request(first + text(20, 4), seed=4)]
    tickets = [served.submit(one) for one in asked]
    with pytest.raises(RuntimeError, match="out of memory"):
        served.poll()
    served._forward = forward
    done = finish(served, 2)
    assert [done[ticket].ids for ticket in tickets] == [alone(one).ids for one in asked]


# The prefix.


def test_the_common_prefix_is_that_of_the_naive_count():
    rng = np.random.default_rng(0)
    for _ in range(500):
        held = rng.integers(0, 3, rng.integers(0, 12)).tolist()
        wanted = (held[: rng.integers(0, 12)] + rng.integers(0, 3, rng.integers(1, 6)).tolist())[:12]
        naive = 0
        while naive < min(len(held), len(wanted) - 1) and held[naive] == wanted[naive]:
            naive += 1
        assert common(held, wanted) == naive
