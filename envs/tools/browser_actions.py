"""BrowserGym's action strings as a toolkit: one tool, `act`, which takes click('12') and the like.

The strings are read as Python's syntax and never run. They do what the tools of `WebBrowser` do, on every browser; an
element's id is its number. Left out: the mouse by coordinates, several tabs, files; they are told to the agent as such.
"""

import ast
import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from difflib import get_close_matches
from typing import Any

from palaestra.envs.core.result import Done
from palaestra.envs.core.tool import tool
from palaestra.envs.tools.browser import WebBrowser
from palaestra.errors import ToolError

MAX_CHARS = 20_000
MAX_CALLS = 10
"""Of one string."""
UNSUPPORTED = re.compile(
    r"dblclick|hover|drag_and_drop|upload_file|mouse_\w+|keyboard_(?:down|up|type|insert_text)|go_forward|new_tab|tab_\w+"
)
"""BrowserGym's other actions."""


class _OneTool:
    """Before a toolkit among the bases of a class: of its tools `act` alone is offered."""

    tools: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.tools = {name: found for name, found in cls.tools.items() if name == "act"}


class BrowserActions(_OneTool, WebBrowser):
    """A browser by BrowserGym's action strings."""

    @tool
    async def act(self, action: str) -> str:
        """Act on the web page, and read what it then shows.

        click('3'), fill('4', 'some text'), clear('4'), check('5'), uncheck('5'), select_option('6', 'Blue'),
        press('4', 'Enter'), keyboard_press('Tab'), focus('4'), scroll(0, 300), goto('http://...'), go_back(), noop(),
        send_msg_to_user('the answer'), report_infeasible('why')

        Args:
            action: one or several of these calls, one a line; '3' is the number of [3:button Buy]
        """
        shown = ""
        for name, given, named in parsed(action):
            shown = await self._called(name, given, named)
            if isinstance(shown, Done):
                break
        return shown

    async def _called(self, name: str, given: Sequence[Any], named: dict[str, Any]) -> str:
        actions = self._actions()
        if name not in actions:
            known = f"the actions are {', '.join(actions)}"
            if UNSUPPORTED.fullmatch(name):
                raise ToolError(f"{name} is not possible in this browser; {known}")
            close = get_close_matches(name, actions, n=1)
            raise ToolError(f"there is no action {name[:40]!r}; {f'is {close[0]} meant? ' if close else ''}{known}")
        takes = inspect.signature(actions[name])
        try:
            bound = takes.bind(*given, **named)
        except TypeError as error:
            raise ToolError(f"{name}{takes}: {error}".replace(" -> str", "")) from None
        return await actions[name](*bound.args, **bound.kwargs)

    def _actions(self) -> dict[str, Callable[..., Awaitable[str]]]:
        """By BrowserGym's names, with its parameters."""

        async def click(bid: Any, button: str = "left", modifiers: Any = ()) -> str:
            if button != "left" or modifiers:
                raise ToolError("only plain clicks of the left button are possible")
            return await self.click(number(bid))

        async def fill(bid: Any, value: Any, enable_autocomplete_menu: bool = False) -> str:
            return await self.type(number(bid), str(value))

        async def select_option(bid: Any, options: Any) -> str:
            wanted = options if isinstance(options, list | tuple) else [options]
            if not wanted:
                raise ToolError("no option is named")
            return [await self.select(number(bid), str(option)) for option in wanted][-1]

        async def press(bid: Any, key_comb: str) -> str:
            pressed = key_comb == "Enter" and self._kind(bid) in ("link", "button")
            shown = await self.click(number(bid))  # It has the focus then.
            return shown if pressed else await self.press(key_comb)

        async def tick(bid: Any, wanted: bool) -> str:
            await self.open()
            if f"({'un' * wanted}checked" in self._bracket(bid):
                return await self.click(number(bid))
            return await self.open()

        async def scroll(delta_x: float = 0, delta_y: float = 0) -> str:
            if not delta_y:
                raise ToolError("only scrolling down and up is possible")
            return await self.scroll(delta_y > 0)

        async def end(text: Any) -> str:
            return Done(str(text))

        return {
            "click": click,
            "fill": fill,
            "clear": lambda bid: self.type(number(bid), ""),
            "check": lambda bid: tick(bid, True),
            "uncheck": lambda bid: tick(bid, False),
            "select_option": select_option,
            "press": press,
            "keyboard_press": lambda key: self.press(str(key)),
            "focus": click,
            "scroll": scroll,
            "goto": lambda url: self.open(str(url)),
            "go_back": lambda: self.back(),
            "noop": lambda wait_ms=0: self.open(),
            "send_msg_to_user": lambda text: end(text),
            "report_infeasible": lambda reason: end(reason),
        }

    def _bracket(self, bid: Any) -> str:
        """How an element stands on the page."""
        shown = re.compile(rf"(?<!\\)\[{number(bid)}:[^\[]*")
        lines = " ".join(self._page.lines) if self._page is not None else ""
        found = shown.search(lines)
        return found[0] if found else ""

    def _kind(self, bid: Any) -> str:
        return self._bracket(bid).partition(":")[2].split(" ")[0].rstrip("]")


def number(bid: Any) -> int:
    """An element's number; BrowserGym writes it as a text."""
    try:
        return int(bid)
    except (TypeError, ValueError):
        raise ToolError(f"{str(bid)[:40]!r} is no number; expected click('3') for [3:button Buy]") from None


def parsed(action: str) -> list[tuple[str, list[Any], dict[str, Any]]]:
    """Names and arguments of the calls in a text. Nothing of it is run."""
    if len(action) > MAX_CHARS:
        raise ToolError(f"the action has {len(action)} characters; at most {MAX_CHARS} are read")
    try:
        found = [_call(statement) for statement in ast.parse(action.strip()).body]
    except ToolError:
        raise
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        said = getattr(error, "msg", None) or str(error) or type(error).__name__
        raise ToolError(f"not a call with plain arguments: {said}; expected such as click('3')") from None
    if not 1 <= len(found) <= MAX_CALLS:
        raise ToolError(f"{len(found)} calls; expected 1 to {MAX_CALLS}, such as click('3')")
    return found


def _call(statement: ast.stmt) -> tuple[str, list[Any], dict[str, Any]]:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ToolError("only calls are read, such as click('3')")
    named = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg is not None}
    if len(named) < len(call.keywords):
        raise ToolError("arguments are written out, without **")
    return call.func.id, [ast.literal_eval(one) for one in call.args], named
