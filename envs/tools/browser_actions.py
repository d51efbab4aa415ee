"""BrowserGym's action strings as a toolkit: one tool, `act`, which takes strings such as click('12').

The strings are parsed as Python, but never executed. They do what the tools of `WebBrowser` do, in every browser. An
element's id is its number. Left out: the mouse by coordinates, several tabs, files.
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
"""Maximum number of calls in one string."""


class _OneTool:
    """A mixin that removes all tools except `act`. Put it before the toolkit in the list of base classes."""

    tools: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.tools = {"act": cls.tools["act"]} if "act" in cls.tools else {}


class BrowserActions(_OneTool, WebBrowser):
    """A browser that is controlled by BrowserGym's action strings."""

    @tool
    async def act(self, action: str) -> str:
        """Act on the web page, and read what it then shows.

        click('3'), fill('4', 'some text'), clear('4'), check('5'), uncheck('5'), select_option('6', 'Blue'),
        press('4', 'Enter'), keyboard_press('Tab'), focus('4'), scroll(0, 300), goto('http://...'), go_back(), noop(),
        send_msg_to_user('the answer'), report_infeasible('why')

        Args:
            action: one or several of these calls, one a line; '3' is the number of [3:button Buy]
        """
        page_text = ""
        for name, arguments, keywords in parse_calls(action):
            page_text = await self._call(name, arguments, keywords)
            if isinstance(page_text, Done):
                break
        return page_text

    async def _call(self, name: str, arguments: Sequence[Any], keywords: dict[str, Any]) -> str:
        actions = self._actions()
        if name not in actions:
            close = get_close_matches(name, actions, n=1)
            hint = f"is {close[0]} meant? " if close else ""
            raise ToolError(
                f"the action {name[:40]!r} is not possible here; {hint}the actions are {', '.join(actions)}"
            )
        signature = inspect.signature(actions[name])
        try:
            signature.bind(*arguments, **keywords)
        except TypeError as error:
            raise ToolError(f"{name}{signature}: {error}".replace(" -> str", "")) from None
        return await actions[name](*arguments, **keywords)

    def _actions(self) -> dict[str, Callable[..., Awaitable[str]]]:
        """Return functions by the names of BrowserGym's actions, with BrowserGym's parameters."""

        async def click(bid: Any, button: str = "left", modifiers: Any = ()) -> str:
            if button != "left" or modifiers:
                raise ToolError("only plain clicks of the left button are possible")
            return await self.click(number(bid))

        async def fill(bid: Any, value: Any, enable_autocomplete_menu: bool = False) -> str:
            return await self.type(number(bid), str(value))

        async def select_option(bid: Any, options: Any) -> str:
            option_list = options if isinstance(options, list | tuple) else [options]
            if not option_list:
                raise ToolError("no option is named")
            return [await self.select(number(bid), str(option)) for option in option_list][-1]

        async def press(bid: Any, key_comb: str) -> str:
            pressed = key_comb == "Enter" and re.match(r"\[\d+:(?:link|button)\b", self._bracket(bid))
            page_text = await self.click(number(bid))  # The click gives it the focus.
            return page_text if pressed else await self.press(key_comb)

        async def tick(bid: Any, state_before: str) -> str:
            page_text = await self.open()
            return await self.click(number(bid)) if f"({state_before}" in self._bracket(bid) else page_text

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
            "check": lambda bid: tick(bid, "unchecked"),
            "uncheck": lambda bid: tick(bid, "checked"),
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
        """Return an element's text from its bracket on the page; "" if the page has no such element."""
        lines = " ".join(self._page.lines) if self._page is not None else ""
        match = re.search(rf"\[{number(bid)}:[^\[]*", lines)
        return match[0] if match else ""


def number(bid: Any) -> int:
    """Return an element's number from BrowserGym's id, which is a string."""
    try:
        return int(bid)
    except (TypeError, ValueError):
        raise ToolError(f"{str(bid)[:40]!r} is no number; expected click('3') for [3:button Buy]") from None


def parse_calls(action: str) -> list[tuple[str, list[Any], dict[str, Any]]]:
    """Return the calls in a text, each with its name and arguments. Nothing is executed."""
    if len(action) > MAX_CHARS:
        raise ToolError(f"the action has {len(action)} characters; at most {MAX_CHARS} are read")
    try:
        calls = [_call(statement) for statement in ast.parse(action.strip()).body]
    except ToolError:
        raise
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        reason = getattr(error, "msg", None) or str(error) or type(error).__name__
        raise ToolError(f"not a call with plain arguments: {reason}; expected such as click('3')") from None
    if not 1 <= len(calls) <= MAX_CALLS:
        raise ToolError(f"{len(calls)} calls; expected 1 to {MAX_CALLS}, such as click('3')")
    return calls


def _call(statement: ast.stmt) -> tuple[str, list[Any], dict[str, Any]]:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ToolError("only calls are read, such as click('3')")
    keywords = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg is not None}
    if len(keywords) < len(call.keywords):
        raise ToolError("arguments are written out, without **")
    return call.func.id, [ast.literal_eval(argument) for argument in call.args], keywords
