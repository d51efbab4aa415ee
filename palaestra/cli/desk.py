"""The console of `palaestra play`: turns of one seat or several, and commands that start with a slash.

Left out: reading lines (`play`), and the parts of a command that need no episode (`asking`).
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

from rich.console import Console

from palaestra import formats
from palaestra.cli.asking import described, number_in, show_tokens, turn_of_file
from palaestra.envs.core.declared import DEADLINES
from palaestra.envs.core.machine import Machine
from palaestra.envs.core.state import Seat
from palaestra.envs.core.transcript import transcript
from palaestra.envs.records.by_hand import ByHand
from palaestra.envs.records.gathering import GameCollector
from palaestra.envs.records.rescore import complete
from palaestra.episode import Attempt, Ending, Event, Message
from palaestra.errors import UsageError
from palaestra.judging.guard import Guard, held_back_message
from palaestra.plain import to_plain
from palaestra.record import Recorder, read
from palaestra.registry import as_registered
from palaestra.shortening import visible

HELP = """\
TEXT            the whole turn of who is asked; a turn without a call is the answer, or said to the user or the game
                a ``` fence, or lines of three quotes, hold a turn of several lines
/call NAME K=V  a turn that calls a tool: /call search query="Deka born"
/send           the turn that the guard of --guard-url held back, all the same
/script         let the demonstrator take this turn
/file PATH      the text of a file as your turn; a .py file is handed in as a fenced program
/tools          the tools: names, arguments, what they do
/raw            the new messages exactly, as JSON; /raw TEXT sends TEXT as it stands, a slash included
/show [SEAT]    the whole transcript; of a game, that of the seat that is asked or named
/task           the task with its answer and data, which no agent sees
/reward         every part of the reward, of each seat, and what it was computed from
/tokens MODEL   what a model would see, token by token
/undo [N]       take back the last turn, or N
/reset [SEED]   another episode
/save FILE      add the episode, of all seats, to an episode file, for replay, rescore and view
/quit           leave"""

_HINT = "/reward says why, /undo takes it back, /reset begins another"


class PlayConsole:
    """One episode played by hand on a console; a method `_do_NAME` runs each command /NAME."""

    def __init__(self, hand: ByHand, console: Console, typed: bool, guard: Guard | None = None) -> None:
        """`typed`: turns come from a terminal, which shows them already; otherwise they are printed. A `guard` scores
        each turn first, and holds a turn with a low score back until /send."""
        self.hand, self.console, self.typed = hand, console, typed
        self.broken = False
        self._guard, self._held = guard, ""
        self._commands: Mapping[str, Callable[[str], None]] = {
            name.removeprefix("_do_"): getattr(self, name) for name in dir(self) if name.startswith("_do_")
        }

    def open(self, seed: int | None, task: int | None) -> None:
        """Begin an episode and show it."""
        start = self.hand.open(seed, task)
        self._say(f"{as_registered(self.hand.env_id)}, task {start.task}, seed {start.seed}", style="dim")
        self._now()
        if self.hand.event.tools:
            self._say(f"tools: {', '.join(self._tools())}", style="dim")

    def load(self, path: Path, number: int) -> None:
        """Load a recorded episode, or game with all its seats, and show it as it ended. `number` counts from 1."""
        gathering, description, env_id = GameCollector(), f"episode {number} of {path}", self.hand.env_id
        for place, record in enumerate(read(path), start=1):
            if place == number and record.env_id.rpartition(":")[2] != env_id.rpartition(":")[2]:
                raise UsageError(f"{description} is of {record.env_id}, not of {env_id}")
            whole = gathering.add("", str(place), record)
            if whole is not None and any(where == str(number) for where, _ in whole):
                self.hand.load([other for _, other in whole])
                for seat in self.hand.playable.seats:
                    self._do_show(seat or "")
                self._ended()
                return
        raise UsageError(f"{description} does not exist, or the file lacks other seats of its game")

    def take(self, text: str) -> bool:
        """Process one turn or command. Return False if it was the command to quit."""
        if not text.startswith("/"):
            self._turn(text, echo=not self.typed)
            return True
        name, _, argument = text[1:].partition(" ")
        if name in ("quit", "exit", "q"):
            return False
        if name not in self._commands:
            raise UsageError(f"there is no /{name}; /help lists what there is, and /raw sends a text as it stands")
        self._commands[name](argument.strip())
        return True

    # Commands: `_do_NAME` runs /NAME.

    def _do_help(self, argument: str) -> None:
        self._say(HELP)

    def _do_call(self, argument: str) -> None:
        machine = self.hand.playable
        if not isinstance(machine, Machine):
            raise UsageError(f"{self.hand.env_id} is somebody else's environment and takes only text; write your turn")
        from palaestra.agents.policies.human import typed_call

        call = typed_call(argument, self.hand.event.tools)
        self._turn(formats.get(machine.spec.author.format).render([call]), echo=True)

    def _do_script(self, argument: str) -> None:
        self._turn(self.hand.script(), echo=True)

    def _do_send(self, argument: str) -> None:
        if not self._held:
            raise UsageError("no turn is held back")
        text, self._held = self._held, ""
        self.hand.say(text)
        self._now()

    def _do_file(self, argument: str) -> None:
        self._turn(turn_of_file(argument), echo=True)

    def _do_tools(self, argument: str) -> None:
        for signature, description in described(self._tools()):
            self._say(signature, style="bold")
            self._say(f"    {description}")
        if not self._tools():
            self._say("there are no tools here; a turn is the answer")

    def _do_raw(self, argument: str) -> None:
        if argument:
            self._turn(argument, echo=not self.typed)
            return
        for message in self.hand.event.messages:
            self._say(json.dumps(to_plain(message), ensure_ascii=True))

    def _do_show(self, argument: str) -> None:
        seat = argument or self.hand.seat
        if seat not in self.hand.playable.seats:
            seats = ", ".join(map(str, self.hand.playable.seats))
            raise UsageError(
                f"there is no seat {seat!r}; {'the seats are ' + seats if self.hand.seat else 'it has one'}"
            )
        self._name(seat)
        self._show(self.hand.messages(seat))

    def _do_task(self, argument: str) -> None:
        task = self.hand.attempt(self.hand.seat).task
        self._say(f"id      {task.id}\nprompt  {visible(task.prompt)}\nanswer  {visible(str(task.answer))}")
        for name, value in task.data.items():
            self._say(f"data    {name} = {visible(repr(value))}")

    def _do_reward(self, argument: str) -> None:
        for seat, event in self.hand.closed().items():
            self._reward(seat, event)
        if isinstance(self.hand.playable, Machine):
            spec = self.hand.playable.spec
            self._source(type(spec.author), "reward" if spec.has_reward else "rounds")

    def _do_tokens(self, argument: str) -> None:
        if not argument:
            raise UsageError("which model's tokens? /tokens FOLDER-OR-NAME")
        machine = self.hand.playable
        format = machine.spec.author.format if isinstance(machine, Machine) else formats.DEFAULT
        show_tokens(self.console, argument, self.hand.messages(self.hand.seat), self.hand.event.tools, format)

    def _do_undo(self, argument: str) -> None:
        count = number_in(argument, "/undo") or 1
        self.hand.undo(count)
        self._say(f"{count} taken back; turn {len(self.hand.turns)}", style="dim")
        if self.hand.rebuilt:
            self._say(
                "the toolkits began anew: what earlier calls had left is gone, for the reward too",
                style="yellow",
            )
        self.broken = False
        self._now()

    def _do_reset(self, argument: str) -> None:
        self.broken = False
        self.open(number_in(argument, "/reset"), None)

    def _do_save(self, argument: str) -> None:
        if not argument:
            raise UsageError("expected /save FILE")
        records = self.hand.records()
        with Recorder(Path(argument)) as recorder:
            for record in records:
                recorder.add(record)
        what = "" if self.hand.seat is None else f"the episodes of {len(records)} seats "
        closed = "" if self.hand.ended else " as if it had been closed here"
        self._say(f"{what}added to {argument}{closed}", style="dim")

    # Private methods.

    def _turn(self, text: str, echo: bool) -> None:
        if echo:
            self._show([{"role": "assistant", "content": text}])
        if self._guard is not None and not self.hand.ended:
            messages = [*self.hand.messages(self.hand.seat), {"role": "assistant", "content": text}]
            verdict = self._guard.look(messages, self.hand.event.tools)
            self._held = text if verdict.score < self._guard.below else ""
            if self._held:
                self._say(
                    f"{held_back_message(verdict, self._guard.below)}\n/send carries it out all the same",
                    style="yellow",
                )
                return
        self.hand.say(text)
        self._now()

    def _now(self) -> None:
        """Print the new messages of the seats whose turn it is, or the ending."""
        for seat, event in (self.hand.ended or {self.hand.seat: self.hand.event}).items():
            if event.messages or not self.hand.ended:
                self._name(seat)
            self._show(event.messages)
        self._ended()

    def _ended(self) -> None:
        ended = self.hand.ended
        if not ended:
            return
        self.broken = any(event.ending is Ending.BROKEN for event in ended.values())
        for seat, event in ended.items():
            result = event.fault if event.reward is None else f"reward {event.reward:g}"
            self._say(
                f"[{event.ending}: {result}]  {_HINT}" if seat is None else f"[{seat} {event.ending}: {result}]", "bold"
            )
        if None not in ended:
            self._say(_HINT, style="dim")

    def _reward(self, seat: Seat, event: Event) -> None:
        """Print a seat's reward, part by part, and the values that it was computed from."""
        if event.reward is None or event.attempt is None:
            raise UsageError(f"a BROKEN episode has no reward: {event.fault}")
        cut = "" if self.hand.ended else f", if {self.hand.seat or 'the episode'} were cut off now"
        self._say(f"{'reward' if seat is None else f'{seat}:'} {event.reward:g}{cut}", style="bold")
        machine, attempt = self.hand.playable, event.attempt
        parts = machine.spec.author.parts if isinstance(machine, Machine) else {}
        for name, value in event.parts.items():
            of = parts.get(name)
            weight = f", times {of.weight:g} (from {of.low:g} to {of.high:g})" if of else ""
            self._say(f"  {name} = {value:g}{weight}")
        basis = {
            "answer": "none" if attempt.answer is None else visible(attempt.answer),
            "expected": "see /task" if attempt.task.answer is None else visible(str(attempt.task.answer)),
            "calls": ", ".join(f"{c.name} {c.status}" for c in attempt.calls) or "none",
        }
        basis |= {"raised": visible(attempt.raised)} if attempt.raised else {}
        lines = [f"  {name:<8}  {text}" for name, text in basis.items()]
        lines += [f"  final     {name} = {visible(repr(value))}" for name, value in attempt.final.items()]
        if isinstance(machine, Machine):
            lines.append(f"  turns     {attempt.turns}" + f" of {machine.spec.max_turns}" * machine.spec.solo)
        self._say("\n".join(["computed from", *lines]))
        if isinstance(machine, Machine):
            self._explain(machine, attempt)

    def _explain(self, machine: Machine, attempt: Attempt) -> None:
        if machine.state is None:  # After a failed restore there is no state.
            return
        deadline = {**DEADLINES, **machine.spec.author.deadlines}["reward"]
        if explanation := complete(machine.state.play.explain(attempt), deadline):
            self._say(f"because\n{indent(visible(explanation), '  ')}")

    def _source(self, kind: type, name: str) -> None:
        """Print the source code of the method that computed the reward."""
        method = getattr(kind, name)
        if not inspect.isfunction(method):  # A declared object describes itself.
            self._say(f"by {method!r}", style="dim")
            return
        try:
            lines, number = inspect.getsourcelines(method)
            self._say(f"by {inspect.getsourcefile(method)}, line {number}\n{''.join(lines).rstrip()}", style="dim")
        except (OSError, TypeError):
            self._say("by a function whose source is not at hand", style="dim")

    def _tools(self) -> Mapping[str, Mapping[str, Any]]:
        return {tool["function"]["name"]: tool["function"] for tool in self.hand.event.tools}

    def _name(self, seat: Seat) -> None:
        if seat is not None:
            self._say(f"[{seat}]", style="bold")

    def _show(self, messages: Sequence[Message]) -> None:
        if messages:
            self._say(transcript(messages))

    def _say(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, markup=False, soft_wrap=True)
