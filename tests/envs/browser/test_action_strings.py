"""BrowserGym's action strings: they do what the tools do, and nothing of them is run."""

from typing import Any

import pytest

from palaestra.envs import Task, TextEnv, ToolEnv
from palaestra.envs.browser.site import Pages
from palaestra.envs.tools.browser_actions import MAX_CHARS, BrowserActions, parse_calls
from palaestra.errors import ToolError
from palaestra.formats import ParsedCall, hermes

PAGE = """<form action=/echo><input name=who value=x><input type=checkbox name=c>
<select name=s><option>A<option>B</select><button>Send</button></form><a href=/more>more</a>"""


class Kit(BrowserActions):
    def sites(self, task: Task) -> Any:
        return {"shop.test": Pages({"/": PAGE, "/more": "more", "/echo": "sent"})}

    def home(self, task: Task) -> str:
        return "http://shop.test/"


class Shop(ToolEnv):
    """Act on a page."""

    max_turns = 20
    toolkits = (Kit,)

    def task(self, rng: Any) -> Task:
        return Task(f"Do it {rng.integers(10**9)}.")

    def reward(self, attempt: Any) -> float:
        return float(attempt.answer == "done")


@pytest.fixture
def act() -> Any:
    """What an action string is told, in one episode."""
    env = TextEnv(Shop())
    env.reset(seed=0)

    def call(action: str) -> str:
        told, reward, _, _, _ = env.step(hermes.render([ParsedCall("act", {"action": action})]))
        return f"{told} paid {reward}"

    return call


def test_strings_do_what_the_tools_do(act: Any) -> None:
    assert '[1:field who = "a (b)"]' in act("fill('1', 'a (b)')")
    assert '= "B"' in act("select_option(bid='3', options=['B'])")
    assert "(checked)" in act("check('2')")
    assert "(checked)" in act("check('2')\nnoop(500)")
    assert "(unchecked)" in act('uncheck("2")')
    assert '[1:field who = ""]' in act("clear(1)")
    assert "http://shop.test/more\nmore" in act("goto('/more')")
    assert '[1:field who = "x"]' in act("go_back()")
    assert "sent" in act("press('1', 'Enter')")
    assert "paid 1.0" in act("send_msg_to_user('done')")


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("clik('1')", "click"),
        ("hover('1')", "not possible"),
        ("mouse_click(1, 2)", "not possible"),
        ("click('a3')", "no number"),
        ("click()", "missing"),
        ("click('1', 'right')", "left"),
        ("fill('1')", "missing"),
        ("click('99')", "99"),
        ("", "0 calls"),
        ("click('1'", "not a call"),
    ],
)
def test_what_is_no_action_is_told(act: Any, action: str, said: str) -> None:
    told = act(action)
    assert told.startswith("Error")
    assert said in told


@pytest.mark.parametrize(
    "action",
    ["__import__('os').system('x')", "click(__import__('os'))", "x = 1", "click(*[1])", "click(**{'bid': 1})",
     "click(1 + open('/etc/passwd'))", "(lambda: click(1))()", "click(f'{1}')", "[click(1) for _ in '12']",
     "click(10**10**10)", "(" * 5000, "-" * 15_000 + "1", "click(" + "[" * 3000 + "]" * 3000 + ")",
     "a" * (MAX_CHARS + 1), "click('1');" * 11, "click('\0')\0", "click('\ud800')"],
)  # fmt: skip
def test_nothing_of_a_string_is_run(action: str) -> None:
    try:
        found = parse_calls(action)
    except ToolError:
        return
    assert all(type(one) in (str, int, float, list, dict) for _, given, _ in found for one in given)


def test_only_act_is_offered() -> None:
    assert list(Kit.tools) == list(BrowserActions.tools) == ["act"]
