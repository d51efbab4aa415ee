"""WebNav: answers stand as many clicks away as was asked for, the script finds them by what it sees, guesses do not."""

import json
import re
import threading
from collections import Counter
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import worlds
from checked import success

import palaestra
from palaestra.envs import TextEnv
from palaestra.envs.browser.site import SiteRequest
from palaestra.envs.suite.web_nav import DEEPEST, HOST, WebNav, demonstrate, site_of
from palaestra.episode import Attempt, Task
from palaestra.errors import TaskFileError, UsageError

ID = "palaestra/WebNav-v0"
WALKED = {
    "Question": "When does it open?", "Answer": "It opens at nine.", "Root_Url": "https://example.org/",
    "Info": {"Hop": "single_source", "Difficulty_Level": "easy", "Source_Website": ["https://example.org/hours"]},
}  # fmt: skip


def judged(env, task, text):
    return worlds.judged(env, Attempt(task, (), text, (), 1))[0]


def clicks_to(site, holds):
    """How few clicks lead from the home page to one that holds something."""
    near, seen, clicks = ["/"], {"/"}, 0
    while near:
        pages = [site.respond(SiteRequest(f"http://{HOST}{path}")).body for path in near]
        if any(map(holds, pages)):
            return clicks
        near = [path for path in dict.fromkeys(re.findall(r"href='([^']+)'", "".join(pages))) if path not in seen]
        seen.update(near)
        clicks += 1
    return None


@pytest.mark.parametrize("depth", range(1, DEEPEST + 1))
def test_an_answer_stands_as_many_clicks_away_as_the_depth_says(depth):
    tasks = TextEnv(WebNav(depth=depth, size=3)).tasks
    for task in (tasks[at] for at in range(12)):
        name, fact = (
            re.search(r"of (?:the department )?(\w[\w ]*?)(?: \(|\?|\.)", task.prompt)[1],
            re.escape(task.answer),
        )
        holds = re.compile(rf">{name}</a></td><td>{fact}<|<h1>{name}</h1><table>.*?<td>{fact}<")
        assert clicks_to(site_of(task), holds.search) == depth


@pytest.mark.parametrize("options", [
    *({"depth": depth, "sources": sources} for depth in range(1, DEEPEST + 1) for sources in (1, 2)), {"size": 30},
], ids=str)  # fmt: skip
def test_the_script_finds_every_answer_and_a_guess_none(options):
    assert success(ID, demonstrate, 6, split="eval", **options) == 1.0
    assert success(ID, partial(demonstrate, tool_rate=0.0), 12, split="eval", **options) < 0.2


def test_answers_are_spread_so_that_none_is_common():
    for sources in (1, 2):
        tasks = TextEnv(WebNav(depth="1-4", sources=sources)).tasks
        answers = Counter(tasks[at].answer for at in range(600))
        assert answers.most_common(1)[0][1] < 600 * WebNav.chance


def test_a_branch_goes_on_from_its_page_and_the_first_one_stays_there():
    env = TextEnv(WebNav(depth=1, size=4))
    env.reset(seed=0)
    here = env.snapshot()
    first = env.step(env.call("click", number=4))[0]
    assert env.step(env.call("find", text="head"))[0]
    branch = env.fork(1)[0]
    env.restore(here)
    assert "Error" in env.step(env.call("find", text="head"))[0]
    assert env.step(env.call("click", number=4))[0] == first
    assert "head | " in branch.step(branch.call("find", text="head"))[0]
    assert branch.step("Answer: Nobody")[1] == 0.0


@pytest.mark.parametrize("options", [{"depth": 0}, {"depth": "3-2"}, {"depth": "1-9"}, {"depth": "x"}, {"size": 1},
                                     {"size": 10**9}, {"sources": 3}, {"browser": "lynx"}], ids=str)  # fmt: skip
def test_an_option_that_makes_no_sense_is_refused(options):
    with pytest.raises(UsageError, match="expected"):
        WebNav(**options)


def test_a_published_question_is_asked_with_its_address_and_graded_by_the_words_of_its_answer(tmp_path):
    path = tmp_path / "walker.jsonl"
    path.write_text(json.dumps(WALKED))
    env = WebNav(split="all", tasks=str(path))
    (task,) = TextEnv(env).tasks
    assert task.prompt.startswith(WALKED["Question"])
    assert "https://example.org/" in task.prompt
    assert task.data["info"]["Hop"] == "single_source"
    assert judged(env, task, "Answer: it opens at nine") == 1.0
    assert 0 < judged(env, task, "Answer: at nine") < 1
    assert judged(env, task, "Answer: " + "nine " * 500) < 0.1
    kit = env.toolkits[0]()
    assert (kit.sites(task), kit.home(task)) == ({}, "https://example.org/")


class Hours(BaseHTTPRequestHandler):
    """One page, said quietly."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<p>It opens at nine.")

    def log_message(self, *said):
        pass


def test_a_published_question_is_played_on_hosts_that_are_allowed_and_on_no_others(tmp_path):
    path = tmp_path / "walker.jsonl"
    with HTTPServer(("127.0.0.1", 0), Hours) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = f"127.0.0.1:{server.server_port}"
        path.write_text(json.dumps({**WALKED, "Root_Url": f"http://{where}/"}))
        env = TextEnv(WebNav(split="all", tasks=str(path), browser={"backend": "text", "allow": [where]}))
        env.reset(seed=0)
        assert "It opens at nine." in env.step(env.call("open"))[0]
        assert "Error" in env.step(env.call("open", url="http://127.0.0.1:1/"))[0]
        env.close()
        # The site of the question is not allowed: that is no fault of the agent.
        env = TextEnv(WebNav(split="all", tasks=str(path), browser={"backend": "text", "allow": ["example.org"]}))
        env.reset(seed=0)
        assert env.step(env.call("open"))[-1]["ending"] == "broken"
        env.close()
        server.shutdown()


@pytest.mark.parametrize("wrong", [{"Answer": None}, {"Root_Url": "file:///etc/passwd"}, {"Question": " "}], ids=str)
def test_a_row_that_cannot_be_played_is_named(tmp_path, wrong):
    path = tmp_path / "walker.jsonl"
    path.write_text("\n".join(map(json.dumps, (WALKED, {**WALKED, "Question": "Where?", **wrong}))))
    with pytest.raises(TaskFileError, match="line 2"):
        TextEnv(WebNav(split="all", tasks=str(path))).tasks  # noqa: B018


def test_a_generated_answer_is_exact_and_a_page_full_of_words_is_none():
    env, task = WebNav(), Task("?", "3 May 2024", data={"world": 1, "size": 8})
    assert judged(env, task, "So.\nAnswer: 3 May, 2024") == 1.0
    for text in ("Answer: May 2024", "Answer: 3 May 2024 or 4 May 2024", "", None):
        assert judged(env, task, text) == 0.0
    assert palaestra.demonstrator(ID) is demonstrate
