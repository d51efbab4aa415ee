"""`palaestra check ID`: is this environment fit to train on?

A readable list of named checks, each a function of an id that raises or returns. Left out: anything that needs a
model; success is measured with the id's demonstrator, and checks of it pass where an id has none.
"""

import json
from collections.abc import Callable, Mapping
from math import isnan

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

from palaestra import formats
from palaestra.envs.checks.cheats import CHEATS, common_answer, crashing_calls, dressed, hedged, says
from palaestra.envs.checks.findings import HOSTILE, Finding, Skipped, difference, measure, require
from palaestra.envs.checks.loop_checks import loop_is_never_blocked
from palaestra.envs.checks.settings import require_existing, require_known
from palaestra.envs.checks.task_checks import tasks_are_sound, tasks_can_be_judged
from palaestra.envs.checks.tool_checks import require_told
from palaestra.envs.checks.trials import (
    EPISODES,
    FEWEST,
    Opened,
    begun,
    cheats_of,
    has_demonstrator,
    make,
    play,
    player_of,
    require_unbroken,
    scripted,
    success,
)
from palaestra.envs.core.authored import Authored
from palaestra.envs.core.env import ToolEnv
from palaestra.envs.running.vector import ToolVectorEnv
from palaestra.episode import Attempt, Ending, Message, Start
from palaestra.errors import EnvironmentDefect, PalaestraError, TaskFileError, UnknownId, UsageError
from palaestra.registry import demonstrator, registered

CHEAT_MARGIN = 0.15
"""Success that luck may give a cheat in so few episodes."""
DEMONSTRATED = 0.9
SPLIT_SAMPLE = 100


def check(env_id: str) -> list[Finding]:
    """Run every check; a failed one says what to change."""
    if env_id not in gymnasium.registry:
        raise UnknownId(env_id, registered())
    return measure(CHECKS, env_id)


def settings_are_known(env_id: str) -> None:
    """No attribute of the class is a misspelt setting, and what it shares exists."""
    with Opened(env_id) as env:
        require_known(type(env), ToolEnv, list(Authored.__annotations__))
        require_existing(env, ToolEnv)


def gymnasium_contract(env_id: str) -> None:
    """Gymnasium's own checker has no complaint."""
    env = make(env_id)
    try:
        check_env(env, skip_render_check=True)
    finally:
        env.close()


def tool_schemas(env_id: str) -> None:
    """Every tool has a description and a schema that survives JSON."""
    with Opened(env_id) as env:
        _, info = env.reset(seed=0)
        for schema in json.loads(info["tools"]):
            require_told(schema)


def determinism(env_id: str) -> None:
    """The same task, seed and actions give the same episode, whatever was played before."""
    first = scripted(env_id, seed=5, task=3)
    found = difference(first, scripted(env_id, seed=5, task=3, after=True))
    leaks = found and not difference(first, scripted(env_id, seed=5, task=3))
    require(
        not leaks,
        "one script is played differently after another episode: attributes outlive an episode, so set up what belongs "
        f"to one in the start of a Toolkit: {found}",
    )
    require(
        not found,
        "two plays of one script differ, set up what belongs to an episode in the start of a Toolkit, and take "
        f"randomness from rng and np_random only: {found}",
    )


def hostile_turns(env_id: str) -> None:
    """No text of the agent raises, and what cannot be read as a call is told to it."""
    with Opened(env_id) as env:
        for text in HOSTILE:
            env.reset(seed=0)
            _, _, terminated, truncated, info = env.step(text)
            ending = info["ending"]
            require(ending != "broken", f"the turn {text[:40]!r} ended an episode broken; only infrastructure may")
            answered = formats.get(env.format).parse(text, env.schemas).is_answer
            require(terminated == answered, f"the turn {text[:40]!r}: answered is {terminated}, expected {answered}")
            require(answered or truncated or info["messages"], f"the turn {text[:40]!r} got no observation")


def splits_disjoint(env_id: str) -> None:
    """No prompt is in both splits."""
    prompts = []
    for split in ("train", "eval"):
        with Opened(env_id, split=split) as env:
            try:
                tasks = env.tasks
            except TaskFileError:
                raise
            except UsageError as error:  # A file of which nothing is for this split.
                raise Skipped(str(error)) from error
            prompts.append({tasks[index].prompt for index in range(min(len(tasks), SPLIT_SAMPLE))})
    shared = prompts[0] & prompts[1]
    require(not shared, f"{len(shared)} prompts are in both splits, such as {next(iter(shared), '')!r}")


def vector_equals_single(env_id: str) -> None:
    """The vector environment plays the same episodes as single ones."""
    player = player_of(env_id)
    slots = 4
    vector = gymnasium.make_vec(env_id, num_envs=slots)
    assert isinstance(vector, ToolVectorEnv)
    try:
        _, infos = vector.reset(seed=40)
        said: list[list[Message]] = [list(infos["messages"][slot]) for slot in range(slots)]
        rngs = [np.random.default_rng(slot) for slot in range(slots)]
        attempts: list[Attempt | None] = [None] * slots
        while None in attempts:
            actions = [
                formats.translate(player(said[slot], rngs[slot]), env.format, env.schemas)
                if attempts[slot] is None
                else None
                for slot, env in enumerate(vector.envs)
            ]
            _, _, _, _, infos = vector.step(actions)
            require_unbroken(infos["fault"])
            for slot, action in enumerate(actions):
                if action is not None:
                    said[slot] += [{"role": "assistant", "content": action}, *infos["messages"][slot]]
                    attempts[slot] = infos["attempt"][slot]
    finally:
        vector.close()
    for slot in range(slots):
        single = play(env_id, player, seed=40 + slot, rng=np.random.default_rng(slot))[1]
        found = difference(attempts[slot], single, "attempt")
        require(not found, f"slot {slot} and a single environment play differently: {found}")


def demonstrator_succeeds(env_id: str) -> None:
    """Play by rule solves it, so it can be solved."""
    if not has_demonstrator(env_id):
        raise Skipped("no demonstrator is registered, so no tool was called in earnest")
    rate = success(env_id, demonstrator(env_id))
    if isnan(rate):
        raise Skipped("its demonstrator does not know these tasks, so nothing shows that they can be solved")
    require(rate >= DEMONSTRATED, f"its demonstrator succeeds in {rate:.0%}; expected {DEMONSTRATED:.0%}")


def unanswered_episodes_are_scored(env_id: str) -> None:
    """An episode that is cut off, or runs out of turns, has no answer; the reward must bear that."""
    with Opened(env_id) as env:
        for ending in (Ending.LENGTH_LIMIT, Ending.TURN_LIMIT):
            env.reset(seed=0)
            try:
                event = env.finish(ending, "I was about to")
            except (PalaestraError, AssertionError):
                raise
            except Exception as error:
                raise EnvironmentDefect(
                    f"reward raised {type(error).__name__} ({error}) for an episode without an answer; "
                    "attempt.answer is None there"
                ) from error
            rate = event.parts.get("success", 0.0)
            require(rate <= CHEAT_MARGIN, f"an episode without an answer has success {rate}; expected none")


def cheats_fail(env_id: str) -> None:
    """No cheat succeeds more often than the declared `chance`, or is paid more than the declared `ceiling`."""
    with Opened(env_id) as env:
        for name, cheat in CHEATS.items():
            _require_little(env, name, cheats_of(env, cheat))


def constant_answers_fail(env_id: str) -> None:
    """What most tasks are answered with is right no more often than the declared `chance`."""
    with Opened(env_id) as env:
        answer = common_answer(env.tasks)
        for said in () if answer is None else (answer, dressed(answer)):
            _require_little(env, f"always answer {answer!r:.40}", cheats_of(env, says(said)))


def hedged_answers_fail(env_id: str) -> None:
    """The right answer amid wrong ones is no answer."""
    with Opened(env_id) as env:
        taken = []
        for index in range(min(len(env.tasks), FEWEST)):
            for said in hedged(env.tasks, index):
                begun(env, Start(index, seed=0))
                taken.append((env.take(said).parts.get("success", 0.0) == 1.0, said))
        lucky = sum(won for won, _ in taken) > (CHEAT_MARGIN + env.chance) * len(taken)
        said = next((said for won, said in taken if won), "")
        require(not lucky, f"the answer {said[:80]!r} hides the right one among others and succeeds; compare the whole")


def _require_little(env: ToolEnv, name: str, played: list[tuple[float, float]]) -> None:
    """No success beyond chance, no pay beyond the ceiling, in what a cheat played."""
    # Luck may win one of a few.
    allowed = max(1.0 if len(played) < EPISODES else 0.0, CHEAT_MARGIN * len(played)) + env.chance * len(played)
    won = sum(won for won, _ in played)
    require(
        won <= allowed,
        f"the cheat {name!r} succeeds in {won / len(played):.0%}, and {type(env).__name__}.chance is "
        f"{env.chance:.0%}; reward only what was asked for, or declare the chance of guessing",
    )
    paid = max((reward for won, reward in played if not won), default=0.0)
    require(
        env.ceiling is None or paid <= env.ceiling,
        f"the cheat {name!r} was paid {paid:g} without success; {type(env).__name__}.ceiling is {env.ceiling}",
    )


def crashing_is_no_escape(env_id: str) -> None:
    """No call, whatever it does to its tool, ends an episode BROKEN: that would save an agent from its reward."""
    with Opened(env_id) as env:
        env.reset(seed=0)
        for schema in env.schemas:
            name = schema["function"]["name"]
            for given in crashing_calls(schema):
                env.reset(seed=0)
                event = env.take(env.call(name, **given))
                require(
                    event.ending is not Ending.BROKEN,
                    f"the call {name}({str(given)[:80]}) ended an episode broken ({event.fault}); what the agent's "
                    "arguments can do is a ToolError: keep a limit inside the tool that is shorter than its timeout",
                )


CHECKS: Mapping[str, Callable[[str], None]] = {
    function.__name__.replace("_", " "): function
    for function in (
        tasks_are_sound,
        settings_are_known,
        gymnasium_contract,
        tool_schemas,
        determinism,
        hostile_turns,
        splits_disjoint,
        vector_equals_single,
        tasks_can_be_judged,
        unanswered_episodes_are_scored,
        loop_is_never_blocked,
        demonstrator_succeeds,
        cheats_fail,
        constant_answers_fail,
        hedged_answers_fail,
        crashing_is_no_escape,
    )
}
