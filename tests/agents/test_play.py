"""The one loop: every start is played once, endings are what they should be, and it can be stopped at any point."""

import importlib
from collections import Counter
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace
from typing import NamedTuple

import families
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palaestra import Completion, ConfigError, Ending, Request
from palaestra.agents import Agent, Conversation, TokenLimits, play
from palaestra.agents.policies.table import SeatedEngine


def run(arena, starts, engine=None, **options):
    return list(play(Agent(engine or families.Echo()), arena, starts, **options))


@given(
    slots=st.integers(1, 7),
    count=st.integers(0, 25),
    turns=st.integers(0, 4),
    late=st.integers(0, 3),
    delay=st.integers(0, 3),
    gaps=st.lists(st.booleans(), max_size=40),
)
def test_no_start_is_lost_or_played_twice(slots, count, turns, late, delay, gaps):
    def asked():
        waits = iter(gaps)
        for start in families.starts(count):
            if next(waits, False) and slots < 3:
                yield None
            yield start

    arena = families.Talk(slots, turns, late=late)
    episodes = run(arena, asked(), families.Echo(delay))
    assert Counter(episode.start for episode in episodes) == Counter(families.starts(count))
    assert Counter(arena.begun) == Counter(families.starts(count))
    for episode in episodes:
        assert episode.ending is Ending.ANSWERED
        assert episode.attempt.turns == episode.start.task % (turns + 1) + 1
        said = [message["content"] for message in episode.attempt.messages]
        assert said == [f"turn {turn}" for turn in range(episode.attempt.turns)]


def test_an_arena_may_report_copies_of_the_starts_that_it_was_given():
    """As one does that lives in another process. What it reports of an episode that was dropped is not heard."""

    class Elsewhere(families.Talk):
        def begin(self, slot, start):
            super().begin(slot, replace(start, group=-1))

        def recv(self, *arguments):
            self.rounds = getattr(self, "rounds", 0) + 1
            assert self.rounds < 1000, "nobody hears what it reports"
            return super().recv(*arguments)

    starts = [*families.starts(9), *(families.Start(4, 99, 20, seat) for seat in ("a_0", "b_0"))]
    episodes = run(Elsewhere(3, late=2), starts)
    assert Counter(episode.start for episode in episodes) == Counter(starts), "with the groups that they were given"
    asked, dropped = [*families.starts(4)], []
    arena = Elsewhere(2, turns=3, late=3)
    for episode in play(Agent(families.Echo(2)), arena, asked, still_needed=lambda start: start.task not in dropped):
        dropped.append(3)
        assert episode.start in asked
        assert episode.attempt.task.id == str(episode.start.task)


def test_play_waits_for_the_engine_alone_where_no_event_of_the_arena_can_come(two_hop):
    patience = []

    class Waiting(families.Echo):
        def poll(self, timeout=0.0):
            patience.append(timeout)
            return super().poll(timeout)

    run(two_hop, families.starts(1), Waiting())
    assert patience and min(patience) >= 1.0


def test_a_free_slot_is_refilled_at_once():
    """No barrier: while a long episode runs, its neighbour plays many short ones."""
    arena = families.Talk(2, turns=30)
    starts = [families.Start(30, 0), *(families.Start(0, seed) for seed in range(1, 10))]
    episodes = run(arena, starts)
    assert episodes[-1].start.task == 30
    assert len(episodes) == 10


def test_a_start_is_asked_for_only_when_a_slot_is_free():
    arena, asked = families.Talk(3, turns=2), []

    def starts():
        for start in families.starts(12):
            asked.append(start)
            assert len(arena.live) < 3
            yield start

    for number, _ in enumerate(play(Agent(families.Echo()), arena, starts())):
        assert len(asked) <= number + 4


def test_none_means_nothing_now_and_is_asked_again():
    waits = iter([None] * 3 + families.starts(2) + [None] * 4 + families.starts(3, first=10))
    assert len(run(families.Talk(4), waits)) == 5


def test_the_iterator_may_wait_for_what_was_played():
    """As a sampler does that tops up dead groups."""
    played = []

    def starts():
        yield from families.starts(2)
        while len(played) < 2:
            yield None
        yield from families.starts(2, first=50)

    for episode in play(Agent(families.Echo()), families.Talk(4), starts()):
        played.append(episode.start.task)
    assert sorted(played) == [0, 1, 50, 51]


@pytest.mark.parametrize("delay", [0, 3])
def test_a_group_that_is_not_wanted_is_dropped_and_its_slot_used(delay):
    dropped, arena, engine = set(), families.Talk(2, turns=3), families.Echo(delay)
    starts = [families.Start(3, seed, group=seed % 2) for seed in range(10)]
    episodes = []
    for episode in play(Agent(engine), arena, starts, still_needed=lambda start: start.group not in dropped):
        episodes.append(episode)
        dropped.add(1)
    assert {episode.start.group for episode in episodes[2:]} == {0}
    assert {start.seed for start in starts if start.group == 0} <= {episode.start.seed for episode in episodes}
    assert not engine.waiting


@pytest.mark.parametrize("delay", [0, 5])
def test_closing_the_generator_cancels_what_runs(delay):
    arena, engine = families.Talk(4, turns=3), families.Echo(delay)
    playing = play(Agent(engine), arena, families.starts(100))
    first = list(islice(playing, 3))
    playing.close()
    assert len(first) == 3
    assert not engine.waiting
    assert len(arena.begun) <= 3 + 4
    again = run(arena, families.starts(6), engine)  # The same arena and engine are usable at once.
    assert Counter(episode.start for episode in again) == Counter(families.starts(6))


def test_a_failure_of_the_engine_cancels_what_runs():
    class Failing(families.Echo):
        def poll(self, timeout=0.0):
            if self.polls > 3:
                raise RuntimeError("out of memory")
            return super().poll(timeout)

    engine = Failing(delay=9)
    with pytest.raises(RuntimeError, match="out of memory"):
        run(families.Talk(3), families.starts(9), engine)
    assert sorted(engine.cancelled) == [0, 1, 2]


def test_a_broken_episode_is_tried_once_more():
    arena = families.Talk(3, broken=lambda start, tries: tries == 1 and start.task % 2 == 0)
    episodes = run(arena, families.starts(8))
    assert len(episodes) == 8
    assert all(episode.ending is Ending.ANSWERED and episode.reward is not None for episode in episodes)
    assert {start.task: tries for start, tries in arena.tries.items()} == {task: 2 - task % 2 for task in range(8)}
    for episode in episodes:  # The second try starts from nothing.
        assert episode.attempt.messages[0]["content"] == "turn 0"


def test_an_episode_that_breaks_twice_comes_without_a_reward():
    arena = families.Talk(2, broken=lambda start, tries: start.task == 4)
    episodes = {episode.start.task: episode for episode in run(arena, families.starts(8))}
    assert len(episodes) == 8
    assert episodes[4].ending is Ending.BROKEN
    assert episodes[4].reward is None
    assert episodes[4].fault == "it broke"
    assert max(arena.tries.values()) == 2


class Babble:
    """An engine of ids: `length` tokens a turn, ended by a stop unless there is no room for it."""

    def __init__(self, chat, length):
        self.chat, self.length, self.ready, self.asked = chat, length, [], []
        self.letter = chat.tokenizer.encode("word", add_special_tokens=False)[0]

    def submit(self, request: Request) -> int:
        self.asked.append(request.max_tokens)
        ids = ([self.letter] * (self.length - 1) + [self.chat.end_of_turn])[: request.max_tokens]
        cut = ids[-1] != self.chat.end_of_turn
        self.ready.append(Completion(len(self.asked), ids, [-1.0] * len(ids), [0] * len(ids), cut=cut))
        return len(self.asked)

    def poll(self, timeout=0.0):
        done, self.ready = self.ready, []
        return done

    def cancel(self, ticket):
        self.ready = []

    def close(self):
        pass


CHAT = families.chat("qwen2.5")


def test_f16_a_turn_that_is_cut_ends_its_episode_and_is_no_answer():
    arena = families.Talk(3)
    episodes = list(play(Agent(Babble(CHAT, 20), CHAT), arena, families.starts(6), limits=TokenLimits(9)))
    for episode in episodes:
        assert episode.ending is Ending.LENGTH_LIMIT
        assert episode.sampled_tokens == 9
        assert episode.rows[0].sampled[-1]
    assert {ending for _, ending, _ in arena.finished} == {Ending.LENGTH_LIMIT}
    assert all(text.startswith("w") for _, _, text in arena.finished), "what was said before the cut is recorded"


def opening_length():
    arena = families.Talk(1)
    arena.begin(0, families.Start(3, 0))
    (event,) = arena.recv()
    talk = Conversation(CHAT, event.messages, event.tools)
    return len(talk.ids), event


@pytest.mark.parametrize("spare", range(1, 60, 4))
def test_f16_a_row_never_outgrows_its_budget_and_ends_on_a_token_the_agent_chose(spare):
    """A tool result that does not fit is not appended."""
    prompt, _ = opening_length()
    engine = Babble(CHAT, 5)
    limits = TokenLimits(max_turn_tokens=7, max_episode_tokens=prompt + spare)
    (episode,) = play(Agent(engine, CHAT), families.Talk(1), [families.Start(3, 0)], limits=limits)
    (row,) = episode.rows
    assert len(row) <= prompt + spare
    assert row.sampled[-1]
    assert min(engine.asked) >= 1
    assert episode.ending is Ending.LENGTH_LIMIT


def test_a_budget_that_is_just_enough_is_enough():
    (whole,) = play(Agent(Babble(CHAT, 5), CHAT), families.Talk(1), [families.Start(3, 0)])
    assert whole.ending is Ending.ANSWERED
    for length, ending in ((len(whole.rows[0]), Ending.ANSWERED), (len(whole.rows[0]) - 1, Ending.LENGTH_LIMIT)):
        limits = TokenLimits(max_turn_tokens=5, max_episode_tokens=length)
        (episode,) = play(Agent(Babble(CHAT, 5), CHAT), families.Talk(1), [families.Start(3, 0)], limits=limits)
        assert episode.ending is ending


def test_a_prompt_that_does_not_fit_ends_before_the_agent_speaks():
    prompt, _ = opening_length()
    engine = Babble(CHAT, 5)
    limits = TokenLimits(max_turn_tokens=5, max_episode_tokens=prompt)
    (episode,) = play(Agent(engine, CHAT), families.Talk(1), [families.Start(3, 0)], limits=limits)
    assert episode.ending is Ending.LENGTH_LIMIT
    assert episode.sampled_tokens == 0
    assert engine.asked == []


@pytest.mark.parametrize(("turn", "episode"), [(0, 10), (-1, 10), (5, 1)])
def test_limits_that_allow_nothing_are_refused(turn, episode):
    with pytest.raises(ConfigError, match="max_turn_tokens"):
        TokenLimits(turn, episode)


def test_a_text_agent_with_a_chat_has_rows_whose_log_probs_are_zero():
    episodes = list(play(Agent(families.Echo(), CHAT), families.Talk(2), families.starts(6)))
    for episode in episodes:
        (row,) = episode.rows
        assert (row.logprobs == 0).all()
        said = "".join(f"turn {turn}<|im_end|>" for turn in range(episode.attempt.turns))
        assert CHAT.tokenizer.decode(row.ids[row.sampled].tolist()) == said


def test_a_rewriting_template_is_seen_in_the_rows():
    """Thinking that a user turn strips: the episode has more rows, and each of them ends on what the agent said."""

    class Thinker(families.Echo):
        def submit(self, request):
            ticket = super().submit(request)
            self.waiting[ticket][1] = "<think>\nmusing\n</think>\n\nword"
            return ticket

    chat = families.chat("qwen3")
    for kind, rows in (("user", 4), ("tool", 1)):
        arena = families.Talk(1, kind=kind)
        (episode,) = play(Agent(Thinker(), chat), arena, [families.Start(3, 0)])
        assert len(episode.rows) == rows
        assert all(row.sampled[-1] for row in episode.rows)
        spoken = "".join(chat.tokenizer.decode(row.ids[row.sampled].tolist()) for row in episode.rows)
        assert spoken.count("musing") == 4


def test_a_slow_engine_and_a_slow_arena_take_turns():
    """Neither waits for the other to finish: both get short waits while the other has work out, and work overlaps."""
    waits = {"engine": [], "arena": []}

    class Remote(families.Echo):
        def poll(self, timeout=0.0):
            waits["engine"].append((timeout, len(arena.live) > len(self.waiting)))
            return super().poll(timeout)

    class Slow(families.Talk):
        def recv(self, min_ready=1, timeout=None):
            waits["arena"].append((min_ready, timeout, bool(engine.waiting)))
            return super().recv(min_ready, timeout)

    arena, engine = Slow(4, turns=3, late=5), Remote(delay=4)
    assert len(list(play(Agent(engine), arena, families.starts(12)))) == 12
    assert all(timeout <= 0.01 for timeout, busy in waits["engine"] if busy)
    assert any(timeout >= 0.1 for timeout, busy in waits["engine"] if not busy)
    busy_waits = [timeout for _, timeout, busy in waits["arena"] if busy]
    assert max(busy_waits) <= 0.01
    assert busy_waits.count(0.0) > len(busy_waits) / 2, "a slow arena is waited for seldom while there is work"
    assert all(0 < timeout <= 0.1 for _, timeout, busy in waits["arena"] if not busy)


def test_rows_whose_tools_are_quick_are_decoded_together():
    """All that is outstanding is asked for at once, so that no step is spent on one row of many."""
    asked = []

    class Quick(families.Talk):
        def recv(self, min_ready=1, timeout=None):
            asked.append(min_ready)
            return super().recv(min_ready, timeout)

    assert len(list(play(Agent(families.Echo()), Quick(4), families.starts(4)))) == 4
    assert asked[0] == 4


def test_an_ordered_arena_is_waited_for_even_while_the_engine_has_work():
    """What is decoded together then depends on no clock."""
    empty_handed = []

    class Barrier(families.Talk):
        def recv(self, min_ready=1, timeout=None):
            events = super().recv(min_ready, timeout)
            empty_handed.append(not events)
            return events

    class Watched(families.Echo):
        def poll(self, timeout=0.0):
            assert not (empty_handed and empty_handed[-1]), "the engine went on before the barrier had come down"
            return super().poll(timeout)

    arena = Barrier(4, turns=3, late=5)
    arena.ordered = True
    assert len(list(play(Agent(Watched(delay=4)), arena, families.starts(12)))) == 12
    assert any(empty_handed)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("names", [True, False])
def test_while_tools_are_waited_for_the_log_says_at_intervals_for_which(monkeypatch, caplog, ordered, names):
    """By a clock on which each look at the arena takes six seconds: every second look makes a line."""
    now, looks = [0.0], []

    class Slow(families.Talk):
        def recv(self, min_ready=1, timeout=None):
            now[0] += 6.0
            looks.append(len(caplog.messages))
            return super().recv(min_ready, timeout)

    class Stalled(NamedTuple):
        seconds: int

        def __str__(self):
            return f"search() has run {self.seconds} s"

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: None)
    monkeypatch.setattr(importlib.import_module("palaestra.agents.play"), "time", clock)
    arena = Slow(2, turns=0, late=6)
    arena.ordered = ordered
    if names:
        arena.stalls = lambda share: [Stalled(at) for at in (1, 5, 3, 4)]
    assert len(list(play(Agent(families.Echo()), arena, families.starts(2)))) == 2
    assert len(looks) >= 14 and looks == [at // 2 for at in range(len(looks))]
    line = "play has waited 12 s for tools and environments of 2 of 2 episodes"
    slowest = "".join(f"; search() has run {at} s" for at in (5, 4, 3)) + "; and 1 more calls"
    assert set(caplog.messages) == {line + slowest if names else line}


@pytest.mark.parametrize("seats", [False, True])
def test_while_a_server_or_scores_are_waited_for_the_log_says_so_too(monkeypatch, caplog, seats):
    now, undecided = [0.0], [None] * 3

    class Server(families.Echo):
        remote = True

        def poll(self, timeout=0.0):
            now[0] += 6.0
            return super().poll(timeout)

    def sleep(seconds):
        now[0] += 6.0

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(importlib.import_module("palaestra.agents.play"), "time", clock)
    engine = Server(delay=4)
    agent = Agent(SeatedEngine({"one": engine}) if seats else engine)
    starts = (start and replace(start, seat="one") if seats else start for start in [*undecided, *families.starts(1)])
    assert len(list(play(agent, families.Talk(1), starts))) == 1
    assert caplog.messages[0] == "play has waited 12 s for the scores of earlier episodes"
    assert caplog.messages[1].endswith(" s for the model's answers in 1 of 1 episodes")
