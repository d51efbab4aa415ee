"""`full_scale.sh --dry`: every command of the papers' paths is looked at, and nothing starts."""

import os
import re
import subprocess
import sys
from importlib import import_module

import pytest
from fake_server import FakeServer, Reply, nobody
from sources import ROOT
from transformers import Qwen3Config

EXAMPLES = ROOT / "examples"
CONFIG = Qwen3Config(
    vocab_size=400, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, head_dim=16
)
PATHS = {
    "demystify": (["qwen3-4b"], ["qwen2.5-7b"]),
    "prs_vspo": (["qwen2.5-7b", "short"], ["qwen3-4b", "long"]),
    "reagent": (["data"], ["judge"], ["serve"], ["agent", "reagent-u"], ["agent", "reagent-r"]),
}
IN_PART = {"data": {"pool", "collect", "judge"}, "judge": {"sft", "train", "eval"}, "serve": {"serve"}}
"""Commands that a part of a script must give; others train and measure."""


@pytest.fixture
def dry_run(monkeypatch):
    """The program behind `--dry`, on a machine without a server, a model or docker."""
    monkeypatch.syspath_prepend(str(EXAMPLES.parent / "scripts"))
    module = import_module("dry_run")
    for name in ("TEACHER_URL", "ENGINE_URL", "SEARCH_URL", "JUDGE_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setattr(module, "config_of", lambda model: CONFIG)
    monkeypatch.setattr(module, "answers", lambda url: True)
    monkeypatch.setattr(module, "lacking", lambda url, model: "")
    monkeypatch.setattr(module.shutil, "which", lambda program: program)
    return module


@pytest.mark.parametrize(("path", "words"), [(path, words) for path, every in PATHS.items() for words in every])
def test_a_dry_run_looks_at_every_command_of_a_full_scale_path(path, words, tmp_path, dry_run):
    found = dry_run.looked_at(EXAMPLES / path / "full_scale.sh", words, tmp_path)
    assert IN_PART.get(words[0], {"train", "eval"}) <= {command[0] for command, *_ in found}
    problems = [problem for _, lacks, _ in found for problem in lacks]
    assert all(problem.startswith(f"no file {tmp_path}") for problem in problems)
    assert bool(problems) == (words not in (["judge"], ["serve"], ["qwen3-4b", "long"]))  # These take no file.


def test_dry_as_the_first_word_starts_nothing(tmp_path):
    """As a user gives it, in a folder without data and on a machine without servers."""
    command = ["sh", str(EXAMPLES / "reagent" / "full_scale.sh"), "--dry", "serve"]
    environment = {**os.environ, "PYTHON": sys.executable, "HF_ENDPOINT": "http://127.0.0.1:1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "ok palaestra serve rrm" in done.stdout
    assert "Needs: 8 cards" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_names_what_is_wrong_or_missing(dry_run, tmp_path, monkeypatch):
    script, data = tmp_path / "full_scale.sh", tmp_path / "data"
    data.mkdir()
    (data / "there.jsonl").touch()
    eval_it = 'palaestra eval code-math --model Some/Model --env-options tasks="$DATA/'
    script.write_text(
        f'{eval_it}there.jsonl"\n{eval_it}absent.jsonl"\n'
        'cat "$DATA/there.jsonl" "$DATA/joined.jsonl" > "$RUN/both.jsonl"\n'
        'palaestra eval code-math --model Some/Model --env-options tasks="$RUN/both.jsonl"\n'
        "palaestra train two-hop --model Some/Model --recipe vspo --steppes 3\n"
        "palaestra judge a.jsonl --teacher $OTHER_URL --teacher-model m --out b.jsonl\n"
        "palaestra eval two-hop --model Some/Model --critic $JUDGE_URL\n"
    )
    monkeypatch.setattr(dry_run, "lacking", lambda url, model: f"{model} at {url}?")
    (_, right, _), (_, file, _), (_, joined, _), (_, flag, _), (_, unset, _), (_, judge, _) = dry_run.looked_at(
        script, [], data
    )
    assert right == []
    assert file == [f"no file {data}/absent.jsonl"]
    assert joined == [f"no file {data}/joined.jsonl"]
    assert "steppes" in flag[0]
    assert "OTHER_URL is not set" in unset
    assert judge == ["rrm at http://127.0.0.1:1?"]
    monkeypatch.setattr(dry_run, "config_of", lambda model: None)
    assert "no model Some/Model" in dry_run.looked_at(script, [], data)[0][1][0]


def test_a_dry_run_asks_each_server_for_the_model_that_a_command_wants(dry_run):
    """And a server that is no OpenAI-compatible one, or not there, is said to be that."""
    needs = import_module("dry_needs")
    with (
        FakeServer(lambda seen: Reply({"data": [{"id": "Some/Model"}, {"id": "rrm"}]})) as server,
        FakeServer(lambda seen: Reply({"error": "no such path"}, 404)) as other,
        nobody() as dead,
    ):
        words = [
            "--model",
            "Some/Model",
            "--base-url",
            server.url,
            "--engine.urls",
            "http://e",
            "--critic",
            "http://c/v1",
        ]
        words += ["--env-options", 'search={"url": "http://s"}', 'judge={"base_url": "http://j", "model": "J"}']
        asked = dict(needs.servers(words))
        assert asked == {
            server.url: "Some/Model", "http://c/v1": "rrm", "http://e/v1": "", "http://s": None, "http://j": "J",
        }  # fmt: skip
        assert needs.lacking(server.url, "Some/Model") == needs.lacking(server.url, "") == ""
        assert needs.lacking(server.url, "Other") == f"no model Other at {server.url}; it serves Some/Model, rrm"
        assert "answers 404; expected the address of an OpenAI-compatible server" in needs.lacking(other.url, "x")
        assert needs.lacking(dead, "x") == f"nothing answers at {dead}"


def test_a_dry_run_says_hours_by_cards_and_room_on_the_disk(dry_run, tmp_path):
    """Of a model of 0.2 million weights; a model that the script makes has the size of the one it is made from."""
    ledger = dry_run.Ledger(lambda model: CONFIG if model == "Some/Model" else None)
    imitated = [*ledger.add(["sft", "a.jsonl", "--model", "Some/Model", "--run", "sft"])]
    train = ["train", "two-hop", "--model", "sft/model", "--recipe", "grpo-tcr", "--run", "rl", "--steps", "9"]
    train += [
        "--play.num-prompts",
        "4",
        "--play.num-generations",
        "2",
        "--engine.kind",
        "vllm",
        "--engine.urls",
        "http://127.0.0.1:1",
    ]
    hours, room = ledger.add(train)
    assert "checkpoints and models" in imitated[0] and "Some/Model" in room
    assert re.fullmatch(r"9 steps on h100s, by number: 1: \d+ h; 8: \d+ h; 16: \d+ h", hours)
    before = ledger.episodes
    assert [*ledger.add(["eval", "two-hop", "--model", "rl/model", "--tasks", "30", "--samples", "32"])] == []
    assert ledger.episodes - before == 30 * 32 * ledger.tokens * 30
    assert list(ledger.models) == ["Some/Model"] and ledger.runs > 0
    assert next(ledger.told()).startswith("Room on the disk: ")
    assert "not known without the config of Un/Known" in next(ledger.add(["sft", "a", "--model", "Un/Known"]))
