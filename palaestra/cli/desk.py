"""What `palaestra play` answers: turns and the questions that start with a slash."""

import inspect
import json
from itertools import islice
from pathlib import Path
from textwrap import indent

from rich.console import Console

from palaestra.cli.asking import Asking, Schemas, number_in
from palaestra.envs.core.transcript import visible
from palaestra.envs.core.verdict import complete
from palaestra.envs.records.by_hand import ByHand
from palaestra.episode import Ending, Event
from palaestra.errors import Broken, UsageError
from palaestra.plain import to_plain
from palaestra.record import Recorder, read

HELP = """\
TEXT            your whole turn; a turn without a call is the answer
                a ``` fence, or lines of three quotes, hold a turn of several lines
/call NAME K=V  a turn that calls a tool: /call search query="Deka born"
/file PATH      the text of a file as your turn; a .py file is handed in as a fenced program
/tools          the tools: names, arguments, what they do
/raw            the new messages exactly, as JSON; /raw TEXT sends TEXT as it stands, a slash included
/show           the whole transcript
/task           the task with its answer and data, which no agent sees
/reward         every part of the reward, and what it was computed from
/tokens [MODEL] what a model would see, token by token
/undo [N]       take back the last turn, or N
/reset [SEED]   another episode
/save FILE      add the episode to an episode file, for replay, rescore and view
/quit           leave"""


class Desk(Asking):
    """One episode on the table, and a console to speak through."""

    help = HELP

    def __init__(self, hand: ByHand, console: Console, model: str | None, typed: bool) -> None:
        """`typed` turns stand on the terminal already; others are shown."""
        super().__init__(console, typed)
        self.hand, self.model = hand, model

    def open(self, seed: int | None, task: int | None) -> None:
        """Begin an episode and show it."""
        event = self.hand.open(seed, task)
        start = event.start
        self._say(f"{self.hand.env_id}, task {start.task}, seed {start.seed}", style="dim")
        self._show(event.messages)
        if event.tools:
            self._say(f"tools: {', '.join(tool['function']['name'] for tool in event.tools)}", style="dim")

    def load(self, path: Path, number: int) -> None:
        """Stand at the end of a recorded episode."""
        if number < 1:
            raise UsageError(f"episode {number} does not exist; they are counted from 1")
        record = next(islice(read(path), number - 1, None), None)
        if record is None:
            raise UsageError(f"{path} has fewer than {number} episodes")
        if record.env_id.rpartition(":")[2] != self.hand.env_id.rpartition(":")[2]:
            raise UsageError(f"episode {number} of {path} is of {record.env_id}, not of {self.hand.env_id}")
        event = self.hand.load(record)
        self._show(self.hand.env.attempt.messages)
        self._ended(event)

    # The questions.

    def _do_raw(self, rest: str) -> None:
        if rest:
            self._turn(rest, echo=not self.typed)
            return
        for message in self.hand.event.messages:
            self._say(json.dumps(to_plain(message), ensure_ascii=True))

    def _do_show(self, rest: str) -> None:
        self._show(self.hand.env.attempt.messages)

    def _do_task(self, rest: str) -> None:
        task = self.hand.env.problem
        self._say(f"id      {task.id}\nprompt  {visible(task.prompt)}\nanswer  {visible(str(task.answer))}")
        for name, value in task.data.items():
            self._say(f"data    {name} = {visible(repr(value))}")

    def _do_reward(self, rest: str) -> None:
        total, parts = self.hand.reward()
        env, attempt = self.hand.env, self.hand.env.attempt
        ended = self.hand.event.ending
        self._say(f"reward {total:g}" + ("" if ended else ", if the episode were cut off now"), style="bold")
        for name, value in parts.items():
            declared = env.parts[name]
            self._say(f"  {name} = {value:g}, times {declared.weight:g} (from {declared.low:g} to {declared.high:g})")
        self._say("computed from")
        self._say(f"  answer    {'none' if attempt.answer is None else visible(attempt.answer)}")
        expected = attempt.task.answer
        self._say(f"  expected  {'see /task' if expected is None else visible(str(expected))}")
        self._say(f"  calls     {', '.join(f'{c.name} {c.status}' for c in attempt.calls) or 'none'}")
        self._say(f"  turns     {attempt.turns} of {env.max_turns}")
        if told := complete(env.explain(attempt), env.reward_timeout):
            self._say(f"because\n{indent(visible(told), '  ')}")
        if not inspect.isfunction(type(env).reward):  # A declared object, which says itself what it is.
            self._say(f"by {type(env).reward!r}", style="dim")
            return
        try:
            lines, number = inspect.getsourcelines(type(env).reward)
            self._say(f"by {inspect.getsourcefile(type(env))}, line {number}\n{''.join(lines).rstrip()}", style="dim")
        except (OSError, TypeError):
            self._say("by a function whose source is not at hand", style="dim")

    def _do_tokens(self, rest: str) -> None:
        name = rest or self.model
        if not name:
            raise UsageError("which model's tokens? /tokens FOLDER-OR-NAME, or start with --model")
        from palaestra.cli.tokens import show_tokens

        show_tokens(self.console, name, self.hand.env.attempt.messages, self.hand.event.tools)

    def _do_undo(self, rest: str) -> None:
        count = number_in(rest, "/undo") or 1
        event = self.hand.undo(count)
        self._say(f"{count} taken back; turn {self.hand.env.turns}", style="dim")
        if self.hand.rebuilt:
            self._say("the toolkits were started anew: what earlier calls had left in them is gone", style="yellow")
        self.broken = False
        self._show(event.messages)

    def _do_reset(self, rest: str) -> None:
        self.broken = False
        self.open(number_in(rest, "/reset"), None)

    def _do_save(self, rest: str) -> None:
        if not rest:
            raise UsageError("expected /save FILE")
        with Recorder(Path(rest)) as recorder:
            recorder.add(self.hand.record())
        closed = "" if self.hand.event.ending else " as if it had been closed here"
        self._say(f"added to {rest}{closed}", style="dim")

    # Inside.

    def _turn(self, text: str, echo: bool = False) -> None:
        if echo:
            self._show([{"role": "assistant", "content": text}])
        if not self.hand.env.is_open:  # Ended, also where its reward raised.
            raise UsageError("the episode has ended: /undo takes the last turn back, /reset begins another")
        try:
            event = self.hand.say(text)
        except Broken as error:
            self.broken = True
            raise UsageError(str(error)) from error
        self._show(event.messages)
        self._ended(event)

    def _ended(self, event: Event) -> None:
        if event.ending is None:
            return
        self.broken = event.ending is Ending.BROKEN
        judged = event.fault if self.broken else f"reward {event.reward:g}"
        self._say(f"[{event.ending}: {judged}]  /reward says why, /undo takes it back, /reset begins another", "bold")

    @property
    def _schemas(self) -> Schemas:
        return self.hand.event.tools

    @property
    def _format(self) -> str:
        return self.hand.env.format
