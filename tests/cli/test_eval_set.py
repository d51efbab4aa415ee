"""`palaestra eval-set`: several models in several environments, one report, nothing measured twice."""

import json

import commands
import pytest
from commands import refused, words
from fake_server import FakeServer, demonstrated, error

import palaestra
from palaestra.trainers.evaluation.statistics import compare

SET = """
[options]
tasks = 8
samples = 2
[[environment]]
env_id = "two-hop"
[[environment]]
env_id = "calculator"
tasks = 4
[[model]]
name = "guesser <b>"
model = "demonstrator"
tool_rate = 0.3
[[model]]
model = "demo"
base_url = "URL"
"""


def run(capsys, file, folder):
    """Exit status, figures of the set, all that it said, and the page."""
    status, out, err = commands.run(capsys, "eval-set", file, "--out", folder, "--json", "-")
    return status, json.loads(out), words(err), (folder / "report.html").read_text()


def test_a_set_goes_on_after_a_failure_and_reports_success_with_paired_differences(capsys, tmp_path):
    rules = {name: demonstrated(palaestra.demonstrator(f"palaestra/{name}-v0")) for name in ("TwoHop", "Calculator")}

    def behave(seen):
        sums = seen.method == "POST" and seen.asked["tools"][0]["function"]["name"] == "calculator"
        return error(400, "no sums") if sums else rules["TwoHop"](seen)

    file, folder = tmp_path / "set.toml", tmp_path / "set"
    with FakeServer(behave) as server:
        file.write_text(SET.replace("URL", server.url))
        status, figures, _, page = run(capsys, file, folder)
        assert status == 1 and list(figures["failed"]) == ["calculator, demo"]
        assert len(figures["cells"]) == 3 and "no sums" in page
        assert "guesser &lt;b&gt;" in page and "<b>" not in page.replace("</b>", "").replace('<b style="left', "")
        server.behave = rules["Calculator"]
        asked = len(server.questions)
        status, figures, told, page = run(capsys, file, folder)
        assert status == 0 and told.count("was measured before") == 3
        assert len(server.questions) - asked == 4 * 2 * 2, "the calculator's tasks alone, of two turns"
        assert run(capsys, file, folder)[1] == figures and len(server.questions) == asked + 16
    cells = {(cell["environment_name"], cell["model_name"]): cell for cell in figures["cells"]}
    for env in ("two-hop", "calculator"):
        first, second = (
            {row["task"]: row["success"] for row in cells[env, name]["per_task"]} for name in ("guesser <b>", "demo")
        )
        pair = compare(second, first)
        assert f"{pair.difference:+.3f} [{pair.low:+.2f}, {pair.high:+.2f}]" in page
        own = cells[env, "guesser <b>"]
        assert f"{own['success']:.3f} [{own['low']:.2f}, {own['high']:.2f}]" in page
    file.write_text(SET.replace("URL", "http://127.0.0.1:9/v1").replace("tasks = 8", "tasks = 7"))
    status, figures, _, _ = run(capsys, file, folder)
    assert status == 1 and "with other settings: tasks was 8 and is 7" in figures["failed"]["two-hop, guesser <b>"]


def test_what_was_broken_in_a_set_is_played_again(capsys, tmp_path):
    rule, unlucky = demonstrated(palaestra.demonstrator("palaestra/TwoHop-v0")), []

    def behave(seen):
        if seen.method != "POST":
            return rule(seen)
        question = next(message for message in seen.asked["messages"] if message["role"] == "user")
        unlucky[:] = unlucky or [question]
        return error(500, "down") if question in unlucky else rule(seen)

    file, folder = tmp_path / "set.toml", tmp_path / "set"
    environment = '[options]\ntasks = 4\npatience = 0.1\n[[environment]]\nenv_id = "two-hop"\n'
    with FakeServer(behave) as server:
        file.write_text(f'{environment}[[model]]\nmodel = "demo"\nbase_url = "{server.url}"\n')
        (cell,) = run(capsys, file, folder)[1]["cells"]
        assert (cell["broken"], cell["success"]) == (1, 1.0)
        server.behave, asked = rule, len(server.questions)
        _, figures, told, _ = run(capsys, file, folder)
        (cell,) = figures["cells"]
        assert (cell["broken"], cell["success"]) == (0, 1.0)
        assert "was measured before" not in told
        assert 2 <= len(server.questions) - asked <= 4, "the broken one alone, of a few turns"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tasks = 3", "expected [[environment]]"),
        ("no toml", "cannot be read as TOML"),
        ('[[environment]]\nname = "x"\n[[model]]\nmodel = "demonstrator"', "no env_id"),
        (SET.replace("URL", "http://127.0.0.1:9/v1") + '[[model]]\nmodel = "demo"\nbase_url = "http://a/v1"', "twice"),
        (SET.replace("tasks = 8", "tusks = 8"), "tusks"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_is_played(capsys, tmp_path, text, why):
    file = tmp_path / "set.toml"
    file.write_text(text)
    refused(capsys, why, "eval-set", file, "--out", tmp_path / "set")
    assert not list((tmp_path / "set").glob("*"))
