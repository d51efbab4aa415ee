"""The doctor on sound and on broken ground: it says what is wrong, what helps, and never falls ill itself."""

import contextlib
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import families
import pytest

from palaestra.agents.model_folder import export
from palaestra.cli import doctor, libraries, machine, main, model_check
from palaestra.cli.doctor import InChild, probe
from palaestra.cli.finding import DoctorFinding, show
from palaestra.envs import sandboxes
from palaestra.envs.sandboxes import Capabilities
from palaestra.envs.sandboxes.docker import connection, images
from palaestra.errors import SandboxUnavailable
from palaestra.trainers.scale import available_memory as room

ROOT = Path(__file__).resolve().parents[2]
SOON, PATIENT = 1.0, 300.0


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


@pytest.fixture
def patient(monkeypatch):
    """No check is cut short because this machine is busy."""
    checks = [
        (about, replace(check, timeout=PATIENT) if isinstance(check, InChild) else check, vital)
        for about, check, vital in doctor.CHECKS
    ]
    monkeypatch.setattr(doctor, "CHECKS", checks)


@pytest.fixture
def path(monkeypatch, tmp_path):
    """A folder whose modules every child finds before all others."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    return tmp_path


def told(capsys, *arguments):
    """The exit status, the findings by what they are about, and the verdict."""
    status = main(["doctor", *map(str, arguments), "--json", "-"])
    shown = json.loads(capsys.readouterr().out)
    assert shown["ok"] is (status == 0)
    return status, {finding["about"]: finding for finding in shown["findings"]}, shown["verdict"]


def fatal(found):
    return [about for about, finding in found.items() if finding["vital"] and finding["state"] in ("missing", "broken")]


# The machine.


@pytest.mark.prove
@pytest.mark.usefixtures("patient")
def test_here_the_basic_path_works(capsys):
    status, found, verdict = told(capsys)
    assert (status, fatal(found)) == (0, [])
    assert "takes a training step" in found["basic path"]["text"]
    assert verdict.startswith("the basic path works")
    abouts = {"python", "palaestra", "numpy", "torch", "extra train", "torch build", "runs", "memory", "process limits"}
    assert abouts | {"local sandbox", "docker sandbox"} <= set(found)
    local = found["local sandbox"]
    assert "guards: files, network" in local["text"] or (local["state"], bool(local["remedy"])) == ("missing", True)


def test_forty_columns_are_enough(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(doctor, "CHECKS", [row for row in doctor.CHECKS if not isinstance(row[1], InChild)])
    main(["doctor"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 40


def test_what_a_terminal_cannot_show_is_spelled_out(tmp_path):
    with open(tmp_path / "out", "w", encoding="ascii", errors="backslashreplace") as stream:
        show([DoctorFinding("template", "shows <｜tool▁calls｜> \x1b[31mred\x1b[0m \u202e", remedy="東京")], stream)
    text = (tmp_path / "out").read_bytes()
    assert b"\x1b" not in text
    assert b"\\uff5c" in text
    assert text.count(b"\n") == 1


BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "tokenizers", "safetensors", "jinja2", "httpx"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
"""


def in_a_process(*arguments):
    command = [sys.executable, "-W", "error", "-m", "palaestra", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, check=False)


@pytest.mark.prove
def test_without_optional_libraries_the_machine_is_looked_at_and_a_model_is_refused_with_the_extra_named(path):
    (path / "sitecustomize.py").write_text(BLOCKER)
    done = in_a_process("--json", "-")
    assert (done.returncode, "Warning" in done.stderr) == (1, False)
    found = {finding["about"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert {"torch", "transformers", "jinja2", "extra train", "basic path"} <= set(fatal(found))
    assert found["extra train"]["remedy"] == found["basic path"]["remedy"] == "pip install 'palaestra[train]'"
    assert found["numpy"]["state"] == "ok"
    assert found["local sandbox"]["state"] != "broken"
    done = in_a_process("tiny")
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'palaestra[train]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_library_that_is_installed_and_cannot_be_imported_is_found(path):
    (path / "torch").mkdir()
    (path / "torch" / "__init__.py").write_text("raise OSError('libcudart.so.13: cannot open shared object file')")
    (finding,) = InChild(machine.torch_findings, PATIENT)()
    assert (finding.about, finding.state, finding.vital) == ("torch", "broken", True)
    assert "libcudart" in finding.text


ILL = """
import os, sys, time
def crash(): os.kill(os.getpid(), 11)
def leave(): sys.exit(7)
def fail(): raise ValueError("a strange\\nkernel")
def hang(): time.sleep(600)
"""


@pytest.mark.parametrize(
    ("name", "seconds", "said"),
    [
        ("crash", PATIENT, "was killed by SIGSEGV"),
        ("leave", PATIENT, "ended with status 7"),
        ("fail", PATIENT, "kernel"),
        ("hang", SOON, "did not end within 1 s"),
    ],
)
def test_a_driver_that_hangs_or_crashes_is_told_with_the_remedy(path, name, seconds, said):
    (path / "ill.py").write_text(ILL)
    look = SimpleNamespace(__module__="ill", __name__=name)
    (finding,) = probe("torch", InChild(look, seconds, "; another driver"), vital=True)
    assert finding.fatal
    assert said in finding.text
    assert finding.text.endswith("; another driver")


def test_a_child_ends_by_itself_when_nobody_waits_for_it(path):
    """We may be killed while it runs."""
    (path / "ill.py").write_text(ILL)
    child = subprocess.Popen([sys.executable, "-c", doctor._CHILD.format(seconds=1, module="ill", name="hang")])
    try:
        assert child.wait(60) == -signal.SIGALRM
    finally:
        child.kill()
        child.wait()


def test_a_check_that_fails_or_quits_silences_no_other():
    def fails():
        yield DoctorFinding("first", "seen")
        raise RuntimeError("a strange\nmachine")

    def quits():
        raise SystemExit(3)

    assert [f.text for f in probe("x", fails)] == ["seen", "could not be checked: a strange"]
    assert [f.state for f in probe("x", quits)] == ["warning"]
    assert probe("x", quits, vital=True)[0].fatal


def test_every_extra_has_a_purpose():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(project["optional-dependencies"]) == set(libraries.PURPOSES)


@pytest.mark.parametrize(
    ("line", "text", "state", "remedy", "stops"),
    [
        ("numpy>=1", "(needs >=1)", "ok", "", False),
        ("numpy>=99", "(needs >=99)", "broken", "pip install 'numpy>=99'", True),
        ("numpy<1", "(needs <1)", "broken", "pip install 'numpy<1'", True),
        ("no-such.thing<2,>=1", "not installed (needs >=1,<2)", "missing", "pip install 'no-such.thing>=1,<2'", True),
        ("no-such.thing; extra == 'train'", "any version", "missing", "pip install 'palaestra[train]'", True),
        ('no-such.thing[a]>=1; python_version > "3" and extra == "plot"', ">=1", "missing",
         "pip install 'palaestra[plot]'", False),
    ],
)  # fmt: skip
def test_a_library_that_is_absent_or_out_of_range_is_told_with_the_remedy(
    monkeypatch, line, text, state, remedy, stops
):
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: [line, 'palaestra[plot]; extra == "dev"'])
    (finding,) = (f for f in libraries.library_findings() if f.about in ("numpy", "no-such.thing"))
    assert (finding.state, finding.remedy, finding.fatal) == (state, remedy, stops)
    assert text in finding.text


def test_palaestra_that_is_not_installed_is_told(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "metadata", absent)
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


def test_a_control_group_bounds_the_memory_even_where_it_is_one_above_ours(monkeypatch):
    kernel = {
        "/proc/meminfo": "MemTotal: 99 kB\nMemAvailable:   50 kB",
        "/proc/self/cgroup": "0::/a/b",
        "/sys/fs/cgroup/a/b/memory.max": "max",
        "/sys/fs/cgroup/a/memory.current": "1000",
    }
    monkeypatch.setattr(room, "_text", lambda path: kernel.get(str(path), ""))
    assert room.available_memory() == 50 * 1024
    kernel["/sys/fs/cgroup/a/memory.max"] = "3000"
    assert room.available_memory() == 2000


def test_a_sandbox_is_told_with_its_guards_and_its_weaknesses(monkeypatch):
    guards = Capabilities("local", files=True, memory="watched", landlock=7, notes=("watched only: delegate",))
    sandbox = SimpleNamespace(
        run_once=lambda program, timeout: SimpleNamespace(stdout="42\n"), capabilities=lambda: guards
    )
    monkeypatch.setattr(sandboxes, "open_sandbox", lambda name: contextlib.nullcontext(sandbox))
    local, weaker = machine.local_sandbox_findings()
    assert local.text.startswith("runs programs; guards: files, memory watched, landlock 7; without network, ")
    assert (local.state, weaker.state, weaker.text) == ("warning", "warning", "watched only: delegate")
    guards = replace(guards, notes=())
    assert [finding.state for finding in machine.local_sandbox_findings()] == ["ok"]


def test_a_container_engine_tells_its_runtimes_and_which_images_it_has(monkeypatch):
    def check(api, name):
        if name != "runner":
            raise SandboxUnavailable("docker", f"no image {name}", ["build it", "pull it"])

    info = {"ServerVersion": "25.0", "Runtimes": {"runsc": {}, "runc": {}}}
    engine = SimpleNamespace(is_podman=False, info=info, client=contextlib.nullcontext)
    monkeypatch.setattr(connection, "DockerConnection", lambda engine_asked: engine)
    monkeypatch.setattr(images, "check", check)
    found = {finding.about: finding for finding in machine.docker_findings()}
    assert found["docker sandbox"].text == "Docker 25.0 answers; runtimes: runc, runsc"
    absent = DoctorFinding("docker image python", "no image python", "missing", "build it; or pull it")
    assert found["docker image python"] == absent
    assert {name: found[f"docker image {name}"].state for name in images.PURPOSES} == {
        "runner": "ok", "python": "missing", "judge": "missing",
    }  # fmt: skip


def test_where_no_engine_answers_it_is_told_what_would_bring_one(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody")
    (finding,) = InChild(machine.docker_findings, PATIENT)()
    assert (finding.about, finding.state) == ("docker sandbox", "missing")
    assert finding.text.startswith("no engine answers")
    assert "podman.socket" in finding.remedy


# A model.


def test_a_sound_model_is_read_without_its_weights(capsys, sound, monkeypatch):
    import safetensors
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    monkeypatch.setattr(safetensors, "torch", None, raising=False)
    status, found, verdict = told(capsys, sound)
    assert (status, fatal(found)) == (0, [])
    assert f"--model {sound}; note the warnings: call format" in verdict  # Its template writes no calls.
    assert "headers alone" in found["weights"]["text"]
    assert not [about for about in found if about.startswith(("memory", "vocabulary"))]


def test_the_tiny_agent_can_be_looked_at(capsys):
    status, found, _ = told(capsys, "tiny", "--recipe", "grpo-tcr")
    assert status == 0
    assert found["memory in all"]["state"] == "ok"


def config(**changes):
    return lambda old: json.dumps(json.loads(old) | changes).encode()


LONGER = config(num_hidden_layers=3, layer_types=["full_attention"] * 3)
SLIDING = config(layer_types=["full_attention", "sliding_attention"], sliding_window=8)
SHARDS = b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'


@pytest.mark.parametrize(
    ("file", "change", "about", "said"),
    [
        ("config.json", None, "model", "holds no config.json"),
        ("config.json", b"\xff\xfe\x00", "model", "config could not be read"),
        ("config.json", config(model_type="nobodys"), "model", "config could not be read"),
        ("config.json", config(model_type="t5"), "architecture", "causal language model"),
        ("config.json", SLIDING, "attention", "sliding_attention"),
        ("config.json", LONGER, "weights", "is missing"),
        ("config.json", config(vocab_size=len(families.TOKENIZERS["qwen2.5"]) - 1), "vocabulary", "has ids up to"),
        ("chat_template.jinja", None, "chat template", "no chat template"),
        ("tokenizer.json", b"", "model", "tokenizer could not be read"),
        ("model.safetensors", None, "weights", "missing: model.safetensors"),
        ("model.safetensors", lambda old: old[:-1000], "weights", "damaged"),
        ("model.safetensors.index.json", SHARDS, "weights", "missing: model-1"),
        ("model.safetensors.index.json", b"[]", "weights", "index.json is cut short or damaged"),
    ],
)
def test_a_broken_model_is_told_with_what_is_broken(capsys, model, file, change, about, said):
    if change is None:
        (model / file).unlink()
    else:
        (model / file).write_bytes(change((model / file).read_bytes()) if callable(change) else change)
    status, found, verdict = told(capsys, model)
    assert (status, about in fatal(found)) == (1, True), found
    assert said in found[about]["text"]
    assert verdict.startswith("not ready to train")


def test_a_window_that_the_engine_does_not_see_is_a_warning(capsys, tmp_path):
    from transformers import MistralConfig, MistralForCausalLM

    tokenizer = families.TOKENIZERS["qwen2.5"]
    config = MistralConfig(vocab_size=len(tokenizer), num_key_value_heads=2, sliding_window=64, **families.SIZE)
    export(MistralForCausalLM(config), tokenizer, tmp_path)
    status, found, _ = told(capsys, tmp_path)
    assert (status, found["attention"]["state"]) == (0, "warning")
    assert found["attention"]["remedy"] == "--play.max-episode-tokens 64"


def test_code_beside_a_model_is_never_run(capsys, model, tmp_path):
    (model / "theirs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    theirs = config(model_type="nobodys", auto_map={"AutoConfig": "theirs.C"})
    (model / "config.json").write_bytes(theirs((model / "config.json").read_text()))
    status, found, _ = told(capsys, model)
    assert (status, fatal(found)) == (1, ["model"])
    assert not (tmp_path / "ran").exists()


def test_a_name_that_can_be_no_model_is_told_at_once(capsys, sound, tmp_path):
    shutil.copytree(sound, tmp_path / "run" / "model")
    (tmp_path / "run" / "config.json").write_text("{}")
    for name, said in ((tmp_path / "run", "is a run"), ("~/models/x", "there is no folder")):
        status, found, _ = told(capsys, name)
        assert (status, said in found["model"]["text"]) == (1, True), name


def gated(name, file):
    raise OSError("some/model is a gated repository: hf auth login")


@pytest.mark.parametrize(
    ("has_file", "offline", "said"),
    [
        (lambda name, file: False, "1", "HF_HUB_OFFLINE forbids"),
        (lambda name, file: False, "0", "hub cannot be reached"),
        (gated, "0", "hf auth login"),
    ],
)
def test_what_the_hub_does_not_give_is_told_at_once(monkeypatch, has_file, offline, said):
    monkeypatch.setattr("transformers.utils.hub.has_file", has_file)
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    (finding,) = model_check.model_findings("some/model", None)
    assert finding.fatal
    assert said in finding.text


# Memory.


def test_a_recipe_adds_the_memory_of_a_run(capsys, sound):
    main(["doctor", str(sound), "--recipe", "grpo-t", "--play.slots", "8", "--play.max-episode-tokens", "128"])
    out = capsys.readouterr().out
    parts = ("weights", "AdamW", "reference model", "1024 tokens in 8 slots", "gradients", "activations", "backward")
    for part in (*parts, "memory in all"):
        assert part in out, part


def test_too_little_memory_is_a_warning_that_says_what_would_fit(capsys, sound, monkeypatch):
    asked = [sound, "--play.slots", "64", "--play.max-episode-tokens", "1024", "--device", "cpu"]
    monkeypatch.setattr(room, "available_memory", lambda: 60_000_000)
    status, found, _ = told(capsys, *asked)
    total = found["memory in all"]
    assert (status, total["state"]) == (0, "warning")
    _, option, value, *_ = ["", *total["remedy"].split()]
    _, fitted, _ = told(capsys, *asked, option, value)
    assert fitted["memory in all"]["state"] == "ok"
    assert "cache of" in fitted["fit"]["text"]
    monkeypatch.setattr(room, "available_memory", lambda: 1000)
    assert "smaller model" in told(capsys, *asked)[1]["memory in all"]["remedy"]


def test_a_gpu_that_is_not_here_can_be_asked_for(capsys, sound):
    _, found, _ = told(capsys, sound, "--gpu", "24", "--scale.lora-r", "4")
    assert "a GPU of 24 GB" in found["memory in all"]["text"]


def test_a_wrong_request_exits_with_2(capsys):
    for option, value in (("--recipe", "grpo-tc"), ("--play.slots", "0"), ("--device", "cuda:99"), ("--slot", "3")):
        try:
            status = main(["doctor", "tiny", option, value])
        except SystemExit as stop:
            status = stop.code
        assert status == 2
        assert "Traceback" not in capsys.readouterr().err


def test_without_a_gpu_the_settings_for_a_laptop_are_proposed_with_their_memory(capsys, sound, monkeypatch):
    monkeypatch.setattr(model_check, "located", lambda name: str(sound) if name == "smollm2" else name)
    _, found, _ = told(capsys, "smollm2")
    assert found["settings"]["text"].endswith("--model smollm2 --preset laptop"), "the name is shown, not its folder"
    assert "format=tags" in found["call format"]["remedy"]
    _, asked, _ = told(capsys, "smollm2", "--preset", "laptop", "--device", "cpu")
    needed, memory = asked["memory in all"]["text"].partition(";")[0], found["with --preset laptop"]
    assert (memory["state"], memory["text"].partition(";")[0]) == ("ok", f"memory in all: {needed}")
    monkeypatch.setattr(room, "available_memory", lambda: 1000)
    assert told(capsys, "smollm2")[1]["with --preset laptop"]["state"] == "warning"


@pytest.mark.parametrize(("native", "text"), [(True, "--engine.sampling-precision bfloat16"), (False, "keep float32")])
def test_a_cpu_is_told_whether_bfloat16_is_fast(capsys, sound, monkeypatch, native, text):
    monkeypatch.setattr(model_check, "is_x86", lambda: True)
    monkeypatch.setattr(model_check, "has_bfloat16", lambda: native)
    assert "precision" not in told(capsys, sound)[1], "a model as small as this gains nothing"
    monkeypatch.setattr(model_check, "packed_weights", lambda model: 1)
    assert text in told(capsys, sound)[1]["precision"]["text"]
