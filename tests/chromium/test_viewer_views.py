"""What a person sees of a run: its curves, groups, turns, tokens, and where two rollouts part."""

import json
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from viewer_records import record, row

from palaestra.episode import Call, Ending, Status
from palaestra.record import Record, write
from palaestra.trainers.view.pages import page
from palaestra.trainers.view.pages.compare_runs import RunComparison
from palaestra.trainers.view.pages.load_episodes import Collection
from palaestra.trainers.view.pages.viewer_server import ViewerServer

pytestmark = pytest.mark.chromium


def make_run(folder: Path, steps: int = 3) -> Path:
    (folder / "episodes").mkdir(parents=True)
    for step in range(1, steps + 1):
        figures = {"step": step, "reward": step / 10, "rewards/success/mean": step / 5, "other": -step}
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(figures) + "\n")
        add_step(folder, step)
    return folder


def add_step(run: Path, step: int) -> None:
    records = [record(2 * step + group, member, step=step) for group in range(2) for member in range(4)]
    write(run / "episodes" / f"step-{step:06d}.jsonl", records)


@pytest.fixture
def view(tmp_path: Path) -> Path:
    """The page of a run of three steps."""
    out = tmp_path / "view.html"
    page.write(out, Collection([make_run(tmp_path / "a-run")]))
    return out


def page_of(tmp_path: Path, *records: Record) -> Path:
    path, out = tmp_path / "some.jsonl", tmp_path / "some.html"
    write(path, records)
    page.write(out, Collection([path]))
    return out


def test_curves_show_chosen_metrics_and_one_step_of_all(view: Path, looked: Any) -> None:
    looked.open(view)
    assert "3 steps, 24 episodes" in looked.text("header")
    assert looked.page.locator(".chart").count() == 2
    looked.page.locator(".plot").first.hover(position={"x": 60, "y": 40})
    looked.until("[...document.querySelectorAll('.chart .value')].map((one) => one.textContent).join() === '0.2,0.1'")
    looked.page.locator(".metrics summary").click()
    looked.page.locator(".chip", has_text="other").click()
    looked.until("document.querySelectorAll('.chart').length === 3")
    looked.page.reload()
    looked.until("document.querySelectorAll('.chart').length === 3")


def test_a_group_shows_its_rollouts_side_by_side_and_sorts_them(view: Path, looked: Any) -> None:
    looked.open(view, "#step=2&group=4")
    numbers = "[...document.querySelectorAll('.rollouts tbody tr')].map((row) => row.dataset.episode).join('')"
    assert looked.page.evaluate(numbers) == "1234"
    looked.page.locator(".rollouts th button", has_text="advantage").click()
    looked.until(f"{numbers} === '2413'")
    looked.until("document.querySelectorAll('.column .columnturn').length === 8")
    assert looked.text(".columnhead").split() == ["#2", "reward", "1.00", "+0.87", "answered"]


def test_an_episode_shows_calls_outcomes_and_why_it_got_its_advantage(view: Path, tmp_path: Path, looked: Any) -> None:
    looked.open(view, "#step=2&group=4&episode=2")
    said = looked.text("main")
    for text in ("calculator", "2*3", "0.250 s", "ok", "I compute."):
        assert text in said
    assert "(+1.000 − mean 0.000) / deviation 1.155 = +0.866" in re.sub(r"\s+", " ", said)
    assert "is not that of this formula" not in said
    records = [record(0, member) for member in range(4)]
    records[1] = replace(records[1], lessons=(replace(records[1].lessons[0], advantage=0.2),))
    looked.open(page_of(tmp_path, *records), "#step=1&group=0&episode=2")
    assert "is not that of this formula" in looked.text("main")


def test_what_a_judge_said_stands_beside_the_episode_and_contradictions_can_be_filtered(
    tmp_path: Path, looked: Any
) -> None:
    def judged(member: int, score: float) -> Record:
        plain = record(1, member)
        remarks = {"score": score, "critique": f"Look twice, {member}.", "analysis": "It <b>guessed</b>."}
        return replace(plain, lessons=(replace(plain.lessons[0], remarks=remarks),))

    looked.open(page_of(tmp_path, judged(0, 0.9), judged(1, 0.8), judged(2, 0.2)))
    looked.page.locator(".row").first.click()
    looked.until("document.querySelector('main').textContent.includes('score')")
    looked.page.locator("table tbody tr").first.click()
    looked.until("document.querySelector('main').textContent.includes('What the judge said')")
    said = looked.text("main")
    assert "Look twice, 0." in said and "high score, failed" in said
    looked.page.locator(".filters summary").click()
    looked.page.locator('select[aria-label="any score of the judge"]').select_option("high score, failed")
    looked.until("document.querySelector('.progress').textContent.includes('1 episode')")


def test_a_second_attempt_is_told_from_the_first_one_and_its_critique(tmp_path: Path, looked: Any) -> None:
    first, second = record(1, 0), record(1, 1)
    prefix = ({"role": "assistant", "content": "It is 7."}, {"role": "user", "content": "The review: look twice."})
    refined = replace(second.episode, start=replace(second.episode.start, prefix=prefix))
    looked.open(page_of(tmp_path, first, replace(second, episode=refined)), "#step=1&group=1")
    assert "attempt" in looked.text(".rollouts thead")
    looked.page.locator(".rollouts tbody tr").nth(1).click()
    looked.until("document.querySelector('main').textContent.includes('second attempt')")
    said = looked.text(".turns")
    places = [
        said.index(text) for text in ("What is 2 * 3", "first attempt", "It is 7.", "look twice", "second attempt")
    ]
    assert places == sorted(places) and "turn 1" in said[places[-1] :]
    assert "turn 3" not in said, "turns are counted from the second attempt"


def test_a_failed_call_and_a_broken_episode_say_what_went_wrong(tmp_path: Path, looked: Any) -> None:
    one = record()
    call = Call("calculator", {}, "no such thing", Status.TOOL_ERROR, 0.5)
    attempt = replace(one.episode.attempt, calls=(call,), answer=None)
    fault = "the disk is gone"
    broken = replace(one.episode, attempt=attempt, ending=Ending.BROKEN, reward=None, parts={}, fault=fault)
    looked.open(page_of(tmp_path, replace(one, episode=broken, lessons=())), "#step=some&group=0&episode=1")
    said = looked.text("main")
    assert "tool error" in said
    assert "the disk is gone" in said
    assert "never trained on" in said


def token(looked: Any, at: int) -> Any:
    return looked.page.locator(f'.token[data-at="{at}"]')


def test_tokens_show_mask_and_figures_of_each(view: Path, looked: Any) -> None:
    looked.open(view, "#step=2&group=4&episode=2&view=tokens")
    assert "context" in token(looked, 39).get_attribute("class")
    assert "sampled" in token(looked, 40).get_attribute("class")
    token(looked, 40).hover()
    title = token(looked, 40).get_attribute("title")
    assert "sampled by weights of version 1" in title
    assert "log-prob of the trainer" in title
    assert "advantage +0.866" in title
    token(looked, 0).hover()
    assert "masked out" in token(looked, 0).get_attribute("title")
    for colour in ("gap to the trainer", "advantage", "weights", "mask only"):
        looked.page.get_by_role("button", name=colour, exact=True).click()
        assert looked.harm() == []
    looked.page.get_by_role("button", name="gap to the trainer", exact=True).click()
    assert "engine and trainer must agree" in looked.text(".legend")


def test_a_gap_is_called_a_fault_only_before_the_first_update(tmp_path: Path, looked: Any) -> None:
    def with_gap(updates: int, member: int) -> Record:
        one = record(0, member)
        tokens = one.episode.rows[0]
        said = (tokens.logprobs - np.where(np.arange(len(tokens)) == 50, np.float32(0.5), np.float32(0)),)
        return replace(one, lessons=(replace(one.lessons[0], trainer_logprobs=said, updates=updates),))

    looked.open(page_of(tmp_path, with_gap(0, 0), with_gap(2, 1)), "#step=1&group=0&episode=1&view=tokens")
    assert "50 (engine and trainer differ by 0.5)" in looked.text(".warning")
    looked.go("#step=1&group=0&episode=2&view=tokens")
    assert looked.page.locator(".warning").count() == 0
    looked.page.get_by_role("button", name="gap to the trainer", exact=True).click()
    assert "after 2 optimizer steps" in looked.text(".legend")


def test_wrong_masks_impossible_figures_and_missing_tokens_are_pointed_out(tmp_path: Path, looked: Any) -> None:
    tokens = row(120)
    tokens.logprobs[60] = float("nan")
    tokens.versions[70] = -1
    out = page_of(tmp_path, replace(record(rows=(tokens,)), lessons=()))
    looked.open(out, "#step=some&group=0&episode=1&view=tokens")
    said = looked.text(".warning")
    assert "60 (its log-prob is no number)" in said
    assert "70 (it is sampled, but by no weights)" in said
    looked.page.locator(".warning button").nth(1).click()
    looked.page.wait_for_selector('.token.pinned[data-at="70"]')
    looked.open(page_of(tmp_path, record(tokens=0)), "#step=1&group=0&episode=1&view=tokens")
    assert "No tokens were recorded" in looked.text("main")


def test_two_rollouts_are_compared_from_where_they_part(tmp_path: Path, looked: Any) -> None:
    one, other = record(0, 0), record(0, 1)
    tokens = row(120, 0)
    tokens.ids[77] += 1
    other = replace(other, episode=replace(other.episode, rows=(tokens,)))
    looked.open(page_of(tmp_path, one, other), "#step=1&group=0&episode=1&with=2&view=diff")
    said = looked.text("main")
    assert "The first 2 messages are the same; they part at message 3, turn 1 of the agent." in said
    assert "The first 77 tokens are the same" in said
    assert looked.page.locator(".same").first.inner_text().endswith(" as ")
    assert looked.page.locator(".parts").all_inner_texts() == ["0", "1"]
    assert looked.page.locator(".pinned").count() == 2


def test_every_view_has_an_address_that_survives_a_reload(view: Path, looked: Any) -> None:
    for place, wanted in (
        ("#step=3&group=7&episode=4", "#4"),
        ("#step=3&group=7&episode=4&view=tokens", "colour by"),
        ("#step=3&group=7&episode=4&turn=2", "turn 2"),
        ("#step=3&group=7&episode=1&with=2&view=diff", "they part"),
        ("#step=3&group=9", "names a group that is not here"),
        ("#step=3&group=7&episode=99", "names an episode that is not here"),
    ):
        looked.open(view, place)
        waits = "document.querySelector('.token')" if "view=tokens" in place else "true"  # Those come when in sight.
        looked.until(waits)
        before = looked.text("main")
        assert wanted in before
        looked.page.reload()
        looked.at(place)
        looked.until(waits)
        assert looked.text("main") == before


def test_keys_walk_through_episodes_and_groups(view: Path, looked: Any) -> None:
    looked.open(view)
    for key, place in (
        ("j", "#step=1&group=2&episode=1"),
        ("j", "#step=1&group=2&episode=2"),
        ("t", "#step=1&group=2&episode=2&view=tokens"),
        ("k", "#step=1&group=2&episode=1&view=tokens"),
        ("t", "#step=1&group=2&episode=1"),
        ("n", "#step=1&group=3"),
        ("n", "#step=2&group=4"),
        ("p", "#step=1&group=3"),
        ("k", "#step=1&group=2&episode=4"),
        ("d", "#step=1&group=2&episode=4&with=1&view=diff"),
        ("g", "#step=1&group=2"),
        ("c", "#"),
    ):
        looked.page.keyboard.press(key)
        looked.at(place)
    looked.page.keyboard.press("?")
    looked.page.locator("dialog").wait_for(state="visible")
    looked.page.keyboard.press("Escape")
    looked.page.locator("dialog").wait_for(state="hidden")
    looked.page.keyboard.press("/")
    looked.page.keyboard.type("jkn")
    assert looked.page.input_value(".search") == "jkn"
    assert looked.page.evaluate("location.hash") in ("", "#")


def counted(looked: Any, text: str) -> None:
    looked.until(f"document.querySelector('.progress').textContent === {json.dumps(text)}")


def test_search_and_filters_leave_what_fits(view: Path, looked: Any) -> None:
    looked.open(view)
    counted(looked, "6 groups, 24 episodes")
    looked.page.fill(".search", "IN GROUP 5")
    counted(looked, "1 of 6 groups, 4 episodes")
    looked.page.fill(".search", "nobody said this")
    counted(looked, "0 of 6 groups, 0 episodes")
    looked.page.fill(".search", "")
    counted(looked, "6 groups, 24 episodes")
    looked.page.locator(".filters summary").click()
    looked.page.get_by_label("reward from").fill("0.5")
    counted(looked, "6 of 6 groups, 12 episodes")
    looked.page.get_by_label("any step").select_option("3")
    counted(looked, "2 of 6 groups, 4 episodes")
    looked.page.get_by_label("any call status").select_option("ok")
    looked.page.keyboard.press("Escape")
    looked.page.locator(".row").first.click()
    looked.at("#step=3&group=6")
    assert looked.page.locator(".rollouts tbody tr").count() == 2
    looked.page.get_by_text("clear all").click()
    counted(looked, "6 groups, 24 episodes")


def test_a_run_is_followed_without_a_reload(tmp_path: Path, looked: Any) -> None:
    run = make_run(tmp_path / "a-run", steps=1)
    viewer = ViewerServer([run])
    thread = threading.Thread(target=viewer.run)
    thread.start()
    try:
        looked.page.goto(viewer.url)
        looked.until("document.querySelectorAll('.row').length === 2")
        looked.page.evaluate("window.__same = true")
        add_step(run, 2)
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": 2, "reward": 0.9}) + "\n")
        looked.until("document.querySelectorAll('.row').length === 4")
        looked.until("document.querySelector('header').innerText.includes('2 steps, 16 episodes')")
        looked.go("#step=2&group=5&episode=2")
        assert "What is 2 * 3, in group 5?" in looked.text("main")
        looked.page.fill(".search", "in group 5")
        counted(looked, "1 of 4 groups, 4 episodes")
        assert looked.page.evaluate("window.__same") is True
        assert looked.harm() == []
    finally:
        viewer.close()
        thread.join(30)
    looked.until("document.querySelector('.live').textContent === 'the server does not answer'")


def test_runs_are_compared_over_their_steps_with_what_they_measured_and_how_they_differ(
    tmp_path: Path, looked: Any
) -> None:
    folders, out = [], tmp_path / "compare.html"
    for name, steps, rate in (("one", 3, 0.1), ("<b>two", 5, 0.2)):
        folder = make_run(tmp_path / name, steps)
        (folder / "config.json").write_text(json.dumps({"steps": steps, "optimizer": {"rate": rate}, "same": 1}))
        sampled = {"sampled": {"success": rate, "low": 0.0, "high": 0.5}}
        (folder / "before.json").write_text(json.dumps(sampled))
        (folder / "summary.json").write_text(json.dumps({"steps": steps, "after": sampled}))
        folders.append(folder)
    with (folders[1] / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "reward": 1, "of two alone": 1}\n')
    page.write(out, RunComparison(folders))
    looked.open(out)
    names = "[...document.querySelectorAll('.chart .name')].map((one) => one.textContent).join()"
    assert looked.page.evaluate(names) == "rewards/success/mean,held-out success,reward"
    assert looked.page.locator(".chart").first.locator("path.line").count() == 2
    looked.page.locator(".plot").first.hover(position={"x": 60, "y": 40})
    looked.until("document.querySelector('.chart figcaption').textContent.includes('0.20.2')")
    for text in ("<b>two", "0.100", "optimizer.rate", "of two alone"):
        assert (text in looked.text("main")) == (text != "of two alone"), text
    assert "same" not in looked.text(".compared:not(.heldout)")
    assert not looked.page.locator(".side").is_visible()
    assert looked.harm() == []


def test_success_before_and_after_stands_above_the_curves_and_groups_of_training_come_first(
    tmp_path: Path, looked: Any
) -> None:
    run, out = make_run(tmp_path / "a-run"), tmp_path / "view.html"
    for when in ("before", "after"):
        write(run / "episodes" / f"eval-{when}.jsonl", [replace(record(9, 0), lessons=())])
    report = {"success": 0.25, "low": 0.125, "high": 0.375}
    (run / "before.json").write_text(json.dumps({"sampled": report, "greedy": report}))
    (run / "measured.jsonl").write_text(json.dumps({"step": 2, **report, "success": 0.875}) + '\n{"step": 3, "succ')
    page.write(out, Collection([run]))
    looked.open(out)
    assert "0.250 0.13 to 0.38" in looked.text(".heldout")
    assert "0.875 0.13 to 0.38, step 2" in looked.text(".heldout")
    labels = "[...document.querySelectorAll('.row .label')].map((one) => one.textContent)"
    shown = looked.page.evaluate(labels)
    assert (shown[0], shown[-2:]) == ("step 1", ["eval-before", "eval-after"])
