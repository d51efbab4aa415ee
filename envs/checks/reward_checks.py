"""Checks of rewards: they read the attempt alone, score an unanswered episode, and pay no cheat.

Left out: whether a task can be won at all (`task_checks`), and how cheats play (`cheats`).
"""

from collections.abc import Callable, Iterator
from functools import partial
from math import sqrt
from typing import Any

from palaestra.envs.checks import at_once
from palaestra.envs.checks.afresh import RecomputedReward, recomputed, recorded
from palaestra.envs.checks.at_once import alone, is_spared, play_cheats, unanswered, without_an_answer
from palaestra.envs.checks.cheats import CHEATS, DO_NOTHING, arguments, common_answer, dressed, hedged, says
from palaestra.envs.checks.findings import Noted, difference, require
from palaestra.envs.checks.trials import EPISODES, MIN_EPISODES, Chair, Subject, require_unbroken
from palaestra.episode import Ending, Event
from palaestra.registry import registered_author

CHEAT_MARGIN = 0.15
"""Success rate that luck may give a cheat in so few episodes."""
_RULE = (
    "a reward sees the attempt alone, for a record holds nothing else: read attempt.task in place of self.problem; "
    "state that it needs is declared in Toolkit.final(), or in final() of the environment, and read as attempt.final"
)


def rewards_see_the_attempt_alone(subject: Subject) -> None:
    """Require that a new process computes the same reward from the record, and that each declared part was returned."""
    author_entry = registered_author(subject.env_id)
    assert author_entry is not None
    ended: list[Event] = []
    episodes: list[Any] = []
    for chair in subject.chairs():
        for event in _ends(chair, subject):
            ended.append(event)
            episodes.append(recorded(subject.env_id, chair.seat, event, chair.machine.state))
    returned_parts = set[str]()
    for event, again in zip(
        ended, recomputed(author_entry[0], {**author_entry[1], **subject.options}, episodes), strict=True
    ):
        _require_equal(event, again)
        returned_parts.update(again.part_names)
    if never := sorted(set(ended[0].parts) - returned_parts):
        message = (
            f"the part {never[0]!r} is declared and was never returned, so it counts 0 in every episode; return it "
            "from reward (0.0 where it is not earned), or take it out of parts"
        )
        require(all(event.parts["success"] < 1.0 for event in ended), message)
        raise Noted(f"{message} (no episode of this check was won)")


def _require_equal(event: Event, again: RecomputedReward) -> None:
    if again.missing:
        beside = "; state set in a tool dies with its episode" if again.missing != "problem" else ""
        require(False, f"reward reads self.{again.missing}, which is not there later{beside}: {_RULE} ({again.error})")
    require(not again.error, f"a recorded reward cannot be computed again: {again.error}; {_RULE}")
    first_difference = difference(dict(event.parts), dict(again.parts), "the reward")
    require(
        not first_difference,
        f"{first_difference}, first as it was played and then from its record in a fresh process; {_RULE}",
    )


def _ends(chair: Chair, subject: Subject) -> Iterator[Event]:
    """Play episodes by rule and yield the last event of each, until one is won. With one seat, also play an episode
    that calls each tool."""
    if is_spared(subject, chair):
        yield alone(subject, chair)
        if subject.demonstrator is None:  # Then the rule has called every tool.
            return
    for number in range(0 if is_spared(subject, chair) else MIN_EPISODES):
        event = chair.play_by(subject.rule, number, number)
        yield event
        if event.parts["success"] >= 1.0:
            break
    if chair.seat is None:
        called = [
            chair.call(schema["function"]["name"], **arguments(schema))
            for schema in chair.schemas[: chair.max_turns - 1]
        ]
        turns = iter(called)
        yield chair.play(lambda messages: next(turns, str(chair.problem.answer)), 0, 0)


def unanswered_episodes_are_scored(subject: Subject) -> None:
    """Require that the reward scores an episode without an answer, and gives no success if it was cut off."""
    for chair in subject.chairs():
        if is_spared(subject, chair):
            rates = [event.parts["success"] for event in unanswered(subject, chair)[:MIN_EPISODES]]
            require(max(rates) <= CHEAT_MARGIN, f"an episode without an answer has success {max(rates)}; expected none")
            continue
        hint = "; see forfeit" if chair.of and not chair.spec.has_reward else ""
        for ending in (Ending.LENGTH_LIMIT, Ending.TURN_LIMIT):
            if chair.begin().ending is None:
                rate = _unanswered(partial(chair.leave, ending, "I was about to")).parts.get("success", 0.0)
                message = f"an episode{chair.of} without an answer has success {rate}; expected none{hint}"
                require(rate <= CHEAT_MARGIN, message)
        # A right state may be paid without an answer, and so may a seat of a game: it is enough that they end.
        _unanswered(partial(chair.play_by, subject.rule, 0, 0, answers=False))
        _unanswered(partial(chair.play, partial(_calls_nobody, chair), 0, 0))


def _calls_nobody(chair: Chair, messages: object) -> str:
    return chair.call("nobody")


def _unanswered(plays: Callable[[], Event]) -> Event:
    """Play an episode without an answer and return how it ends."""
    event = without_an_answer(plays)
    require_unbroken(event)
    return event


def cheats_fail(subject: Subject) -> None:
    """Require that no cheat succeeds more often than the declared `chance`, or is paid more than the `ceiling`.

    A reward for doing nothing is noted if no ceiling is declared.
    """
    notes = []
    for chair in subject.chairs():
        for name, results in play_cheats(subject, chair, CHEATS):
            _require_little(chair, name, results)
            paid = max((reward for won, reward in results if not won), default=0.0)
            if name == DO_NOTHING and paid > 0 and chair.declared("ceiling", None) is None:
                notes.append(f"an episode{chair.of} without a call and without an answer is paid {paid:g}")
    if notes:
        fix = "ask for a call, in a stage with partial(parsed_calls, required=True), or declare a ceiling"
        raise Noted(f"{'; '.join(notes)}, and an agent may be content with that; {fix}")


def constant_answers_fail(subject: Subject) -> None:
    """Require that the most common answer is right no more often than the declared `chance`."""
    for chair in subject.chairs():
        answer = common_answer(chair.spec.tasks)
        texts = () if answer is None else (answer, dressed(answer))
        for _, results in play_cheats(subject, chair, {text: says(text) for text in texts}):
            _require_little(chair, f"always answer {answer!r:.40}", results)


def hedged_answers_fail(subject: Subject) -> None:
    """Require that an answer which lists the right value among wrong ones does not succeed."""
    for chair in subject.chairs():
        results = []
        for index in range(min(len(chair.spec.tasks), MIN_EPISODES)):
            for text in hedged(chair.spec.tasks, index):
                event = at_once.answer(subject, chair, text, index)
                results.append((event.parts.get("success", 0.0) == 1.0, text))
        chance = chair.declared("chance", 0.0)
        lucky = sum(won for won, _ in results) > (CHEAT_MARGIN + chance) * len(results)
        text = next((text for won, text in results if won), "")
        require(not lucky, f"the answer {text[:80]!r} hides the right one among others and succeeds; compare the whole")


def _require_little(chair: Chair, name: str, results: list[tuple[float, float]]) -> None:
    """Require that a cheat's episodes succeed no more often than by chance, and are paid no more than the ceiling."""
    chance, ceiling = chair.declared("chance", 0.0), chair.declared("ceiling", None)
    count = len(results)
    # Luck may win one of a few episodes, and three standard deviations above its share of many.
    luck = max(1.0 if count < EPISODES else 0.0, CHEAT_MARGIN * count, 3 * sqrt(count * chance * (1 - chance)))
    won = sum(won for won, _ in results)
    kind, there = type(chair.author).__name__, " there" if chair.of else ""
    require(
        won <= chance * count + luck,
        f"the cheat {name!r}{chair.of} succeeds in {won / count:.0%}, and {kind}.chance{there} is "
        f"{chance:.0%}, with {luck / count:.0%} more for luck in {count} episodes; reward only what was asked for, or "
        "declare the chance of guessing",
    )
    paid = max((reward for won, reward in results if not won), default=0.0)
    require(
        ceiling is None or paid <= ceiling,
        f"the cheat {name!r}{chair.of} was paid {paid:g} without success; {kind}.ceiling{there} is {ceiling}",
    )
