"""Second attempts at Codes: rules that write critiques, and a demonstrator that uses them.

With `tells`, a critique names two code words, one of which is right. So it has information that the reward of the
attempt does not have. Without `tells`, it repeats the outcome only. The score is the same for both. It depends on what
is visible without the answer: whether a search was served, and whether the answer is a result of it. Left out: the
position of a critique in the second prompt (`second_start`), and judges that are models.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import codes
import numpy as np

from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.envs.rewards.answer import final_answer
from palaestra.episode import Episode, Message, Status
from palaestra.formats import ParsedCall, hermes
from palaestra.protocols import Arena
from palaestra.trainers.batch import Scored
from palaestra.trainers.config.recipes import Recipe
from palaestra.trainers.reward.async_scoring import JudgeResult
from palaestra.trainers.reward.reward_model import TERM, ReasoningJudge, ReasoningReward
from palaestra.trainers.samplers.reagent_u import Refined, second_start

COUNT = 8
"""Number of attributes, and of code words."""
PREFIX_TOKENS = 256
RIGHT, WRONG = "It was right: do the same again.", "It was wrong: take another word."
_NAMED = re.compile(rf"take ({'|'.join(codes.WORDS)}) or ({'|'.join(codes.WORDS)})\.")
_TAKEN = re.compile(rf" ({'|'.join(codes.WORDS)})\"")


def critique(episode: Episode, tells: bool) -> str:
    """Return a critique of an attempt at Codes. It never contains the answer."""
    if episode.reward:
        return RIGHT
    if not tells:
        return WRONG
    kind = episode.attempt.task.data["kind"]
    right = codes.right_word(kind, COUNT)
    rng = np.random.default_rng([episode.start.task, episode.start.seed, 31])
    other = int(rng.choice([word for word in range(COUNT) if word != right]))
    first, second = rng.permutation([right, other])
    return f"It was wrong: take {codes.WORDS[first]} or {codes.WORDS[second]}."


def score(episode: Episode) -> float:
    """Return a score of the calls and of the answer's source, not of the outcome."""
    results = [call.text for call in episode.attempt.calls if call.status is Status.OK]
    return 0.5 * bool(results) + 0.5 * (final_answer(episode.attempt.answer) in results)


@dataclass(frozen=True, slots=True)
class Critic(ReasoningReward):
    """Settings of a judge that is a rule, not a served model."""

    tells: bool = True

    def opened(self) -> "ReasoningJudge":
        """Return the judge."""
        return _Rule(self)


class _Rule(ReasoningJudge):
    """A judge that answers at once, by rule."""

    settings: Critic

    def __init__(self, settings: Critic) -> None:
        self.settings = settings  # There is no server to connect to.

    def check(self) -> None:
        """Do nothing: a rule is always available."""

    def close(self) -> None:
        """Do nothing: a rule holds no connection."""

    async def __call__(self, episodes: Sequence[Episode]) -> Sequence[JudgeResult]:
        """Return scores and critiques in the form of a served judge."""
        weight, tells = self.settings.score_weight, self.settings.tells
        pairs = [(episode, score(episode)) for episode in episodes]
        return [JudgeResult({TERM: weight * one}, {"score": one, "critique": critique(of, tells)}) for of, one in pairs]


def with_critic(recipe: Recipe, *, second: bool, tells: bool) -> Recipe:
    """Return the recipe with a critic whose score has the weight 0.3, and with second attempts if `second`."""
    sampler = Refined(PREFIX_TOKENS) if second else recipe.sampler
    return replace(recipe, judge=Critic(tells=tells), sampler=sampler)


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0, **habits: Any) -> str:
    """Play a first attempt as the demonstrator of Codes does. In a second attempt, use one of the words that the
    critique names, or the same word again if it was right, or else any other word.
    """
    prompts = [place for place, message in enumerate(messages) if message["role"] == "user"]
    own = [messages[prompts[0]], *messages[prompts[-1] + 1 :]]
    if len(prompts) == 1 or len(own) > 1:
        return codes.demonstrate(own, rng, tool_rate, **habits)
    critique_text = messages[prompts[-1]]["content"]
    used = _TAKEN.findall("".join(one["content"] for one in messages if one["role"] == "assistant"))
    if named := _NAMED.search(critique_text):
        words = list(named.groups())
    elif RIGHT in critique_text:
        words = used[:1]
    else:
        words = [word for word in codes.WORDS[:COUNT] if word not in used]
    name = own[0]["content"].split()[3]
    return hermes.render([ParsedCall("search", {"query": f"{name} {rng.choice(words)}"})])


def both_attempts(arena: Arena, firsts: Sequence[Episode]) -> list[Sequence[Message]]:
    """Return first attempts, each with a second one after its critique; every other critique names two words."""
    starts = []
    for number, first in enumerate(firsts):
        scored = Scored(first, remarks={"critique": critique(first, tells=number % 2 == 0)})
        starts.append(second_start(scored, first.start.seed + len(firsts), PREFIX_TOKENS))
    script = Agent(ScriptedPolicy(demonstrate, seed=1))
    seconds = sorted(play(script, arena, starts), key=lambda episode: episode.start.seed)
    return [episode.start.as_seen(episode.attempt.messages) for episode in seconds]
