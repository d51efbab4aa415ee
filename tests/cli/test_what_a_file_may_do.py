"""Files of strangers: a record, a run folder or a model names what is played, and never where code runs, who is asked,
which key is sent, or which module is imported.
"""

import importlib
import json
import re
import sys
import threading
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from commands import refused, run

import palaestra
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.agents.policies.tiny import tiny_tokenizer
from palaestra.cli import sft, train
from palaestra.cli.running import resume_hint
from palaestra.envs.core.backends import Where
from palaestra.envs.records.gathering import ReplayMachines
from palaestra.envs.suite.debate import Debate
from palaestra.episode import Start
from palaestra.errors import UsageError
from palaestra.plain import from_pairs
from palaestra.record import Record, read, write
from palaestra.registry import services
from palaestra.trainers.config.grpo_config import grpo_config, tiny_config
from palaestra.trainers.config.sft_config import tiny_sft_config
from palaestra.trainers.run.folder import Run
from palaestra.trainers.run.offline_audit import audit_run
from palaestra.trainers.run.saved_config import read_config, repeated, written_config

ENV = "palaestra/Calculator-v0"
EVIL = f"evilmod:{ENV}"
OPEN = {"backend": "local", "limits": {"processes": 64}}


def played(env_id, says=None, options=None, **given):
    """An episode for each seat, of the demonstrator or of one that says the same each turn."""
    with closing(palaestra.arena(env_id, 4, **given)) as arena:
        seats = getattr(arena, "seats", ()) or (None,)
        agent = Agent(ScriptedPolicy(says or palaestra.demonstrator(env_id)))
        starts = [Start(n, n, 0, seat=seat) for n in range(2) for seat in seats]
        return [Record(env_id, episode, options or {"split": "train"}) for episode in play(agent, arena, starts)]


@pytest.fixture(scope="module")
def honest():
    return played(ENV)


@pytest.fixture
def shared(tmp_path, honest, monkeypatch):
    """A folder that holds a run and episodes whose ids name a module, and that module, which tells of its import."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    for name in ("evilmod", "mymod"):  # Whatever another test has imported.
        monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
    (tmp_path / "evilmod.py").write_text("import pathlib\npathlib.Path('imported').touch()\n")
    records = [replace(record, env_id=EVIL, agent="demonstrator") for record in honest]
    Run.create(tmp_path / "run", tiny_config(EVIL)).close()
    write(tmp_path / "run" / "episodes" / "step-000001.jsonl", records)
    write(tmp_path / "e.jsonl", records)
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "1 * 1?", "answer": "1", "split": "train"}\n')
    (tmp_path / "arm" / "steps_1").mkdir(parents=True)
    (tmp_path / "run").rename(tmp_path / "arm" / "steps_1" / "seed-0")
    (tmp_path / "run").symlink_to(tmp_path / "arm" / "steps_1" / "seed-0")
    return tmp_path


STOPPED = {
    "replay": "replay e.jsonl",
    "replay of a run": "replay run",
    "rescore": "rescore e.jsonl --reward palaestra/debate-v0",
    "train": "train --resume run",
    "play": "play debate --episode e.jsonl:2",
}
"""Commands that need the environment."""
SHOWN = {
    "view": "view run",
    "view of episodes": "view e.jsonl --out v.html",
    "audit": "audit run",
    "analyse": "analyse run",
    "analyse of episodes": "analyse e.jsonl",
    "judge": "judge e.jsonl --out labels.jsonl",
    "pool": "pool tasks.jsonl --attempts e.jsonl --out pool.jsonl",
    "collect": "collect calculator --out e2.jsonl --tasks 2",
    "curate": "curate calculator --out e2.json --tasks 2 -k 2",
    "collect of solutions": "collect calculator --stitch e.jsonl --out e3.jsonl --tasks 2",
    "rescore by another reward": f"rescore e.jsonl --reward {ENV}",
    "sft": "sft e.jsonl --epochs 1 --run imitated",
    "sweep": "sweep calculator --over steps=1 --seeds 0 --run arm",
}
"""Commands that do without it, or refuse the file for another reason."""


@pytest.mark.parametrize("command", [*STOPPED, *SHOWN])
def test_no_command_imports_a_module_that_a_file_names(command, shared, honest, capsys):
    for name in ("e2", "e3"):
        write(shared / f"{name}.played.jsonl", read(shared / "e.jsonl"))
    if command == "play":  # A game of that module, met on the way to the episode that is asked for.
        debate = played("palaestra/debate-v0")
        write(shared / "e.jsonl", [replace(one, env_id="evilmod:palaestra/debate-v0") for one in debate])
    words = {**STOPPED, **SHOWN}[command].split()
    if command in STOPPED:
        refused(capsys, "add --allow-code evilmod", *words)
    else:
        status, out, err = run(capsys, *words)
        assert "Traceback" not in err, err
        assert command in ("sweep", "collect of solutions", "collect", "curate") or status in (0, 1), out + err
    assert not (shared / "imported").exists()


def test_audit_imports_no_module_that_a_run_with_a_tokenizer_names(shared, capsys):
    tiny_tokenizer(["6 * 7?"]).save_pretrained(shared / "run" / "start")
    (shared / "run" / "start" / "config.json").write_text('{"model_type": "qwen2"}')
    refused(capsys, "add --allow-code evilmod", "audit", "run", "--no-rescore")
    assert not (shared / "imported").exists()


def test_audit_names_the_environment_whose_rewards_it_leaves_out(shared, capsys):
    assert run(capsys, "audit", "run", "--json", "-")[0] in (0, 1)
    assert not (shared / "imported").exists()
    assert EVIL in audit_run(shared / "run", print, lambda record: None).skipped["rewards"]


@pytest.mark.parametrize("words", [("replay", "e.jsonl"), ("train", "--resume", "run", "--help")])
def test_allow_code_imports_the_modules_that_it_names_and_no_others(words, shared, capsys):
    (shared / "mymod.py").write_text("import pathlib\npathlib.Path('allowed').touch()\n")
    run(capsys, *words, "--allow-code", "mymod")
    assert not (shared / "imported").exists()
    if "--help" not in words:
        assert (shared / "allowed").exists()
        assert run(capsys, *words, "--allow-code", "evilmod")[:2] == (0, "2 identical, 0 different\n")
        assert (shared / "imported").exists()


@pytest.mark.parametrize("name", [f"evilmod.a,os:{ENV}", f"evilmod.a#os:{ENV}", f"evilmod.a#=1,os:{ENV}"])
def test_an_id_that_reads_as_a_mixture_and_as_a_module_imports_nothing(name, shared, capsys):
    (record, *_) = read(shared / "e.jsonl")
    write(shared / "e.jsonl", [replace(record, env_id=name)])
    refused(capsys, "mixture", "replay", "e.jsonl")
    run(capsys, "sft", "e.jsonl", "--epochs", "1", "--run", "imitated")
    with pytest.raises(UsageError, match="no name of a module"):
        ReplayMachines().replay([replace(record, env_id=name)])
    assert not (shared / "imported").exists()


@pytest.mark.parametrize("changes", [{"env_id": ["a"]}, {"env_id": 5}, {"options": {1: "docker"}}])
def test_a_record_whose_names_are_no_texts_is_a_defect(changes, honest, tmp_path, capsys):
    write(tmp_path / "e.jsonl", [replace(honest[0], **changes)])
    status, out, err = run(capsys, "replay", tmp_path / "e.jsonl")
    assert (status, "Traceback" in err) == (1, False)
    assert "1 lines are no episodes" in out


# Where a program runs, who is asked, which key is sent.


def test_an_option_with_a_point_in_its_name_is_a_service_too():
    with pytest.raises(UsageError, match="expected KEY=VALUE"):  # It would be shown as a word to add.
        from_pairs(["--engine.urls=http://e"], "env_options")
    assert services("theirs/Env-v0", {"a.place": "http://e", "a.size": 3}) == {"a.place": "http://e"}


def test_a_program_of_a_record_runs_in_the_sandbox_of_the_command_and_not_of_the_record(tmp_path, capsys):
    program = f"```python\nopen({str(tmp_path / 'escaped')!r}, 'w')\n```"
    (record, *_) = played("palaestra/CodeContest-v0", lambda messages, rng: program)
    for sandbox, flag in ((OPEN, "--env-options 'sandbox={"), ("docker", "--env-options sandbox=docker")):
        write(tmp_path / "e.jsonl", [replace(record, options={"split": "train", "sandbox": sandbox})])
        refused(capsys, f"if you trust it, add {flag}", "replay", tmp_path / "e.jsonl")
    assert run(capsys, "replay", tmp_path / "e.jsonl", "--env-options", "sandbox=local")[0] == 0
    assert not (tmp_path / "escaped").exists()


@pytest.fixture
def server(monkeypatch):
    """The headers that somebody's server has been sent."""
    heard = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            heard.append(self.headers.get("Authorization"))
            self.rfile.read(int(self.headers["Content-Length"]))
            verdict = json.dumps({"choices": [{"message": {"content": "Match"}, "finish_reason": "stop"}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(verdict)))
            self.end_headers()
            self.wfile.write(verdict)

        def log_message(self, *_):
            pass

    monkeypatch.setenv("SECRET_KEY_OF_MINE", "sk-very-secret")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}/v1", heard
        found.shutdown()


def test_a_record_sends_no_key_to_a_server_and_a_command_line_may(server, tmp_path, capsys):
    url, heard = server
    judge = {"backend": "label", "base_url": url, "model": "m", "api_key_env": "SECRET_KEY_OF_MINE"}
    (record, *_) = played("palaestra/LongQA-v0", lambda messages, rng: "An answer.")
    write(tmp_path / "e.jsonl", [replace(record, options={"split": "train", "judge": judge})])
    said = refused(capsys, "judge=", "replay", tmp_path / "e.jsonl")
    assert "--env-options" in said
    assert heard == []
    run(capsys, "replay", tmp_path / "e.jsonl", "--env-options", f"judge={json.dumps(judge)}")
    assert heard == ["Bearer sk-very-secret"]


class Advised(Debate):
    """A debate with somebody who is asked."""

    opened: list[object] = []  # noqa: RUF012

    def __init__(self, split: str = "train", advisor: Where = "none") -> None:
        super().__init__(split)
        self.opened.append(advisor)


def test_rescoring_a_game_opens_no_service_of_its_records(tmp_path, capsys):
    for name in ("Advised-v0", "Advised-v1"):
        palaestra.register_game(
            f"me/{name}", f"{__name__}:Advised", demonstrator="palaestra.envs.suite.debate:demonstrate"
        )
    evil = {"split": "train", "advisor": {"url": "http://evil"}}
    write(tmp_path / "e.jsonl", [replace(one, options=evil) for one in played("me/Advised-v0")])
    Advised.opened.clear()
    words = ("rescore", tmp_path / "e.jsonl", "--reward", "me/Advised-v1")
    refused(capsys, "only if the command names them too: 'advisor=", *words)
    assert evil["advisor"] not in Advised.opened
    assert run(capsys, *words, "--env-options", "advisor=mine")[0] == 0
    assert Advised.opened[-1] == "mine"


SERVICES = {
    "sandbox": ({"env_options": ("digits=2", f"sandbox={json.dumps(OPEN)}")}, "--env-options 'sandbox={"),
    "judge": ({"url": ("http://e:1",), "key_env": "MY_KEY"}, "--recipe.judge.key-env MY_KEY"),
    "engine": ({"model": "m", "kind": "vllm", "urls": ("http://e:1", "http://e:2")}, "--engine.urls http://e:1"),
    "weights": ({"weights_folder": "/elsewhere"}, "--engine.weights-folder /elsewhere"),
    "tracker": ({"track": ("wandb", "tensorboard")}, "--track wandb --track tensorboard"),
    "ray": ({"workers": 1, "ray_address": "ray://e:1"}, "--env.ray-address ray://e:1"),
}


@pytest.mark.parametrize("service", SERVICES)
def test_a_run_uses_a_service_where_the_command_names_it_again(service, tmp_path):
    settings, words = SERVICES[service]
    recipe = "reagent-r" if service == "judge" else "grpo-tcr"
    config = grpo_config("palaestra/Arithmetic-v0", recipe, **{"env_options": ("digits=2",), **settings})
    (tmp_path / "config.json").write_text(written_config(config))
    for go_on in (lambda: train.parse(["--resume", str(tmp_path)], "palaestra train"), lambda: Run.reopened(tmp_path)):
        with pytest.raises(UsageError, match=f"only if the command names them too: .*{re.escape(words)}"):
            go_on()
    again = train.parse(["--resume", str(tmp_path), *repeated(config)], "palaestra train").config
    assert again == config


def test_a_run_without_services_goes_on_with_nothing_named(tmp_path):
    config = tiny_config("palaestra/Arithmetic-v0", env_options=("digits=2", "sandbox=local"))
    Run.create(tmp_path / "run", config).close()
    assert train.parse(["--resume", str(tmp_path / "run")], "palaestra train").config == config
    assert repeated(config) == []


def test_imitation_that_is_gone_on_with_tells_no_tracker_that_its_file_names(tmp_path):
    (tmp_path / "config.json").write_text(written_config(tiny_sft_config(files=("e.jsonl",), track=("wandb",))))
    with pytest.raises(UsageError, match="only if the command names them too: --track wandb"):
        sft.parse(["--resume", str(tmp_path)])


def test_an_interrupted_run_says_what_must_be_named_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ownmod.py").write_text("")
    train.parse([f"ownmod:{ENV}"], "palaestra train")
    config = tiny_config(f"ownmod:{ENV}", track=("tensorboard",))
    with Run.create(tmp_path / "run", config) as record:
        assert "--track tensorboard --allow-code ownmod" in resume_hint("train", record)


# A folder of a stranger's.


def test_records_and_labels_are_written_over_no_file_that_a_link_leads_to(shared, capsys):
    (shared / "precious").write_text("mine")
    for name in ("e.jsonl.part", "labels.jsonl.part", "e2.played.jsonl"):
        (shared / name).symlink_to(shared / "precious")
    write(shared / "e.jsonl", list(read(shared / "e.jsonl")))
    assert run(capsys, "judge", "e.jsonl", "--out", "labels.jsonl")[0] == 0
    refused(capsys, "is a link", "collect", "calculator", "--out", "e2.jsonl", "--tasks", "2")
    assert (shared / "precious").read_text() == "mine"


@pytest.mark.parametrize("name", ["checkpoints", "metrics.jsonl", "lock", "episodes/step-000001.jsonl"])
def test_a_run_writes_and_removes_nothing_outside_its_folder(name, tmp_path):
    Run.create(tmp_path / "run", tiny_config(ENV)).close()
    precious, place = tmp_path / "precious", tmp_path / "run" / name
    precious.write_text("mine")
    place.unlink(missing_ok=True)
    place.symlink_to(precious)
    with pytest.raises(UsageError, match=f"{name} is a link"):
        Run.reopened(tmp_path / "run")
    assert precious.read_text() == "mine"


def test_a_page_of_a_run_is_written_over_no_other_file(shared, capsys):
    precious = shared / "precious"
    precious.write_text("mine")
    Path("run/view.html.part").symlink_to(precious)
    assert run(capsys, "view", "run")[0] == 0
    assert precious.read_text() == "mine"


@pytest.mark.parametrize(
    "content", ["[" * 100_000, '{"palaestra": 2, "kind": []}', '{"palaestra": 2, "kind": "grpo", "env": 5}']
)
def test_a_config_that_is_none_is_refused_in_a_sentence(content, tmp_path, capsys):
    (tmp_path / "config.json").write_text(content)
    refused(capsys, "config.json", "train", "--resume", tmp_path)


def test_a_checkpoint_that_says_nonsense_is_refused_in_a_sentence(tmp_path, capsys):
    from palaestra.trainers.run.checkpoint import _digest

    Run.create(tmp_path / "run", tiny_config(ENV)).close()
    place = tmp_path / "run" / "checkpoints" / "step-000001"
    place.mkdir(parents=True)
    content = {"palaestra": 2, "files": ["../../x"], "step": "1"}
    (place / "checkpoint.json").write_text(json.dumps({"digest": _digest(content), **content}))
    refused(capsys, "no checkpoint in", "train", "--resume", tmp_path / "run")
    assert read_config(tmp_path / "run").steps
