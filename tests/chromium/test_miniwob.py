"""MiniWoB-v0: scripts that read and act as an agent does solve it, and nothing else is paid."""

from collections.abc import Iterator
from typing import Any

import pytest
from miniwob_oracles import ORACLES, Seen

from palaestra.envs import TextEnv
from palaestra.envs.browser.site import SiteRequest
from palaestra.envs.checks.check import check
from palaestra.envs.suite.miniwob import TEXT_SOLVABLE, MiniWoB, TaskSite, tasks
from palaestra.errors import UsageError
from palaestra.formats import ParsedCall, hermes

pytest.importorskip("miniwob")
pytestmark = [pytest.mark.chromium, pytest.mark.usefixtures("chromium_path")]
KEYS = {"press": ["key"], "click": ["number"], "type": ["number", "text"], "select": ["number", "option"]}


def turn(name: str, *given: Any) -> str:
    """A turn of an agent."""
    return hermes.render([ParsedCall(name, dict(zip(KEYS.get(name, []), given, strict=True)))])


def browsergym(name: str, *given: Any) -> str:
    """The same as BrowserGym's action string."""
    names = {"type": "fill", "select": "select_option", "look": "noop"}
    words = ", ".join(repr(str(one)) for one in given)
    return hermes.render([ParsedCall("act", {"action": f"{names.get(name, name)}({words})"})])


def play(env: Any, index: int, script: Any, say: Any = turn) -> tuple[float, dict[str, Any]]:
    """Play a script to its end, or to the page's; what it was paid, and the last info."""
    env.reset(seed=0, options={"task": index})
    told, reward, over, cut, info = env.step(say("look"))
    acts, action = None, None
    while not (over or cut):
        try:
            acts = acts or script(Seen(told))
            action = next(acts) if action is None else acts.send(Seen(told))
        except (StopIteration, LookupError, RuntimeError):
            return env.step("I give up.")[1], info
        told, reward, over, cut, info = env.step(say(*action))
    return reward, info


@pytest.fixture
def opened() -> Iterator[Any]:
    """Opens environments, which are closed."""
    made: list[Any] = []

    def make(**options: Any) -> Any:
        made.append(TextEnv(MiniWoB(**options)))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("name", ["enter-text", "choose-list", "login-user"])
def test_a_script_solves_a_task_by_action_strings(name: str, opened: Any) -> None:
    assert play(opened(task=name, actions="browsergym"), 1, ORACLES[name], browsergym)[0] == 1.0


def solved_on(pages: range, opened: Any) -> dict[str, list[float]]:
    """Plays every task that is called solvable on these pages; what was paid for those not solved on all."""
    assert set(TEXT_SOLVABLE) == set(ORACLES)
    assert len(TEXT_SOLVABLE) >= 45
    lost = {}
    for name in TEXT_SOLVABLE:
        env = opened(task=name)
        paid = [play(env, index, ORACLES[name])[0] for index in pages]
        if paid != [1.0] * len(pages):
            lost[name] = paid
        env.close()
    return lost


def test_scripts_solve_every_task_that_is_called_solvable(opened: Any) -> None:
    assert solved_on(range(1), opened) == {}


@pytest.mark.prove
def test_scripts_solve_every_task_that_is_called_solvable_on_more_pages(opened: Any) -> None:
    assert solved_on(range(1, 4), opened) == {}


@pytest.mark.prove
def test_doing_nothing_is_paid_nothing_on_any_task(opened: Any) -> None:
    for name in tasks():
        env = opened(task=name)
        env.reset(seed=0, options={"task": 0})
        env.step(turn("look"))
        _, reward, over, _, _ = env.step("")
        assert (reward, over) == (0.0, True), name


@pytest.mark.prove
def test_every_check_passes() -> None:
    assert [finding for finding in check("palaestra/MiniWoB-v0") if not finding.passed] == []


def test_a_wrong_click_ends_it_unpaid(opened: Any) -> None:
    def wrong(seen: Seen) -> Any:
        yield seen.named("TWO").click

    reward, info = play(opened(task="click-test-2"), 0, wrong)
    assert reward == 0.0
    assert info["ending"] == "answered"


def test_a_page_is_decided_by_its_task_and_cannot_be_left_or_judged_by_the_agent(opened: Any) -> None:
    env = opened(task="click-button")
    shown = []
    for seed in (1, 2):
        env.reset(seed=seed, options={"task": 3})
        shown.append(env.step(turn("look"))[0])
    assert shown[0] == shown[1]
    env.reset(seed=1, options={"task": 4})
    assert env.step(turn("look"))[0] != shown[0]
    assert "START" not in shown[0]
    assert "reward" not in shown[0].lower()
    for call in (ParsedCall("open", {"url": "http://miniwob.test/miniwob/click-test.html"}), ParsedCall("back", {})):
        assert "no tool is named" in env.step(hermes.render([call]))[0]
    strings = opened(task="click-button", actions="browsergym")
    strings.reset(seed=1, options={"task": 3})
    for action in ("goto('http://miniwob.test/miniwob/click-test.html')", "go_back()", "goto('javascript:alert(1)')"):
        said = strings.step(hermes.render([ParsedCall("act", {"action": action})]))[0]
        assert "not part of this task" in said


def test_a_task_page_is_given_once_and_no_other() -> None:
    site = TaskSite("click-test")
    ask = lambda path: site.respond(SiteRequest(f"http://miniwob.test{path}")).status  # noqa: E731
    assert [ask("/miniwob/click-test-2.html"), ask("/miniwob/click-test.html"), ask("/core/core.js")] == [404, 200, 200]
    assert [ask("/miniwob/click-test.html"), ask("/miniwob/"), ask("/../__init__.py")] == [404, 404, 404]


def test_options_that_cannot_work_are_refused() -> None:
    for options, said in (
        ({"task": "click-buton"}, "click-button"),
        ({"task": ""}, "no task"),
        ({"browser": "text"}, "runs no scripts"),
        ({"actions": "strings"}, "browsergym"),
        ({"browser": {"backend": "chromium", "max_context": 2}}, "max_contexts"),
    ):
        with pytest.raises(UsageError, match=said):
            TextEnv(MiniWoB(**options)).reset(seed=0)  # type: ignore[arg-type]
