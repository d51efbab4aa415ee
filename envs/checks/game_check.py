"""`palaestra check ID` for a game of several seats: is it fit to train on, seat by seat?

The checks of `check`, as far as they mean something in a game, and PettingZoo's own where it is installed. One seat is
checked at a time: the others are played by the game's demonstrator, or say the same over and over where it has none.
Left out: whether the seats' rewards make them play well together, which only training shows.
"""

import contextlib
import io
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from palaestra import formats
from palaestra.envs.checks.cheats import CHEATS, crashing_calls
from palaestra.envs.checks.findings import HOSTILE, Finding, Skipped, difference, measure, require
from palaestra.envs.checks.game_trials import SeatPlayer, cheated, games, opened, played, seat_of
from palaestra.envs.checks.settings import require_known
from palaestra.envs.checks.tool_checks import require_told
from palaestra.envs.checks.trials import EPISODES, FEWEST, has_demonstrator
from palaestra.envs.games.game import Game
from palaestra.envs.games.partners import Rule
from palaestra.episode import Ending
from palaestra.registry import demonstrator, game_class

CHEAT_MARGIN = 0.15
"""Success that luck may give a cheat in so few games."""
DEMONSTRATED = 0.9
SPLIT_SAMPLE = 100
GAME_SECONDS = 3.0
"""What a whole game by script may take where no tool waits: all other games wait for its steps."""
CHEAT_SECONDS = 3.0
"""What a cheat may take, in a seat, for more than the fewest games."""


def check_game(game_id: str) -> list[Finding]:
    """Run every check; a failed one says what to change."""
    return measure(GAME_CHECKS, game_id)


def pettingzoo_contract(game_id: str) -> None:
    """PettingZoo's own tests of both faces have no complaint."""
    try:
        import pettingzoo  # type: ignore[import-untyped]
        from pettingzoo.test import (  # type: ignore[import-untyped]
            api_test,
            parallel_api_test,
            parallel_seed_test,
            seed_test,
        )
    except ImportError:
        raise Skipped("pettingzoo is not installed: pip install 'palaestra[games]'") from None
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # They expect arrays, and say so of every text.
        api_test(pettingzoo.make("aec", game_id), num_cycles=50)
        parallel_api_test(pettingzoo.make("parallel", game_id), num_cycles=50)
        seed_test(lambda: pettingzoo.make("aec", game_id), num_cycles=20)
        parallel_seed_test(lambda: pettingzoo.make("parallel", game_id), num_cycles=20)


def settings_are_known(game_id: str) -> None:
    """No attribute of the class is a misspelt setting, and every tool is some seat's."""
    kind = game_class(game_id)
    require_known(kind, Game, [name for name in Game.__annotations__ if not name.startswith("_")])
    given = {name for names in kind.seat_tools.values() for name in names}
    for name in kind._tools:
        require(
            name in given, f"no seat may call the tool {name!r}; give it to one: seat_tools = {{SEAT: ({name!r},)}}"
        )


def tool_schemas(game_id: str) -> None:
    """Every tool of every seat has a description and a schema that survives JSON."""
    with opened(game_id) as game:
        for seat in game.seats:
            for schema in json.loads(json.dumps(game.schemas(seat))):
                require_told(schema, f" of {seat}")


def determinism(game_id: str) -> None:
    """The same task, seed and turns give the same game, whatever was played before."""
    for rule in (None, _babble):
        one, other = (played(game_id, task=3, seed=5, rule=rule, after=after) for after in (False, True))
        found = difference(one, other)
        require(
            not found,
            f"two plays of one script differ, take randomness from rng only, and set up in rounds what tools change: "
            f"{found}",
        )


def every_game_ends(game_id: str) -> None:
    """Whatever is said, the game comes to its end, and no step keeps the others waiting."""
    slowest = 0.0
    with opened(game_id) as game:
        inline = game.inline
    for rule in (None, _babble, lambda messages, rng: ""):
        for task in range(FEWEST):
            took = _timed(game_id, task, rule)
            if took >= GAME_SECONDS:  # The game, or the machine that stood still?
                took = min(took, _timed(game_id, task, rule))
            slowest = max(slowest, took)
    require(
        not inline or slowest < GAME_SECONDS,
        f"a game took {slowest:.1f} s although none of its tools waits; all other games wait for it: mark the tool "
        "that takes so long @tool(blocking=True)",
    )


def _timed(game_id: str, task: int, rule: Rule | None) -> float:
    began = time.monotonic()
    played(game_id, task=task, seed=task, rule=rule)
    return time.monotonic() - began


def hostile_turns(game_id: str) -> None:
    """No text of a seat raises or breaks the game, and what cannot be read as a call is told to it."""
    for seat, player in _seats(game_id):
        for text in HOSTILE:
            if not _asked(player):
                break
            event = player.say(text)
            where = f"the turn {text[:40]!r} of {seat}"
            ending = None if event is None else event.ending
            require(ending is not Ending.BROKEN, f"{where} broke the game; only infrastructure may")
            answered = formats.get(player.format).parse(text, player.schemas).is_answer
            require(answered or ending or (event and event.messages), f"{where} got no observation")


def splits_disjoint(game_id: str) -> None:
    """No prompt is in both splits."""
    prompts = []
    for split in ("train", "eval"):
        with opened(game_id, split=split) as game:
            prompts.append({game.tasks[index].prompt for index in range(min(len(game.tasks), SPLIT_SAMPLE))})
    shared = prompts[0] & prompts[1]
    require(not shared, f"{len(shared)} prompts are in both splits, such as {next(iter(shared), '')!r}")


def demonstrators_play_to_the_end(game_id: str) -> None:
    """Play by rule makes no mistake in any seat, so every seat can be played."""
    if not has_demonstrator(game_id):
        raise Skipped("no demonstrator is registered, so no seat was played in earnest")
    for events in games(game_id, demonstrator(game_id)):
        for seat, event in events.items():
            require(event.ending is Ending.ANSWERED, f"{seat} played by rule ends {event.ending}; {event.fault}")
            calls = event.attempt.calls if event.attempt else ()
            wrong = next((call for call in calls if call.status != "ok"), None)
            require(wrong is None, f"{seat} played by rule makes a call that fails: {wrong}")


def a_seat_that_is_cut_off_is_scored(game_id: str) -> None:
    """A game whose seat runs out of tokens ends for all, with rewards, and no success for that seat."""
    for seat, player in _seats(game_id):
        if not _asked(player):
            continue
        event = player.leave()
        require(event.reward is not None, f"{seat} was cut off and has no reward: {event.fault}")
        won = event.parts.get("success", 0.0)
        require(won <= CHEAT_MARGIN, f"{seat} was cut off and has success {won}; expected none: see forfeit")


def cheats_fail(game_id: str) -> None:
    """No cheat in any seat succeeds more than the declared `chance`, or is paid more than the declared `ceiling`."""
    kind = game_class(game_id)
    for seat, player in _seats(game_id):
        chance, ceiling = kind.chance.get(seat, 0.0), kind.ceiling.get(seat)
        for name, cheat in CHEATS.items():
            found = cheated(player, cheat, EPISODES, FEWEST, CHEAT_SECONDS)
            # Luck may win one of a few.
            allowed = max(1.0 if len(found) < EPISODES else 0.0, (CHEAT_MARGIN + chance) * len(found))
            won = sum(won for won, _ in found)
            require(
                won <= allowed,
                f"the cheat {name!r} succeeds in {won / len(found):.0%} as {seat}, and {kind.__name__}.chance there is "
                f"{chance:.0%}; reward only what was asked for, or declare chance = {{{seat!r}: ...}}",
            )
            paid = max((reward for won, reward in found if not won), default=0.0)
            require(
                ceiling is None or paid <= ceiling,
                f"the cheat {name!r} was paid {paid:g} as {seat} without success; {kind.__name__}.ceiling there is "
                f"{ceiling}",
            )


def crashing_is_no_escape(game_id: str) -> None:
    """No call, whatever it does to its tool, breaks the game: that would save a seat from its reward."""
    for seat, player in _seats(game_id):
        for schema in player.schemas:
            name = schema["function"]["name"]
            for given in crashing_calls(schema):
                if not _asked(player):
                    break
                event = player.say(player.call(name, **given))
                require(
                    event is None or event.ending is not Ending.BROKEN,
                    f"the call {name}({str(given)[:80]}) of {seat} broke the game ({event.fault if event else ''}); "
                    "what a seat's arguments can do is a ToolError: keep a limit inside the tool that is shorter than "
                    "its timeout",
                )


def _seats(game_id: str) -> Sequence[tuple[str, SeatPlayer]]:
    return [(seat, seat_of(game_id, seat)) for seat in game_class(game_id).seats]


def _asked(player: SeatPlayer) -> bool:
    """Begin a game; whether it asks this seat at all before it ends."""
    event = player.begin(0)
    return event is not None and event.ending is None


def _babble(messages: Sequence[Mapping[str, object]], rng: np.random.Generator) -> str:
    return HOSTILE[int(rng.integers(len(HOSTILE)))] or f"word {rng.integers(100)}"


GAME_CHECKS: Mapping[str, Callable[[str], None]] = {
    function.__name__.replace("_", " "): function
    for function in (
        settings_are_known,
        pettingzoo_contract,
        tool_schemas,
        determinism,
        every_game_ends,
        hostile_turns,
        splits_disjoint,
        demonstrators_play_to_the_end,
        a_seat_that_is_cut_off_is_scored,
        cheats_fail,
        crashing_is_no_escape,
    )
}
