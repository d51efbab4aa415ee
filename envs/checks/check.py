"""`palaestra check ID`: is this environment, or game, fit to train on?

Each check is a function of a Subject, the environment: it raises if the environment fails it. Most checks test each
seat in turn, while rules play the other seats; an environment with one seat is taken as a game of one. Left out:
anything that needs a model, and whether the rewards of a game make its seats play well together, which only training
shows.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from palaestra import formats
from palaestra.envs.checks import answers_in_prompts, contracts, reward_checks, task_checks, tool_checks
from palaestra.envs.checks.at_once import (
    alone,
    demonstrated,
    is_spared,
    judge_answer,
    left_alone,
    play_together,
    together,
)
from palaestra.envs.checks.findings import (
    HOSTILE,
    CheckFinding,
    Noted,
    Skipped,
    measure,
    require,
    require_same,
)
from palaestra.envs.checks.first_episode import an_episode_begins_and_ends
from palaestra.envs.checks.fixed_script import scripted
from palaestra.envs.checks.holdups import others_are_never_held_up
from palaestra.envs.checks.settings import require_given, require_known, require_told
from palaestra.envs.checks.state_left_behind import changed, living
from palaestra.envs.checks.trials import MIN_EPISODES, Subject
from palaestra.envs.core.author import ToolEnv
from palaestra.envs.harness import Harness
from palaestra.episode import Ending, Event, Message
from palaestra.errors import MissingExtra, UsageError

DEMONSTRATED = 0.9
GAME_SECONDS = 3.0
"""Seconds that a whole scripted game may take where no tool waits: all other games wait for its steps."""
_FAILED = "Error: the environment failed on this turn"
"""Start of the message for an exception in a foreign environment's `step` (`envs.arena.foreign`)."""


def check(
    env_id: str, options: Mapping[str, object] | None = None, on_check: Callable[[str], None] = lambda name: None
) -> list[CheckFinding]:
    """Run every check and return the findings; the message of a failed one says what to change. `on_check` is called
    with the name of each check before it runs.

    `options` go to the environment's constructor. Raise an error if the environment cannot be opened because of them,
    or because an extra is missing.
    """
    subject = Subject(env_id, options)
    seats = subject.seats  # Before any check: all of them would fail where it cannot be loaded or played.
    if subject.entry_point is None:
        return measure(FOREIGN_CHECKS, subject, on_check)
    with contextlib.closing(subject.chairs()) as chairs:
        chair = None
        try:
            chair = next(chairs)
            left_alone(subject, chair)
        except Exception as error:  # The checks report any other fault of the environment.
            refused = isinstance(error, MissingExtra) or (options and isinstance(error, UsageError))
            if refused and not (chair and chair.messages):  # No episode has begun.
                raise
    left_out = OF_ONE_SEAT if len(seats) > 1 else OF_GAMES
    checks = {name: function for name, function in CHECKS.items() if function not in left_out}
    return measure(checks, subject, on_check)


def settings_are_known(subject: Subject) -> None:
    """Require that no attribute of the class is a misspelt setting, and that every tool of a game belongs to a seat."""
    with subject.opened() as machine:
        settings = [name for name in ToolEnv.__annotations__ if not name.startswith("_") and name != "problem"]
        require_known(type(machine.spec.author), ToolEnv, settings)
        require_given(machine.spec)


def tool_schemas(subject: Subject) -> None:
    """Require that every tool of every seat has a description, a name that models can call, and typed parameters."""
    with subject.opened() as machine:
        for seat, offer in machine.spec.offers.items():
            for tool in offer.table.values():
                require_told(tool, "" if seat is None else f" of {seat}")


def determinism(subject: Subject) -> None:
    """Require that the same task, seed and turns give the same episode, even after another episode was played."""
    notes = []
    for chair in subject.chairs():
        spared = is_spared(subject, chair)
        rule = None if spared else subject.rule  # If spared, `arena_equals_single` compares the play by rule.
        chair.let_last(spared)
        chair.begin(3, 5)
        before = living(chair.machine)
        first = scripted(chair, rule, 3, 5)
        chair.let_last(False)
        if spared and not subject.alone:
            alone(subject, chair)
        else:
            chair.begin(4, 6)
            scripted(chair, rule, 4, 6)
        chair.let_last(spared)
        chair.begin(3, 5)
        left = list(changed(before, living(chair.machine)))
        again = scripted(chair, rule, 3, 5)
        culprit = f"{left[0][0]} has changed, and lives on: {left[0][1]}" if left else (
            "take randomness from self.rng, and in task and rounds from rng, only"
        )  # fmt: skip
        require_same(first, again, "", f"one script{chair.of} is played differently after another episode", culprit)
        notes += [name for name, _ in left if name.startswith("self.")]
    if notes:
        raise Noted(
            f"{notes[0]}, which __init__ made, is changed by an episode and shared by all; that is right for a cache "
            "alone: make what belongs to an episode in the first tool that needs it, or in a toolkit's start"
        )


def determinism_of_others(subject: Subject) -> None:
    """Require that the same seed and turns give the same episode."""
    first, again = (play_together(subject, 1, _babble, 3) for _ in range(2))
    require_same(first, again, "the end", "two plays of one script differ; take all randomness from reset(seed=)")


def every_episode_ends(subject: Subject) -> None:
    """Require that an episode ends whatever its seats say; if it is ours and no tool waits, within GAME_SECONDS."""
    slowest = 0.0
    for rule in (subject.rule, _babble, _silent):
        quickest = float("inf")  # The computer may pause during one of them.
        for number in range(MIN_EPISODES):
            began = time.monotonic()
            play_together(subject, 1, rule, number)
            quickest = min(quickest, time.monotonic() - began)
        slowest = max(slowest, quickest)
    if subject.entry_point is not None:
        with subject.opened() as machine:
            require(
                not machine.inline or slowest < GAME_SECONDS,
                f"a game took {slowest:.1f} s although none of its tools waits; all other games wait for it: mark the "
                "tool that takes so long @tool(blocking=True)",
            )


def hostile_turns(subject: Subject) -> None:
    """Require that no text of the agent raises an error or ends an episode BROKEN, and that a turn that is no answer
    gets a message."""
    for chair in subject.chairs():
        chair.let_last(subject.slow)
        for text in HOSTILE:
            event = judge_answer(subject, chair, text)
            if event is None:
                if not chair.ready(subject.slow):
                    break
                event = chair.say(text)
            where = f"the turn {text[:40]!r}{chair.of}"
            require(event.ending is not Ending.BROKEN, f"{where} ended an episode broken: {event.fault}")
            answered = formats.get(chair.format).parse(text, chair.schemas).is_answer
            ended = event.ending is Ending.ANSWERED
            judges = chair.spec.has_user or isinstance(chair.author, Harness)  # They decide what is an answer.
            require(
                chair.of or judges or ended == answered,
                f"{where}: answered is {ended}, expected {answered}",
            )
            require(answered or event.ending or event.messages, f"{where} got no observation")


def hostile_turns_of_others(subject: Subject) -> None:
    """Require that no text of the agent makes `step` raise an error."""
    texts = iter(HOSTILE)
    with contextlib.suppress(StopIteration):
        for number in range(len(HOSTILE)):
            for event in play_together(subject, 1, lambda messages, rng: next(texts), number).values():
                last = str(event.attempt.messages[-1]["content"]) if event.attempt else ""
                require(
                    not last.startswith(_FAILED),
                    f"step raised on a text of the agent's ({last}); answer it with an observation",
                )


def arena_equals_single(subject: Subject) -> None:
    """Require that episodes played at once are the same as episodes played one by one."""
    beside_others = together(subject)
    for chair in subject.chairs():
        for number in range(1 if subject.slow else MIN_EPISODES):
            single = alone(subject, chair, number)
            problem = f"episode {number}{chair.of} is played differently beside others and alone"
            require_same(beside_others[number, chair.seat].attempt, single.attempt, "attempt", problem)


def demonstrator_succeeds(subject: Subject) -> None:
    """Require that the demonstrator solves at least DEMONSTRATED of the tasks; in a game, that it makes no mistake in
    any seat."""
    if subject.demonstrator is None:
        raise Skipped("no demonstrator is registered, so no tool was called in earnest")
    for chair in subject.chairs():
        if chair.seat is None:
            with tool_checks.warned() as warnings:
                ends = list(demonstrated(subject, chair, subject.demonstrator))
            for event in ends:
                tool_checks.require_texts(chair, event.attempt.calls if event.attempt else ())
            if not ends:
                raise Skipped("its demonstrator does not know these tasks, so nothing shows that they can be solved")
            rate = float(np.mean([event.parts["success"] for event in ends]))
            worst = min(ends, key=lambda event: event.parts["success"])
            message = f"its demonstrator succeeds in {rate:.0%}; expected {DEMONSTRATED:.0%}"
            faults = list(filter(None, (tool_checks.raised(record, "a tool that it called") for record in warnings)))
            require(rate >= DEMONSTRATED, "; ".join([message, *faults, _how_it_ended(worst)]))
            if faults:
                raise Noted("; ".join(faults))
            continue
        for number in range(MIN_EPISODES):
            event = chair.play_by(subject.demonstrator, number, number)
            by_rule = f"{chair.seat} played by rule"
            require(event.ending is Ending.ANSWERED, f"{by_rule} ends {event.ending}; {event.fault}")
            calls = event.attempt.calls if event.attempt else ()
            wrong = next((call for call in calls if call.status != "ok"), None)
            require(wrong is None, f"{by_rule} makes a call that fails: {wrong}")


def _how_it_ended(event: Event) -> str:
    """Describe the end of an episode: its last tool message, its last turn, and its reward."""
    attempt = event.attempt
    assert attempt is not None
    roles = {str(message["role"]): f"{message['content']!s:.300}" for message in attempt.messages}
    result = f"the last tool message is {roles['tool']!r}" if "tool" in roles else "no tool was called"
    return (
        f"in task {attempt.task.id}, {result}, the last turn is {roles.get('assistant', '')!r}, the answer is "
        f"{attempt.answer!r:.100}, and the reward is {dict(event.parts)}"
    )


def _babble(messages: Sequence[Message], rng: np.random.Generator) -> str:
    return HOSTILE[int(rng.integers(len(HOSTILE)))] or f"word {rng.integers(100)}"


def _silent(messages: Sequence[Message], rng: np.random.Generator) -> str:
    return ""


def _by_name(*functions: Callable[[Subject], None]) -> Mapping[str, Callable[[Subject], None]]:
    return {function.__name__.removesuffix("_of_others").replace("_", " "): function for function in functions}


CHECKS = _by_name(
    task_checks.tasks_are_sound,
    an_episode_begins_and_ends,
    others_are_never_held_up,
    settings_are_known,
    contracts.gymnasium_contract,
    contracts.pettingzoo_contract,
    tool_schemas,
    determinism,
    tool_checks.branches_go_on_alike,
    every_episode_ends,
    hostile_turns,
    task_checks.splits_disjoint,
    arena_equals_single,
    task_checks.tasks_can_be_judged,
    answers_in_prompts.prompts_keep_their_answers,
    reward_checks.unanswered_episodes_are_scored,
    reward_checks.rewards_see_the_attempt_alone,
    demonstrator_succeeds,
    reward_checks.cheats_fail,
    reward_checks.constant_answers_fail,
    reward_checks.hedged_answers_fail,
    tool_checks.crashing_is_no_escape,
)
OF_ONE_SEAT = (
    contracts.gymnasium_contract,
    task_checks.tasks_can_be_judged,
    answers_in_prompts.prompts_keep_their_answers,
    reward_checks.constant_answers_fail,
    reward_checks.hedged_answers_fail,
)
OF_GAMES = (contracts.pettingzoo_contract, every_episode_ends)
FOREIGN_CHECKS = _by_name(
    contracts.contract_of_others, determinism_of_others, hostile_turns_of_others, every_episode_ends
)
"""Checks of a foreign environment, which has rules of its own."""
