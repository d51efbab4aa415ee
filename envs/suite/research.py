r"""Questions that need several tools: search, a browser, Python in a sandbox, a reader of files. One answer is checked.

A task:      The file visitors.csv comes with this question: a row for a city, a column for a month. How many visitors
             does it give for the city where Sopa Rin was born in the whole year?
An episode:  <tool_call>{"name": "search", "arguments": {"query": "Sopa Rin born"}}</tool_call>
             ... Sopa Rin was born in Teza. ...
             <tool_call>{"name": "python", "arguments": {"code": "import csv\nrows = list(csv.DictReader(open(..."}}
             71402
             Answer: 71402

    gymnasium.make("palaestra/Research-v0")                                                    generated tasks, offline
    gymnasium.make("palaestra/Research-v0", tasks="metadata.jsonl", split="all",
                   search="http://127.0.0.1:8000/retrieve",
                   browser={"backend": "text", "allow": "public"})                                          GAIA's

Tasks are generated (`research_tables`) or come from a file of GAIA, HLE, xbench or WebWalkerQA (`research_files`). An
answer succeeds by the rule of `rewards.gaia`, or in multiple choice by its letter; token F1 is only reported. A
question's files are in Python's folder, and `file_reader` reads them. Left out: judging by a model, as HLE and
WebWalkerQA do.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from palaestra.endpoint import EndpointConfig
from palaestra.envs import RewardPart, Task, ToolEnv, Toolkit, offer
from palaestra.envs.core.backends import Where
from palaestra.envs.core.tool_names import OfferedToolkit
from palaestra.envs.core.toolkit import tools_of
from palaestra.envs.data.research_files import holds_research, image_bytes, read_research
from palaestra.envs.rewards.answer import MARK, final_answer, reading
from palaestra.envs.rewards.choice import chosen
from palaestra.envs.rewards.gaia import same_or_equal
from palaestra.envs.rewards.quotation import token_f1
from palaestra.envs.sandboxes import Limits
from palaestra.envs.suite.demonstrations import call, question_of, replies_of
from palaestra.envs.suite.research_tables import LEAST, MOST, draw, file_of, read_question
from palaestra.envs.suite.search_qa import searching
from palaestra.envs.suite.search_qa_world import check_world
from palaestra.envs.tools.browse import Browse
from palaestra.envs.tools.browser import WebBrowser, in_browser
from palaestra.envs.tools.file_reader import FileReader
from palaestra.envs.tools.media import AudioToText, ImageToText
from palaestra.envs.tools.python import Python
from palaestra.envs.tools.sandboxed import in_sandbox
from palaestra.episode import Attempt, Message
from palaestra.errors import UnknownTask, UsageError
from palaestra.options import SERVICE


class QuestionFiles(Toolkit):
    """Base class of toolkits that get the question's files."""

    def __init__(self, *arguments: Any, folder: str = "") -> None:
        super().__init__(*arguments)
        self._folder = folder

    def files(self, task: Task) -> Mapping[str, bytes]:
        """Return the files that come with the question, by name."""
        data = task.data
        if "table" in data:
            return {data["file"]: file_of(data["file"], int(data["table"]), data["cities"])}
        if "image" in data:
            return dict([image_bytes(data["image"])])
        return {data["file"]: Path(self._folder, data["file"]).read_bytes()} if data.get("file") else {}


class QuestionPython(QuestionFiles, Python):
    """Python in a folder that contains the question's files."""

    limits = Limits()


class QuestionFileReader(QuestionFiles, FileReader):
    """Reads the question's files."""


class QuestionImages(QuestionFiles, ImageToText):
    """Lets a served model read the question's images."""


class Listener(QuestionFiles, AudioToText):
    """Lets a served model transcribe the question's recordings."""


LIBRARY = partial(
    offer,
    rename={"open": "read_document", "find": "find_in_document"},
    describe={"find": "Find the lines of the document read last that hold some words."},
)
"""Gives a search's tools names that differ from those of a browser."""


def offering(tools: Sequence[str] | str, toolkits: Sequence[Callable[[], Toolkit]]) -> tuple[OfferedToolkit, ...]:
    """Return factories of these toolkits with only the named tools. A toolkit without any of them is left out."""
    names = [name.strip() for name in tools.split(",")] if isinstance(tools, str) else list(tools)
    valid = [name for make in toolkits for name in tools_of(make)]
    for name in names or [""]:
        if name not in valid:
            close = get_close_matches(str(name), valid, n=1, cutoff=0.0)[0]
            raise UsageError(
                f"tools names {name!r:.80}, which is not offered with these options; did you mean {close!r}? There are "
                f"{', '.join(valid)}; browse and image2text need model=, audio2text speech=, a browser's tools browser="
            )
    kits = [(make, [name for name in tools_of(make) if name in names]) for make in toolkits]
    return tuple(offer(make, allow=allowed) for make, allowed in kits if allowed)


class Research(ToolEnv):
    """Find out one fact or number with several tools."""

    system = (
        "Find the answer with your tools. Files of the question lie in the folder where your Python code runs. "
        "End with Answer: VALUE, a number (its unit only if that is asked for), as few words as possible, or a list "
        "with commas; of options the letter."
    )
    max_turns = 30
    parts: Mapping[str, RewardPart] = {"success": RewardPart(), "f1": RewardPart(weight=0.0)}

    def __init__(
        self,
        split: str = "train",
        tasks: str | None = None,
        files: Annotated[str | None, SERVICE] = None,
        search: Where | None = None,
        browser: Where | None = None,
        sandbox: Where = "local",
        model: Annotated[Mapping[str, Any] | None, SERVICE] = None,
        speech: Annotated[Mapping[str, Any] | None, SERVICE] = None,
        world_seed: int = 0,
        tools: Sequence[str] | str | None = None,
    ) -> None:
        """`tasks` takes files of GAIA, HLE, xbench and WebWalkerQA, too; `files` is the folder with what comes with
        their questions, by default that of `tasks`.

        `search` is a backend in place of the generated world, which `world_seed` draws; `browser` adds one: text or
        chromium. `sandbox` is where programs run. `model` is one that is served, {"base_url": ..., "model": ...}: it
        adds the tools browse, which has it read pages, and image2text; `speech` adds audio2text. `tools` names those
        that are offered, as a list or with commas; by default all of them.
        """
        super().__init__(split, tasks)
        if files is not None and not os.path.isdir(files):
            raise UsageError(f"files is {files!r}; expected the folder with the files that questions come with")
        self.folder = os.path.abspath(files or os.path.dirname(tasks or ""))
        self.world = check_world("full", None, world_seed)
        reads, hears = _served("model", model), _served("speech", speech)
        toolkits: list[Callable[[], Toolkit]] = [
            *map(LIBRARY, searching(search, self.world, tasks)),
            *in_sandbox(sandbox, partial(QuestionPython, folder=self.folder)),
            partial(QuestionFileReader, folder=self.folder),
        ]
        if browser is not None:
            toolkits += in_browser(browser, WebBrowser)
        if reads:
            images = partial(QuestionImages, reads, folder=self.folder)
            toolkits += [partial(Browse, browser or "text", reads), images]
        if hears:
            toolkits.append(partial(Listener, hears, folder=self.folder))
        self.toolkits = toolkits if tools is None else offering(tools, toolkits)

    def read_tasks(self, path: str, split: str) -> Sequence[Task] | None:
        """Read a file with the columns of GAIA, HLE, xbench or WebWalkerQA; return None for any other file."""
        return read_research(path, split, self.folder) if holds_research(path) else None

    def task(self, rng: np.random.Generator) -> Task:
        return draw(self.world, rng)

    def reward(self, attempt: Attempt) -> Mapping[str, float]:
        """Score the value after "Answer:" by GAIA's rules, or the letter in multiple choice."""
        answer, expected = final_answer(attempt.answer), str(attempt.task.answer)
        letters = attempt.task.data.get("letters")
        right = chosen(attempt.answer, letters) == expected if letters else same_or_equal(answer, expected)
        return {"success": float(right), "f1": token_f1(answer, expected)}

    def explain(self, attempt: Attempt) -> str:
        """Return what was read from the answer, and the rule that compares it."""
        letters, right = attempt.task.data.get("letters"), f"with {str(attempt.task.answer)!r:.300}"
        if letters:
            place = 'a box, <answer>, "Answer:" or the last line, where two letters are none'
            return reading(chosen(attempt.answer, letters), place, f"compared {right}")
        how = f"compared {right} as a number, a list or words, as that is one"
        return reading(final_answer(attempt.answer), "the last Answer: or else the whole answer", how)


def _served(name: str, options: Mapping[str, Any] | None) -> EndpointConfig | None:
    try:
        return None if options is None else EndpointConfig(**options)
    except TypeError:
        example = '{"base_url": "http://localhost:8000/v1", "model": "Qwen/Qwen3-VL-4B-Instruct"}'
        raise UsageError(f"{name} is {options!r:.200}; expected where a model is served, such as {example}") from None


def demonstrate(messages: Sequence[Message], rng: np.random.Generator, tool_rate: float = 1.0) -> str:
    """Play by rule: search for the city, compute with the file. With probability 1 - tool_rate, guess at once."""
    question, replies = question_of(messages), replies_of(messages)
    solution = read_question(question)
    if solution is None:
        raise UnknownTask(question)
    plan, program_for = solution
    hops = len(plan.lookups)
    step = plan.step(replies[:hops])
    if step is None or (not replies and rng.random() >= tool_rate):
        return f"{MARK} {rng.integers(LEAST, MOST)}"
    if isinstance(step, tuple):
        return call("search", query=f"{step[0]} {step[1].query}")
    return call("python", code=program_for(step)) if len(replies) == hops else f"{MARK} {replies[-1]}"
