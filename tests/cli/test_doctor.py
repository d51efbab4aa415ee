"""The doctor on sound and on broken ground: it says what is wrong, what helps, and never falls ill itself."""

import contextlib
import http.server
import importlib.metadata
import json
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
import tomllib
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import families
import pytest

from palaestra.agents.local_model import export
from palaestra.cli import libraries, machine, main, model_check, sandbox_check
from palaestra.cli.finding import Finding, probe, show
from palaestra.envs.sandboxes import Capabilities
from palaestra.envs.sandboxes.docker import images

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A small model's folder, as a run writes it."""
    folder = tmp_path_factory.mktemp("models") / "sound"
    tokenizer = families.TOKENIZERS["qwen2.5"]
    export(families.stock_model("qwen3", len(tokenizer)), tokenizer, folder)
    return folder


@pytest.fixture
def model(sound, tmp_path):
    """A copy of it, to be broken."""
    return Path(shutil.copytree(sound, tmp_path / "model"))


GUARDS = asdict(Capabilities("local", files=True, memory="watched", landlock=7, notes=("watched only: delegate",)))


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """No check is cut short because this machine is busy; those of what hangs set a short time of their own."""
    monkeypatch.setattr(probe, "__defaults__", (60.0,))
    for module in ("doctor", "sandbox_check"):
        for name in ("LOCAL_SECONDS", "DOCKER_SECONDS"):
            monkeypatch.setattr(f"palaestra.cli.{module}.{name}", 60.0)


@pytest.fixture
def quick(monkeypatch):
    """The machine's checks without the children that import torch and open sandboxes, which other tests look at."""
    said = {"_LOCAL_CHILD": {"guards": GUARDS}, "_DOCKER_CHILD": {"refused": ["sandbox 'docker': nobody", "  buy one"]}}
    for name, found in said.items():
        text = json.dumps(found).replace("{", "{{").replace("}", "}}")
        monkeypatch.setattr(sandbox_check, name, f"print({text!r})")
    monkeypatch.setattr(machine, "_TORCH_CHILD", 'print("{{\\"failed\\": {{}}, \\"step\\": true}}")')


def doctor(capsys, *arguments):
    status = main(["doctor", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out, err


def report(capsys, *arguments):
    """The exit status and the findings by what they are about, from --json."""
    status, out, _ = doctor(capsys, *arguments, "--json")
    shown = json.loads(out)
    assert shown["ok"] is (status == 0)
    return status, {finding["about"]: finding for finding in shown["findings"]}, shown["verdict"]


def fatal(found):
    return [about for about, finding in found.items() if finding["vital"] and finding["state"] in ("missing", "broken")]


# The machine.


def test_here_the_basic_path_works(capsys):
    status, found, verdict = report(capsys)
    assert (status, fatal(found)) == (0, [])
    assert "makes a step of training" in found["basic path"]["text"]
    assert "works" in verdict
    for about in (
        "python",
        "palaestra",
        "numpy",
        "torch",
        "extra train",
        "torch build",
        "runs",
        "memory",
        "process limits",
        "local sandbox",
        "docker sandbox",
    ):
        assert about in found
    local = found["local sandbox"]
    assert "guards: files, network" in local["text"] or (local["state"], bool(local["remedy"])) == ("missing", True)


@pytest.mark.usefixtures("quick")
def test_forty_columns_are_enough(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    _, out, _ = doctor(capsys)
    assert max(map(len, out.splitlines())) <= 40


def test_what_a_terminal_cannot_show_is_spelled_out(tmp_path):
    with open(tmp_path / "out", "w", encoding="ascii") as stream:
        show([Finding("template", "shows <｜tool▁calls｜> \x1b[31mred\x1b[0m \u202e", remedy="東京")], stream)
    text = (tmp_path / "out").read_bytes()
    assert b"\x1b" not in text
    assert b"\\uff5c" in text
    assert text.count(b"\n") == 1


BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
from palaestra.cli import main
sys.exit(main({arguments!r}))
"""
HEAVY = {"torch", "transformers", "tokenizers", "safetensors", "jinja2", "httpx", "pyarrow", "matplotlib"}


def in_a_process(code, **environment):
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=ROOT, check=False, env={**os.environ, **environment}
    )


def test_it_works_where_no_optional_library_can_be_imported():
    done = in_a_process(BLOCKER.format(blocked=HEAVY, arguments=["doctor", "--json"]))
    assert done.stderr == ""
    found = {finding["about"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert done.returncode == 1
    assert {"torch", "transformers", "jinja2", "extra train", "basic path"} <= set(fatal(found))
    assert found["extra train"]["remedy"] == "pip install 'palaestra[train]'"
    assert found["numpy"]["state"] == "ok"
    assert found["local sandbox"]["state"] != "broken"


def test_a_model_cannot_be_looked_at_without_torch_and_the_extra_is_named():
    done = in_a_process(BLOCKER.format(blocked=HEAVY, arguments=["doctor", "tiny"]))
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'palaestra[train]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_library_that_is_installed_and_cannot_be_imported_is_found(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')")
    code = "import sys\nfrom palaestra.cli import main\nsys.exit(main(['doctor', '--json']))"
    done = in_a_process(code, PYTHONPATH=str(tmp_path))
    findings = json.loads(done.stdout)["findings"]
    assert done.returncode == 1
    assert any(f["about"] == "torch" and f["state"] == "broken" and "libcudart" in f["text"] for f in findings)


def test_a_driver_that_hangs_ends_with_its_deadline_and_leaves_no_process(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "TORCH_SECONDS", 1.0)
    monkeypatch.setattr(machine, "_TORCH_CHILD", f"import time; time.sleep(3601)  # {tmp_path}, {{seconds}}")
    (finding,) = probe("torch", machine.torch_findings, 60.0)
    assert (finding.state, "longer than 1 s" in finding.text) == ("broken", True)
    assert finding.fatal
    assert not [command for command in commands() if f"# {tmp_path}, ".encode() in command]


def commands():
    """What each process of this machine was started as. They come and go while one looks."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes()


@pytest.mark.parametrize(
    ("child", "said"),
    [("import os; os.kill(os.getpid(), 11)", "SIGSEGV"), ("raise SystemExit(7)", "status 7"), ("pass", "said nothing")],
)
def test_a_crash_of_torch_is_told(monkeypatch, child, said):
    monkeypatch.setattr(machine, "_TORCH_CHILD", child)
    (finding,) = probe("torch", machine.torch_findings, 60.0)
    assert (finding.state, said in finding.text) == ("broken", True)


@pytest.mark.parametrize("program", [machine._TORCH_CHILD, sandbox_check._LOCAL_CHILD, sandbox_check._DOCKER_CHILD])
def test_a_child_ends_by_itself_when_nobody_waits_for_it(program):
    """We may be killed while it runs."""
    code = program.format(seconds=-4 if "torch" in program else 1)
    first = next(line for line in code.splitlines() if line.startswith("signal.alarm"))
    child = subprocess.Popen([sys.executable, "-c", f"import signal, time\n{first}\ntime.sleep(600)"])
    try:
        assert child.wait(60) == -signal.SIGALRM
    finally:
        child.kill()
        child.wait()


def test_a_check_that_fails_hangs_or_quits_silences_no_other(monkeypatch):
    seen = threading.Event()

    def fails():
        yield Finding("first", "seen")
        raise RuntimeError("a strange\nmachine")

    def quits():
        raise SystemExit(3)

    def hangs():
        yield Finding("first", "seen")
        seen.set()
        time.sleep(600)

    class Finished(threading.Event):
        """The time of a check that hangs begins when it hangs."""

        def wait(self, timeout=None):
            assert seen.wait(60)
            return super().wait(timeout)

    assert [f.text for f in probe("x", fails)] == ["seen", "could not be looked at: a strange"]
    assert [f.state for f in probe("x", quits)] == ["warning"]
    assert probe("x", quits, vital=True)[0].fatal
    monkeypatch.setattr("palaestra.cli.finding.threading", SimpleNamespace(Thread=threading.Thread, Event=Finished))
    assert [f.text for f in probe("x", hangs, 0.2)] == ["seen", "did not answer within 0.2 s"]


def test_no_version_or_extra_is_missing_from_what_is_said():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["optional-dependencies"]) == set(libraries.PURPOSES)
    assert libraries.BASIC_EXTRA in project["optional-dependencies"]


def listed(monkeypatch, *lines):
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: list(lines))
    return libraries.needed_libraries()


def test_ranges_and_extras_are_read_from_the_metadata(monkeypatch):
    found = listed(
        monkeypatch,
        "numpy>=1.26",
        "Some.Thing (>=1.0) ; extra == 'plot'",
        'torch[opt-einsum]>=2.9; python_version >= "3.11" and extra == "train"',
        'palaestra[plot,train]; extra == "dev"',
    )
    assert [(one.name, str(one.supported), one.extra) for one in found] == [
        ("numpy", ">=1.26", ""), ("Some.Thing", ">=1.0", "plot"), ("torch", ">=2.9", "train")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "state", "remedy", "stops"),
    [
        ("numpy>=99", "broken", "pip install 'numpy>=99'", True),
        ("numpy<1", "broken", "pip install 'numpy<1'", True),
        ("no-such-library>=1", "missing", "pip install 'no-such-library>=1'", True),
        ('no-such-library>=1; extra == "train"', "missing", "pip install 'palaestra[train]'", True),
        ('no-such-library>=1; extra == "plot"', "missing", "pip install 'palaestra[plot]'", False),
    ],
)
def test_a_library_that_is_absent_or_out_of_range_is_told_with_the_remedy(monkeypatch, line, state, remedy, stops):
    listed(monkeypatch, line)
    name = "numpy" if line.startswith("numpy") else "no-such-library"
    finding = next(f for f in libraries.library_findings() if f.about == name)
    assert (finding.state, finding.remedy, finding.fatal) == (state, remedy, stops)


def test_palaestra_that_is_not_installed_is_told(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    finding = next(f for f in libraries.library_findings() if f.about == "palaestra")
    assert finding.fatal
    assert "pip install -e" in finding.remedy


def test_results_need_a_folder_that_can_be_written(tmp_path, monkeypatch):
    assert next(machine.place_findings(tmp_path / "new" / "runs")).state == "ok"
    (tmp_path / "runs").write_text("a file")
    assert next(machine.place_findings(tmp_path / "runs")).fatal
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "no permission" in next(machine.place_findings(tmp_path / "new")).text
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("quick")
def test_a_sandbox_is_told_with_its_guards_its_weaknesses_or_what_would_bring_it(capsys, monkeypatch):
    _, found, _ = report(capsys)
    local, weaker = found["local sandbox"], found["local sandbox, weaker"]
    assert local["text"].startswith("runs programs; guards: files, memory watched, landlock 7; without network, ")
    assert (local["state"], weaker["state"], weaker["text"]) == ("warning", "warning", "watched only: delegate")
    docker = found["docker sandbox"]
    assert (docker["state"], docker["text"], docker["remedy"]) == ("missing", "nobody", "buy one")
    assert "warning" not in [finding.state for finding in told(monkeypatch, {**GUARDS, "notes": []})]


def told(monkeypatch, guards):
    text = json.dumps({"guards": guards}).replace("{", "{{").replace("}", "}}")
    monkeypatch.setattr(sandbox_check, "_LOCAL_CHILD", f"print({text!r})")
    return list(sandbox_check.local_findings())


@pytest.mark.parametrize(
    ("child", "seconds", "said"),
    [
        ("import os; os.kill(os.getpid(), 31)", 60.0, "killed by SIGSYS"),
        ("raise ValueError('a strange kernel')", 60.0, "a strange kernel"),
        ("import time; time.sleep(600)", 1.0, "did not answer within 1 s"),
    ],
)
def test_a_sandbox_that_hangs_or_crashes_is_told(monkeypatch, child, seconds, said):
    monkeypatch.setattr(sandbox_check, "_LOCAL_CHILD", child)
    monkeypatch.setattr(sandbox_check, "LOCAL_SECONDS", seconds)
    (finding,) = sandbox_check.local_findings()
    assert (finding.about, finding.state, said in finding.text) == ("local sandbox", "warning", True)


class Engine(http.server.BaseHTTPRequestHandler):
    """A container engine, as far as it is asked: its version, and one image of ours."""

    def do_GET(self):
        has = images.tag("runner")
        answers = {
            "/version": {"ApiVersion": "1.44", "Components": []},
            "/info": {"ServerVersion": "25.0", "Runtimes": {"runsc": {}, "runc": {}}},
            f"/images/{has}/json": {"Config": {"Labels": {images.LABEL: images.runner_version()}}},
        }
        answer = answers.get(self.path.removeprefix("/v1.44"))
        body = json.dumps(answer or {"message": f"No such image: {self.path}"}).encode()
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self):
        return "here"

    def log_message(self, *_):
        pass


class Liar(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.recv(1000)
        self.request.sendall(b"SSH-2.0-OpenSSH\r\n")


class Mute(socketserver.BaseRequestHandler):
    def handle(self):
        while self.request.recv(1000):
            pass


@contextlib.contextmanager
def engine(path, handler):
    """Something that listens where an engine would."""
    with socketserver.ThreadingUnixStreamServer(str(path), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join(60)


def test_a_container_engine_tells_its_runtimes_and_which_images_it_has(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/sock")
    with engine(tmp_path / "sock", Engine):
        found = {finding.about: finding for finding in sandbox_check.docker_findings()}
    assert found["docker sandbox"].text == "Docker 25.0 answers; runtimes: runc, runsc"
    assert {name: found[f"docker image {name}"].state for name in images.PURPOSES} == {
        "runner": "ok",
        "python": "missing",
        "judge": "missing",
    }
    assert images.COMMAND in found["docker image python"].remedy


@pytest.mark.parametrize(
    ("handler", "seconds", "state", "said"),
    [
        (Liar, 60.0, "missing", "no engine answers"),
        (Mute, 2.0, "warning", "did not answer"),
        (None, 60.0, "missing", "refused"),
    ],
    ids=["a liar", "a mute", "nobody"],
)
def test_what_is_no_engine_is_told(monkeypatch, tmp_path, handler, seconds, state, said):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/sock")
    monkeypatch.setattr(sandbox_check, "DOCKER_SECONDS", seconds)
    with engine(tmp_path / "sock", handler) if handler else dead(tmp_path / "sock"):
        (finding,) = sandbox_check.docker_findings()
    assert (finding.about, finding.state) == ("docker sandbox", state)
    assert said in finding.text


@contextlib.contextmanager
def dead(path):
    """A socket that nobody listens on."""
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        yield


# A model.


def test_a_sound_model_is_safe_or_has_warnings_only(capsys, sound):
    status, found, verdict = report(capsys, sound)
    assert (status, fatal(found)) == (0, [])
    assert f"--model {sound}" in verdict
    assert "call format" in verdict  # Its template writes no calls.
    assert "headers alone" in found["weights"]["text"]


def test_no_weights_are_loaded(capsys, sound, monkeypatch):
    import safetensors
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    monkeypatch.setattr(safetensors, "torch", None, raising=False)
    assert report(capsys, sound)[0] == 0


def test_the_tiny_agent_can_be_looked_at(capsys):
    status, found, _ = report(capsys, "tiny", "--recipe", "grpo-tcr")
    assert status == 0
    assert "96 slots, rows of 256 tokens" in " ".join(f["text"] for f in found.values())


def without(name):
    def damage(folder):
        (folder / name).unlink()

    return damage


def rewritten(name, change):
    def damage(folder):
        (folder / name).write_text(json.dumps(change(json.loads((folder / name).read_text()))))

    return damage


def overwritten(name, data):
    def damage(folder):
        (folder / name).write_bytes(data)

    return damage


def cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def lengthened(config):
    return {**config, "num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}


def sliding(config):
    return {**config, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}


SHARDS = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}


@pytest.mark.parametrize(
    ("damage", "about", "said"),
    [
        (without("config.json"), "model", "holds no config.json"),
        (overwritten("config.json", b"{"), "model", "config could not be read"),
        (overwritten("config.json", b"{}"), "model", "config could not be read"),
        (overwritten("config.json", b"\xff\xfe\x00"), "model", "config could not be read"),
        (rewritten("config.json", lambda c: {**c, "model_type": "nobodys"}), "model", "config could not be read"),
        (rewritten("config.json", lambda c: {**c, "model_type": "t5"}), "architecture", "causal language model"),
        (rewritten("config.json", lambda c: {**c, "num_attention_heads": 0}), "architecture", "from this config"),
        (rewritten("config.json", sliding), "attention", "sliding_attention"),
        (rewritten("config.json", lengthened), "weights", "is missing"),
        (rewritten("config.json", lambda c: {**c, "vocab_size": 100}), "vocabulary", "the model knows 100"),
        (without("chat_template.jinja"), "chat template", "no chat template"),
        (overwritten("chat_template.jinja", b"{% for %}"), "chat template", "TemplateSyntaxError"),
        (overwritten("tokenizer.json", b'{"model": {"type": "BPE"'), "model", "tokenizer could not be read"),
        (overwritten("tokenizer.json", b""), "model", "tokenizer could not be read"),
        (without("model.safetensors"), "weights", "missing: model.safetensors"),
        (cut, "weights", "damaged"),
        (overwritten("model.safetensors", b"\xff" * 64), "weights", "damaged"),
        (overwritten("model.safetensors.index.json", json.dumps(SHARDS).encode()), "weights", "missing: model-1"),
        (overwritten("model.safetensors.index.json", b"[]"), "weights", "cannot be read"),
    ],
)
def test_a_broken_model_is_told_with_what_is_broken(capsys, model, damage, about, said):
    damage(model)
    status, found, verdict = report(capsys, model)
    assert status == 1
    assert about in fatal(found), found
    assert said in found[about]["text"]
    assert verdict.startswith("not ready to train")


def test_a_window_that_the_engine_does_not_see_is_a_warning(capsys, tmp_path):
    from transformers import MistralConfig, MistralForCausalLM

    tokenizer = families.TOKENIZERS["qwen2.5"]
    config = MistralConfig(vocab_size=len(tokenizer), num_key_value_heads=2, sliding_window=64, **families.SIZE)
    export(MistralForCausalLM(config), tokenizer, tmp_path)
    status, found, _ = report(capsys, tmp_path)
    assert (status, found["attention"]["state"]) == (0, "warning")
    assert found["attention"]["remedy"] == "--max-episode-tokens 64"


def test_code_beside_a_model_is_never_run(capsys, model, tmp_path):
    (model / "theirs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    rewritten("config.json", lambda c: {**c, "model_type": "nobodys", "auto_map": {"AutoConfig": "theirs.C"}})(model)
    status, found, _ = report(capsys, model)
    assert (status, fatal(found)) == (1, ["model"])
    assert not (tmp_path / "ran").exists()


def test_a_name_that_can_be_no_model_is_told_at_once(capsys, sound, tmp_path):
    shutil.copytree(sound, tmp_path / "run" / "model")
    (tmp_path / "run" / "config.json").write_text("{}")
    (tmp_path / "file").write_text("")
    for name, said in (
        (tmp_path / "run", "is a run"),
        (tmp_path / "file", "is a file"),
        (tmp_path / "nowhere", "there is no folder"),
        ("runs/two-hop/model/", "there is no folder"),
        ("~/models/x", "there is no folder"),
    ):
        status, found, _ = report(capsys, name)
        assert (status, said in found["model"]["text"]) == (1, True), name


class Hub(http.server.BaseHTTPRequestHandler):
    """A hub that has no model, or one that it does not give away."""

    def do_HEAD(self):
        self.send_response(403 if "gated" in self.path else 404)
        self.send_header("X-Error-Code", "GatedRepo" if "gated" in self.path else "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *_):
        pass


def asking(name, tmp_path, port, seconds=120):
    """The doctor's answer about a hub name, in a process of its own: the hub's client reads its address once."""
    code = (
        f"import sys\nfrom palaestra.cli import main, doctor\ndoctor._MODEL_SECONDS = {seconds}\n"
        f"sys.exit(main(['doctor', {name!r}, '--json']))"
    )
    environment = {"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0", "HTTPS_PROXY": "", "https_proxy": ""}
    done = in_a_process(code, HF_HOME=str(tmp_path), HF_ENDPOINT=f"http://127.0.0.1:{port}", **environment)
    return done.returncode, {f["about"]: f for f in json.loads(done.stdout)["findings"]}


@pytest.mark.parametrize(
    ("name", "said", "helps"),
    [("some/absent", "not a valid model identifier", "hub name"), ("some/gated", "gated", "hf auth login")],
)
def test_a_hub_that_refuses_is_quoted(tmp_path, name, said, helps):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            status, found = asking(name, tmp_path, server.server_port)
        finally:
            server.shutdown()
    assert (status, fatal(found)) == (1, ["model"])
    assert said in found["model"]["text"]
    assert helps in found["model"]["remedy"]


def test_a_hub_that_takes_connections_and_says_nothing_is_given_up(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        status, found = asking("some/model", tmp_path, mute.getsockname()[1], seconds=3)
    assert (status, fatal(found)) == (1, ["model"])
    assert "did not answer within 3 s" in found["model"]["text"]


def test_without_a_network_a_hub_name_is_told_at_once(monkeypatch):
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        (finding,) = model_check.model_findings("some/model", None)
    assert finding.fatal
    assert "cannot be reached" in finding.text
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (finding,) = model_check.model_findings("some/model", None)
    assert "HF_HUB_OFFLINE" in finding.text


# Memory.


def test_a_recipe_adds_the_memory_of_a_run(capsys, sound):
    _, found, _ = report(capsys, sound)
    assert not any(about.startswith("memory") for about in found)
    _, out, _ = doctor(capsys, sound, "--recipe", "grpo-t", "--slots", "8", "--max-episode-tokens", "128")
    for part in ("weights", "AdamW", "reference model", "8 slots, rows of 128", "gradients", "logits", "activations"):
        assert part in out, part
    assert "memory in all" in out


def test_too_little_memory_is_a_warning_that_says_what_would_fit(capsys, sound, monkeypatch):
    asked = [sound, "--slots", "64", "--max-episode-tokens", "1024", "--micro-batch-tokens", "1024", "--device", "cpu"]
    monkeypatch.setattr(model_check, "available_memory", lambda: 30_000_000)
    status, found, _ = report(capsys, *asked)
    total = found["memory in all"]
    assert (status, total["state"]) == (0, "warning")
    fitting = total["remedy"].split()[1]
    assert report(capsys, *asked, "--slots", fitting)[1]["memory in all"]["state"] == "ok"
    assert report(capsys, *asked, "--slots", str(int(fitting) + 1))[1]["memory in all"]["state"] == "warning"
    monkeypatch.setattr(model_check, "available_memory", lambda: 1000)
    assert "smaller model" in report(capsys, *asked)[1]["memory in all"]["remedy"]


def test_a_wrong_request_exits_with_2(capsys):
    for option, value in (("--recipe", "grpo-tc"), ("--slots", "0"), ("--device", "cuda:99"), ("--slot", "3")):
        try:
            status = main(["doctor", "tiny", option, value])
        except SystemExit as stop:
            status = stop.code
        assert status == 2
        assert "Traceback" not in capsys.readouterr().err
