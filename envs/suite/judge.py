"""Judge an agent's episode: what was done well, what to do better, and a score (Agent-RRM, arXiv 2601.22154).

A task:      The task:
             | What is 27 + 14?
             [1] The agent says:
             | 41
             The agent ended the episode with what it said last. Judge its work: <think>, <critique>, <score>.
An episode:  <think>No tool was used.</think><critique>Look it up with a tool.</critique><score>0.3</score>

The episodes are generated, with faults that a rule scores; or `tasks=FILE` has labels of episodes that were played, as
`palaestra judge` writes them. The paper does not say what its judge is rewarded for. Here the reward is 0 if one of the
three blocks is missing or invalid, otherwise 0.1 + 0.9 * (1 - |score - label|). With `grade="agreement"` it is 0.1 +
0.9 * share: of the other attempts at the same task that had another outcome, the share that the score ranks correctly.
Left out: training on several episodes in one prompt.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from palaestra.envs import RewardPart, Task, ToolEnv
from palaestra.envs.data.problem_files import load_problems
from palaestra.episode import Attempt, Call, Message, Status
from palaestra.errors import UsageError
from palaestra.formats import ParsedCall, hermes
from palaestra.judging.prompt import RUBRIC, dialogue_prompt
from palaestra.judging.rule import by_rule
from palaestra.judging.verdict import Verdict, read_verdict, written

ENDED = "The agent ended the episode with what it said last."
_ADD = {"function": {"name": "add", "description": "Add two numbers.", "parameters": {"properties": {"a": 0, "b": 0}}}}
_SHORT = (
    "Judge the agent's work. Write <think>what you found</think><critique>advice to the agent</critique>"
    "<score>one number from 0 to 1</score>"
)
_RESULT = re.compile(r"A tool's result:\n\| (.*)")
_SAID = re.compile(r"The agent says:\n\| (.*)")


class JudgeEnv(ToolEnv):
    """Judge an episode: three blocks, the last one a score."""

    max_turns = 1
    chance = 0.7
    parts: Mapping[str, RewardPart] = {
        "success": RewardPart(),
        "format": RewardPart(0.0),
        "error": RewardPart(0.0),
        "brier": RewardPart(0.0),
        "agreement": RewardPart(0.0),
    }

    def __init__(
        self, split: str = "train", tasks: str | None = None, grade: str = "closeness", rubric: bool = True
    ) -> None:
        """`grade` is closeness to the label or agreement with outcomes; without `rubric` the prompt is a short one."""
        super().__init__(split, tasks)
        if grade not in ("closeness", "agreement"):
            raise UsageError(f"grade is {grade!r}; expected closeness or agreement")
        self.grade, self.system = grade, RUBRIC if rubric else _SHORT

    def task(self, rng: np.random.Generator) -> Task:
        attempt, solved = _generated(rng)
        prompt = dialogue_prompt(attempt.messages, [_ADD], ENDED)[1]["content"]
        label, peers = by_rule(attempt, solved, True), [_generated(rng) for _ in range(3)]
        others = [[by_rule(peer, right, True).score, float(right)] for peer, right in peers]
        return Task(prompt, label.score, data={"outcome": float(solved), "peers": others})

    def read_tasks(self, path: str, split: str) -> Sequence[Task]:
        """Read labels. All of them are checked before the first episode."""
        return load_problems(path, split, (), _with_label)

    def reward(self, attempt: Attempt) -> Mapping[str, float]:
        """Score the three blocks of the last turn, including its thinking."""
        label, outcome, peers = _label(attempt.task)
        verdict = _read(attempt)
        if verdict is None:
            return {"success": 0.0, "format": 0.0, "error": 1.0, "brier": 1.0, "agreement": 0.0}
        error, agreement = abs(verdict.score - label), _agreement(verdict.score, outcome, peers)
        graded = agreement if self.grade == "agreement" and agreement is not None else 1 - error
        return {
            "success": 0.1 + 0.9 * graded,
            "format": 1.0,
            "error": error,
            "brier": (verdict.score - outcome) ** 2,
            "agreement": 0.5 if agreement is None else agreement,
        }


def _read(attempt: Attempt) -> Verdict | None:
    """Return the verdict of the last turn; None unless all three blocks are there in order."""
    responses = [str(message["content"]) for message in attempt.messages if message["role"] == "assistant"]
    try:
        verdict = read_verdict(responses[-1] if responses else "", clamp=False)
    except ValueError:
        return None
    return verdict if verdict.whole else None


def _label(task: Task) -> tuple[float, float, Sequence[Any]]:
    """Return an episode's label and outcome, and (label, outcome) of other episodes of the same task."""
    label = float(task.answer)
    return label, float(task.data.get("outcome", label >= 0.5)), task.data.get("peers") or ()


def _with_label(task: Task) -> Task:
    try:
        label, outcome, peers = _label(task)
        numbers = [label, outcome, *(float(number) for pair in peers for number in pair)]
    except (TypeError, ValueError):
        numbers = [-1.0]
    if not all(0 <= number <= 1 for number in numbers):
        raise ValueError(f"has the label {task.answer!r:.50}; expected a score from 0 to 1, as its outcome and peers")
    return task


def _agreement(score: float, outcome: float, peers: Sequence[Any]) -> float | None:
    """Return the share of peers with another outcome that are ranked right (a tie counts half); None without them."""
    sides = [np.sign(score - other) * np.sign(outcome - ended) for other, ended in peers if ended != outcome]
    return float(np.mean([(side + 1) / 2 for side in sides])) if sides else None


def _generated(rng: np.random.Generator) -> tuple[Attempt, bool]:
    """Draw an attempt at a sum, and whether it is right. It may lack calls, fail or repeat them, or answer wrongly."""
    a, b = (int(number) for number in rng.integers(10, 50, size=2))
    calls = [Call("add", {"a": a, "b": b}, str(a + b), Status.OK)] * int(rng.integers(0, 3))
    failing = Call("add", {"a": a}, "error: b is missing", Status.BAD_CALL)
    calls = [*[failing] * int(rng.integers(0, 2)), *calls]
    solved = any(call.status is Status.OK for call in calls) and bool(rng.random() < 0.6)
    answer = str(a + b if solved else a + b + int(rng.integers(1, 9)))
    messages: list[Message] = [{"role": "user", "content": f"What is {a} + {b}?"}]
    for call in calls:
        request = hermes.render([ParsedCall(call.name, dict(call.arguments))])
        messages += [{"role": "assistant", "content": request}, {"role": "tool", "name": "add", "content": call.text}]
    messages.append({"role": "assistant", "content": answer})
    return Attempt(Task(messages[0]["content"]), tuple(messages), answer, tuple(calls), len(calls) + 1), solved


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Give the rule's verdict on a generated episode. With probability 1 - tool_rate, give a random score."""
    if rng.random() >= tool_rate:
        return written(Verdict(round(float(rng.random()), 2), "Look again.", "It is hard to say."))
    prompt = str(messages[-1]["content"])
    results = _RESULT.findall(prompt)
    calls = tuple(
        Call("add", {"a": text}, text, Status.BAD_CALL if text.startswith("error") else Status.OK) for text in results
    )
    answer = (_SAID.findall(prompt) or [""])[-1]
    attempt = Attempt(Task(""), (), answer, calls, len(calls) + 1)
    return written(by_rule(attempt, answer in results, True))
