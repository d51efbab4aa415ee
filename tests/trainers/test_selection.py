"""Choosing what to imitate: every rule, its order, and exact counts of what it drops."""

import math
from dataclasses import astuple, replace

import families
import pytest

from palaestra import Attempt, Call, ConfigError, Ending, Episode, Start, Status, Task
from palaestra.record import Record
from palaestra.trainers.data.selection import SCORES, SelectionCounts, best, distinct, select, source_of, succeeded

ENV = "palaestra/TwoHop-v0"


def record(
    *said, task=0, success=1.0, reward=None, source=None, prompt=None, rows=(), seed=0, system=None, tool="Kemu"
):
    """An episode in which an agent said this; `success=None` is BROKEN."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt or f"question {task}"})
    for number, text in enumerate(said):
        messages.append({"role": "assistant", "content": text})
        if number < len(said) - 1:
            messages.append({"role": "tool", "name": "search", "content": tool})
    data = {} if source is None else {"source": source}
    attempt = Attempt(
        Task(messages[0]["content"], data=data), tuple(messages), said[-1] if said else None, (), len(said)
    )
    parts = {} if success is None else {"success": success}
    value = None if success is None else success if reward is None else reward
    ending = Ending.BROKEN if success is None else Ending.ANSWERED
    return Record(ENV, Episode(Start(task, seed), attempt, tuple(rows), ending, value, parts))


def test_every_episode_is_counted_once_by_the_rule_that_dropped_it():
    records = [
        record("a", task=1),
        record("a", task=1, seed=1),  # a duplicate
        record("b", task=1, seed=2, reward=2.0),
        record("c", task=1, seed=3, reward=1.5),  # with top_k 2 beyond: a better one and b come before it ...
        record("d", task=1, seed=4, reward=3.0),
        record("x", task=2, success=0.0),
        record("x", task=2, success=0.99, seed=1),
        record("x", task=2, success=None, seed=2),
        record("e", task=3, source="leet"),
        record("e", task=3, source="leet", seed=1),
        record("f", task=4, source="leet", success=0.5),
    ]
    chosen = select(records, top_k=2)
    assert dict(chosen.by_source) == {
        ENV: SelectionCounts(episodes=8, broken=1, wrong=2, duplicates=1, beyond_top_k=2, selected=2),
        "leet": SelectionCounts(episodes=3, broken=0, wrong=1, duplicates=1, beyond_top_k=0, selected=1),
    }
    assert chosen.counts == SelectionCounts(11, 1, 3, 2, 2, 3)
    assert chosen.records == (records[2], records[4], records[8]), "in the order in which they were given"
    for counts in (*chosen.by_source.values(), chosen.counts):
        played, *rest = astuple(counts)
        assert sum(rest) == played


def test_without_a_limit_all_that_is_right_and_new_is_kept():
    records = [record(str(n % 7), task=n % 7, seed=n) for n in range(50)]
    chosen = select(records)
    assert chosen.records == tuple(records[:7])
    assert chosen.counts == SelectionCounts(50, 0, 0, 43, 0, 7)


def test_nothing_gives_nothing():
    chosen = select([])
    assert (chosen.records, dict(chosen.by_source), chosen.counts) == ((), {}, SelectionCounts())


def test_the_least_success_itself_is_enough():
    records = [record("a", success=value, seed=n) for n, value in enumerate((0.0, 0.5, 0.499, 1.0))]
    assert succeeded(records, 0.5) == [records[1], records[3]]
    assert select(records, least_success=0.0).counts.wrong == 0
    lacking = replace(records[3], episode=replace(records[3].episode, parts={"speed": 1.0}))
    assert succeeded([lacking], 0.0) == []


def test_high_reward_does_not_stand_in_for_success():
    assert select([record("a", success=0.0, reward=9.0)]).counts.wrong == 1


def test_a_duplicate_has_the_same_prompt_and_the_same_turns_whatever_the_tool_said():
    first = record("call", "answer", prompt="p", tool="Kemu")
    assert distinct([first, record("call", "answer", prompt="p", tool="Bado", seed=1)]) == [first]
    others = [
        record("call", "answer", prompt="q"),
        record("call", "answer!", prompt="p"),
        record("answer", "call", prompt="p"),
        record("callanswer", prompt="p"),
        record("call", "answer", prompt="p", system="Be brief."),
    ]
    assert distinct([first, *others]) == [first, *others]


def test_an_earlier_attempt_before_the_prompt_makes_another_dialogue():
    def after(earlier):
        plain = record("answer", prompt="p")
        prefix = ({"role": "assistant", "content": earlier}, {"role": "user", "content": "wrong, again"})
        messages = (plain.episode.attempt.messages[0], *prefix, *plain.episode.attempt.messages[1:])
        return replace(plain, episode=replace(plain.episode, attempt=replace(plain.episode.attempt, messages=messages)))

    records = [record("answer", prompt="p"), after("one"), after("two")]
    assert distinct(records) == records


def test_the_source_is_what_the_task_says_else_the_environment():
    named = record("a")
    for data, source in (
        ({}, ENV),
        ({"source": "s1"}, "s1"),
        ({"data_source": "retool"}, "retool"),
        ({"source": "s1", "data_source": "retool"}, "s1"),
        ({"source": None, "data_source": "retool"}, "retool"),
        ({"source": ""}, ENV),
        ({"source": 3}, "3"),
    ):
        task = replace(named.episode.attempt.task, data=data)
        attempt = replace(named.episode.attempt, task=task)
        assert source_of(replace(named, episode=replace(named.episode, attempt=attempt))) == source


def test_of_equal_scores_the_one_with_fewer_sampled_tokens_is_better_then_the_earlier():
    long, short, other = (
        record(text, task=n, rows=[families.token_row(3, [length])])
        for n, (text, length) in enumerate((("a", 9), ("a long text in few tokens", 4), ("c", 4)))
    )
    assert best([long, short, other], 1) == [short]
    assert best([long, other, short], 1) == [other]
    assert best([long, short, other], 2) == [short, other]


def test_without_tokens_the_shorter_text_is_better():
    wordy, brief = record("a long answer", task=1), record("short", task=2)
    assert best([wordy, brief], 1) == [brief]
    # Letters are compared with letters, even if one of them has tokens.
    tokens = record("longer than short", task=3, rows=[families.token_row(2, [1])])
    assert best([tokens, brief], 1) == [brief]


def test_a_higher_score_is_worth_any_length():
    assert best([record("short", task=1), record("very long", task=2, reward=1.5)], 1)[0].episode.reward == 1.5


def test_the_score_may_be_any_function_of_a_record():
    records = [record(letter, task=n, reward=float(n)) for n, letter in enumerate("abc")]
    chosen = select(records, top_k=1, score=lambda found: -found.episode.start.task)
    assert chosen.records == (records[0],)
    with pytest.raises(ConfigError, match="no number"):
        select(records, top_k=1, score=lambda found: math.nan)


def test_each_source_has_its_own_best():
    records = [record(str(n), task=n, source=f"s{n % 3}", reward=float(n)) for n in range(12)]
    chosen = select(records, top_k=2)
    assert [found.episode.start.task for found in chosen.records] == [6, 7, 8, 9, 10, 11]
    assert all(counts == SelectionCounts(4, 0, 0, 0, 2, 2) for counts in chosen.by_source.values())


def test_records_are_read_once_so_a_generator_will_do():
    assert select(record(str(n), task=n) for n in range(3)).counts.selected == 3


@pytest.mark.parametrize(
    "options", [{"least_success": 1.5}, {"least_success": -0.1}, {"least_success": math.nan}, {"top_k": 0}]
)
def test_rules_that_cannot_be_meant_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        select([], **options)


def test_f19_the_ready_scores_prefer_calls_that_worked_and_few_words():
    def called(*statuses, said):
        made = record(*said, seed=len(said))
        calls = tuple(Call("search", {}, "", status) for status in statuses)
        attempt = replace(made.episode.attempt, calls=calls)
        return replace(made, episode=replace(made.episode, attempt=attempt))

    clean = called(Status.OK, said=("a long way to look it up", "found"))
    torn = called(Status.OK, Status.BAD_CALL, said=("look",))
    silent = called(said=("x",))
    assert best([silent, torn, clean], 1, SCORES["calls-worked"]) == [clean]
    assert best([silent, torn], 1, SCORES["calls-worked"]) == [torn], "no call is none that worked"
    assert best([clean, torn, silent], 1, SCORES["short"]) == [silent]
