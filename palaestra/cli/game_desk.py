"""What `palaestra play` answers in a game: the turns of its seats, one after another, and questions with a slash."""

from pathlib import Path

from rich.console import Console

from palaestra.cli.asking import Asking, Schemas, number_in
from palaestra.envs.core.transcript import visible
from palaestra.envs.records.game_by_hand import GameByHand
from palaestra.episode import Ending
from palaestra.errors import UsageError
from palaestra.record import Recorder

HELP = """\
TEXT            the whole turn of the seat that is asked; a turn without a call is what it says
                a ``` fence, or lines of three quotes, hold a turn of several lines
/call NAME K=V  a turn that calls a tool: /call calculator expression="2 * 3"
/script         let the game's own script take this turn
/file PATH      the text of a file as your turn; a .py file is handed in as a fenced program
/tools          the tools of the seat that is asked: names, arguments, what they do
/raw TEXT       send TEXT as it stands, a slash included
/show [SEAT]    the whole transcript of a seat, of the one that is asked by default
/task           the task with its answer and data, which no seat sees
/reward         every seat's reward and its parts, once the game is over
/undo [N]       take back the last turn, or N
/reset [SEED]   another game
/save FILE      add the episodes of all seats to an episode file, for replay, rescore and view
/quit           leave"""


class GameDesk(Asking):
    """One game on the table, and a console to speak through."""

    help = HELP

    def __init__(self, hand: GameByHand, console: Console, typed: bool) -> None:
        """`typed` turns stand on the terminal already; others are shown."""
        super().__init__(console, typed)
        self.hand = hand

    def open(self, seed: int | None, task: int | None) -> None:
        """Begin a game and show who is asked."""
        start = self.hand.open(seed, task)
        self._say(f"{self.hand.env_id}, task {start.task}, seed {start.seed}", style="dim")
        self._now()

    # The questions.

    def _do_script(self, rest: str) -> None:
        self._turn(self.hand.script(), echo=True)

    def _do_raw(self, rest: str) -> None:
        if not rest:
            raise UsageError("expected /raw TEXT")
        self._turn(rest, echo=not self.typed)

    def _do_show(self, rest: str) -> None:
        seat = rest or self.hand.seat or self.hand.game.seats[0]
        if seat not in self.hand.game.records:
            raise UsageError(f"there is no seat {seat!r}; the seats are {', '.join(self.hand.game.seats)}")
        self._say(f"[{seat}]", style="bold")
        self._show(self.hand.game.records[seat].messages)

    def _do_task(self, rest: str) -> None:
        task = self.hand.game.problem
        assert task is not None
        self._say(f"id      {task.id}\nprompt  {visible(task.prompt)}\nanswer  {visible(str(task.answer))}")
        for name, value in task.data.items():
            self._say(f"data    {name} = {visible(repr(value))}")

    def _do_reward(self, rest: str) -> None:
        if not self.hand.ended:
            raise UsageError("the rounds decide the rewards at the end; the game goes on")
        for seat, event in self.hand.ended.items():
            if event.reward is None:
                self._say(f"{seat}: none, for the game broke ({event.fault})")
                continue
            self._say(f"{seat}: {event.reward:g}", style="bold")
            for name, value in event.parts.items():
                declared = self.hand.game.parts[name]
                self._say(
                    f"  {name} = {value:g}, times {declared.weight:g} (from {declared.low:g} to {declared.high:g})"
                )

    def _do_undo(self, rest: str) -> None:
        count = number_in(rest, "/undo") or 1
        self.hand.undo(count)
        self.broken = False
        self._say(f"{count} taken back", style="dim")
        self._now()

    def _do_reset(self, rest: str) -> None:
        self.broken = False
        self.open(number_in(rest, "/reset"), None)

    def _do_save(self, rest: str) -> None:
        if not rest:
            raise UsageError("expected /save FILE")
        with Recorder(Path(rest)) as recorder:
            for record in self.hand.records():
                recorder.add(record)
        closed = "" if self.hand.ended else " as if it had been closed here"
        self._say(f"the episodes of {len(self.hand.game.seats)} seats added to {rest}{closed}", style="dim")

    # Inside.

    def _turn(self, text: str, echo: bool = False) -> None:
        _ = self.hand.event  # Who is asked; an error when the game is over.
        if echo:
            self._show([{"role": "assistant", "content": text}])
        self.hand.say(text)
        self._now()

    def _now(self) -> None:
        """Who is asked, and what is new to it; or how the game ended."""
        if not self.hand.ended:
            self._say(f"[{self.hand.seat}]", style="bold")
            self._show(self.hand.event.messages)
            return
        self.broken = any(event.ending is Ending.BROKEN for event in self.hand.ended.values())
        for seat, event in self.hand.ended.items():
            judged = f"reward {event.reward:g}" if event.reward is not None else event.fault
            self._say(f"[{seat} {event.ending}: {judged}]", style="bold")
        self._say("/reward says why, /undo takes it back, /reset begins another", style="dim")

    @property
    def _schemas(self) -> Schemas:
        return self.hand.event.tools

    @property
    def _format(self) -> str:
        return self.hand.game.format
