"""Checks of answers that are in the prompts of their tasks, where an agent only has to copy them.

A prompt may contain its answer: numbers of a problem, options to choose from, texts to read. It is a fault where words
announce the answer ("(answer: 14)"), and worth a note where the answers of nearly all tasks come after the same words.
Left out: answers in other words, and messages from the `rounds` of a game.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from palaestra.envs.checks.cheats import sampled
from palaestra.envs.checks.findings import Noted, Skipped, require
from palaestra.envs.checks.trials import Subject
from palaestra.episode import Task

FEWEST_COPIED = 5
"""Smallest number of tasks that shows a pattern."""
COPIED = 0.9
"""Share of the tasks whose answers must come after the same words for a note."""
_ANNOUNCED = r"\b(?:answers?|solution|expected|correct|ground[ _-]truth|label)(?:\s{0,3}(?:[^\w\s]|\bis\b)\s{0,3}){1,6}"
"""Words that announce an answer, with at least one sign or "is" after them."""
_CHOICE = re.compile(r"\s*(?:[,/|]|or\b)")
"""Separator after the first of several options: "Answer: yes or no"."""
_TOKEN = re.compile(r"\w+|[^\w\s]")
_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?", re.ASCII)
_END = r"(?!\w|\.\d|,\d{3})"
"""End of an answer that is not part of a longer word or number."""


def prompts_keep_their_answers(subject: Subject) -> None:
    """Require that no prompt announces its answer; note if nearly all answers can be copied from the same place."""
    with subject.opened() as machine:
        tasks = [(task.prompt.casefold(), answers_of(task)) for task in sampled(machine.spec.tasks)]
    tasks = [(prompt, answers) for prompt, answers in tasks if answers]
    if not tasks:
        raise Skipped("no task has an answer of plain text or a number")
    phrases = {prompt: phrase for prompt, answers in tasks for phrase in announced(prompt, answers, tasks)}
    message = f"{len(phrases)} of {len(tasks)} prompts hold their answer, such as {[*phrases.values()][:1]}"
    require(not phrases, f"{message}: take it out, for an agent only copies it")
    behind: Mapping[str, Counter[str]] = defaultdict(Counter)
    for prompt, answers in tasks:
        for words, answer in dict(_places(prompt, answers)).items():
            behind[words][answer] += 1
    for words, copied in behind.items():
        if copied.total() >= max(FEWEST_COPIED, COPIED * len(tasks)) and len(copied) >= FEWEST_COPIED:
            raise Noted(
                f"in {copied.total()} of {len(tasks)} tasks the answer stands in the prompt, right behind {words!r}: "
                "take it out, unless agents are meant to copy it"
            )


def answers_of(task: Task) -> list[str]:
    """Return the answers of a task that are plain, in lower case."""
    task_answers = task.answer if isinstance(task.answer, list | tuple) else [task.answer]
    plain = [str(text).strip().casefold() for text in task_answers if isinstance(text, str | int | float | np.generic)]
    return [text for text in plain if text]


def announced(prompt: str, answers: Sequence[str], tasks: Sequence[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """Yield the phrases of a prompt that announce its answer, except phrases that are also in a prompt with another
    answer: those are instructions."""
    for answer in answers:
        for match in re.finditer(_ANNOUNCED + rf"(?<![\w.]){_spelled(answer)}{_END}", prompt):
            same = re.compile(re.escape(match[0]) + _END)
            others = (other for other, other_answers in tasks if answer not in other_answers)
            if not _CHOICE.match(prompt, match.end()) and not any(map(same.search, others)):
                yield match[0]


def _spelled(answer: str) -> str:
    """Return the pattern of an answer; of a number also with thousands marks (1,400) and zeros behind it (14.0)."""
    match = _NUMBER.fullmatch(answer)
    if match is None:
        return re.escape(answer)
    sign, whole, decimals = match[1], match[2], (match[3] or "").rstrip("0")
    first = len(whole) % 3 or 3
    groups = ",?".join([whole[:first], *(whole[at : at + 3] for at in range(first, len(whole), 3))])
    return rf"{sign}{groups}" + (rf"\.{decimals}0*" if decimals else r"(?:\.0+)?")


def _places(prompt: str, answers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs: the two words or signs before an answer, if they are in the prompt only once, and the answer."""
    for answer in answers:
        for match in re.finditer(rf"(?<![\w.]){_spelled(answer)}{_END}", prompt):
            before = [*_TOKEN.finditer(prompt, max(0, match.start() - 40), match.start())][-2:]
            words = prompt[before[0].start() : match.start()] if len(before) == 2 else ""
            if words and prompt.count(words) == 1:
                yield words, answer
