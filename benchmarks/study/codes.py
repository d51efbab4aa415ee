"""Codes: one search with the name and the right code word answers a question. Only the reward shows the right word.

A task:      Which metal has Moka ?
An episode:  <tool_call>{"name": "search", "arguments": {"query": "Moka delta"}}</tool_call>
             Kemu
             Answer: Kemu

Each attribute has one right code word, by a fixed permutation that no text shows. Every other word finds another name,
so a guess is never right. The demonstrator knows the right word of an attribute in a given share of its episodes. An
attribute may be dead: then no word finds the right name.
"""

from collections.abc import Sequence

import numpy as np

import palaestra
from palaestra.envs import Task, ToolEnv, ToolError, tool
from palaestra.envs.rewards.answer import MARK, final_answer
from palaestra.envs.rewards.progressive import RewardStage, StagedReward, marked_answer, parsed_calls, valid_calls
from palaestra.envs.suite.two_hop import NAMES
from palaestra.episode import Attempt, Message
from palaestra.formats import ParsedCall, hermes

ATTRIBUTES = ("metal", "color", "shape", "taste", "sound", "smell", "weight", "origin", "season")
WORDS = ("alpha", "beta", "gamma", "delta", "omega", "sigma", "kappa", "theta", "zeta")
FILLER = ("well", "now", "then", "let", "me", "see")
POOL = 32
"""Number of tasks of each kind in a fixed pool."""


def right_word(attribute: int, count: int) -> int:
    """Return which of `count` words finds the answer."""
    return (5 * attribute + 3) % count


def favourite_word(attribute: int, count: int) -> int:
    """Return the wrong word that the demonstrator uses most often."""
    return (5 * attribute + 10) % count


class Codes(ToolEnv):
    """Find the word that the search wants."""

    system = "End with Answer: NAME"
    max_turns = 4

    def __init__(
        self, split: str = "train", count: int = 8, asked: str = "", dead: str = "", pool: int = -1, kept: str = ""
    ) -> None:
        """There are `count` attributes and words. `asked` and `dead` list attributes by number: by default all
        and none. A `pool` of 0 or more is the number of a fixed set of 96 training tasks, 32 of each third of the
        attributes, and `kept` lists the tasks of it that are played.
        """
        super().__init__(split)
        self.count, self.pool = count, pool
        self.asked = [int(one) for one in str(asked).split("+")] if asked != "" else list(range(count))
        self.dead = {int(one) for one in str(dead).split("+")} if dead != "" else set[int]()
        self.kept = [int(one) for one in str(kept).split("+")] if kept != "" else list(range(3 * POOL))

    def task(self, rng: np.random.Generator) -> Task:
        """Return a task: a name, and the result of a search with each word."""
        name, *found = (NAMES[at] for at in rng.permutation(len(NAMES))[: self.count + 1])
        attribute = self.asked[rng.integers(len(self.asked))]
        facts = {f"{name} {word}": value for word, value in zip(WORDS, found, strict=False)}
        answer = "nobody" if attribute in self.dead else found[right_word(attribute, self.count)]
        return Task(f"Which {ATTRIBUTES[attribute]} has {name} ?", answer, data={"facts": facts, "kind": attribute})

    def task_set(self, split: str) -> Sequence[Task]:
        """Return procedural tasks, or those of the pool."""
        drawn = super().task_set(split)
        if self.pool < 0 or split != "train":
            return drawn
        thirds: list[list[Task]] = [[], [], []]
        at = self.pool * 100_000
        while min(map(len, thirds)) < POOL:
            task = drawn[at]
            third = thirds[3 * task.data["kind"] // self.count]
            if len(third) < POOL:
                third.append(task)
            at += 1
        tasks = [task for third in thirds for task in third]
        return [tasks[number] for number in self.kept]

    @tool
    def search(self, query: str) -> str:
        """Look up a name with a word: "NAME WORD"."""
        found: str | None = self.problem.data["facts"].get(" ".join(query.split()))
        if found is None:
            raise ToolError("no result")
        return found

    def reward(self, attempt: Attempt) -> float:
        """Return 1 for the right name, bare or after "Answer:"."""
        return float(final_answer(attempt.answer) == attempt.task.answer)


def called(attempt: Attempt) -> float:
    """Return the share of calls that parse; 0 without a call."""
    return parsed_calls(attempt, required=True)


def served(attempt: Attempt) -> float:
    """Return the share of valid calls; 0 without a call."""
    return valid_calls(attempt, required=True)


def correct(attempt: Attempt) -> float:
    """Return 1 for the right answer, in Codes and in Trail."""
    return float(final_answer(attempt.answer) == attempt.task.answer)


STAGES = StagedReward(
    RewardStage("parsed", called, 0.1),
    RewardStage("valid", served, 0.1),
    RewardStage("format", marked_answer, 0.1),
    RewardStage("success", correct, 0.7),
)


class StagedCodes(Codes):
    """The same tasks with a reward in stages."""

    reward = STAGES


def broken(call: ParsedCall, rng: np.random.Generator) -> str:
    """Return a call that the environment cannot serve, malformed in one of three ways."""
    way = rng.integers(3)
    if way == 0:
        return hermes.render([call]).replace(', "arguments"', ' "arguments"')
    if way == 1:
        return hermes.render([ParsedCall("look", call.arguments)])
    return hermes.render([ParsedCall(call.name, {"word": call.arguments["query"]})])


def demonstrate(
    messages: Sequence[Message],
    rng: np.random.Generator,
    tool_rate: float = 1.0,
    count: int = 8,
    levels: Sequence[float] = (0.08,),
    malformed: float = 0.0,
    filler: int = 0,
) -> str:
    """Search with the right word in a share of the episodes: `levels` has one share for all attributes, or one for each
    of equal parts of them. In half of the other episodes, use one favourite wrong word. Write up to `filler` words
    before the answer.
    """
    replies = [message["content"] for message in messages if message["role"] == "tool"]
    if replies:
        if replies[-1] not in NAMES:
            return f"{MARK} none"
        return (
            "".join(f"{FILLER[rng.integers(len(FILLER))]} " for _ in range(rng.integers(filler + 1)))
            + f"{MARK} {replies[-1]}"
        )
    asked = next(message["content"] for message in messages if message["role"] == "user").split()
    attribute, name = ATTRIBUTES.index(asked[1]), asked[3]
    right, favourite = right_word(attribute, count), favourite_word(attribute, count)
    level = levels[attribute * len(levels) // count]
    if rng.random() < level:
        word = right
    elif rng.random() < 0.5:
        word = favourite
    else:
        word = int(rng.choice([one for one in range(count) if one not in (right, favourite)]))
    call = ParsedCall("search", {"query": f"{name} {WORDS[word]}"})
    return broken(call, rng) if rng.random() < malformed else hermes.render([call])


palaestra.register("study/Codes-v0", "codes:Codes", demonstrator="codes:demonstrate")
palaestra.register("study/StagedCodes-v0", "codes:StagedCodes", demonstrator="codes:demonstrate")
