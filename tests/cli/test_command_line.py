"""The command line as a newcomer meets it: help with defaults, mistakes that name what was meant, results on disk."""

import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import refused, run, words

import palaestra
from palaestra.cli import COMMANDS, main
from palaestra.cli import serve as serving
from palaestra.trainers.config.recipes import RECIPES


@pytest.mark.parametrize("asked", [[], ["-h"], ["--help"]])
def test_help_lists_every_command(capsys, asked):
    status, out, _ = run(capsys, *asked)
    assert status == 0
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("list", "Show the registered environments."),
        ("check", "Environments to check"),
        ("train", "--optimizer.learning-rate FLOAT AdamW's. (default: 0.001)"),
        ("eval", "--tasks INT Tasks, the first of the split. (default: 256)"),
        ("demo", "--play.num-generations INT Episodes of each task: one group. (default: 8)"),
    ],
)
def test_help_of_a_command_shows_its_defaults(capsys, command, expected):
    status, out, _ = run(capsys, command, "--help")
    assert status == 0
    assert expected in words(out)
    assert "usage: palaestra " + command in words(out)


@pytest.mark.parametrize("command", ["train", "demo", "sweep"])
def test_help_names_every_recipe(capsys, command):
    _, out, _ = run(capsys, command, "--help")
    assert f"changes a part of it: {', '.join(RECIPES)}." in words(out)


@pytest.mark.parametrize("asked", [[], ["-h"], ["--help"]])
def test_help_of_serve_lists_every_service_that_there_is(capsys, asked):
    status, out, _ = run(capsys, "serve", *asked)
    assert status == 0
    there = {file.stem.removeprefix("serve_") for file in Path(serving.__file__).parent.glob("serve_*.py")}
    assert {line.split()[0] for line in out.splitlines() if line.startswith("  ")} == there == {*serving.SERVICES}


@pytest.mark.parametrize("service", serving.SERVICES)
def test_every_service_has_a_help_of_its_own(capsys, service):
    status, out, _ = run(capsys, "serve", service, "--help")
    assert status == 0
    assert f"usage: palaestra serve {service}" in words(out)


def test_help_of_train_shows_the_defaults_of_the_model_that_is_asked_for(capsys):
    for arguments in (("--model", "some/folder"), ("--model=some/folder",)):
        _, out, _ = run(capsys, "train", *arguments, "--help")
        assert "(default: 1e-06)" in words(out)


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["evaluate"], "did you mean 'eval'"),
        (["trian", "two-hop"], "did you mean 'train'"),
        (["train", "two-hop", "--learning-rat", "1"], "--optimizer.learning-rate"),
        (["eval", "two-hop", "--task", "8"], "--tasks"),
        (["eval", "palaestra/TwoHopp-v0"], "did you mean palaestra/TwoHop-v0"),
        (["train", "two-hopp"], "did you mean palaestra/TwoHop-v0?"),
        (["train", "two-hop=1", "calculater=1"], "did you mean palaestra/Calculator-v0?"),
        (["eval", "palaestra/two-hop"], "did you mean palaestra/TwoHop-v0?"),
        (["check", "aritmetic"], "palaestra/Arithmetic-v0"),
        (["train", "two-hop", "--recipe", "grpo-tc"], "did you mean 'grpo-tcr'"),
        (["serve", "sandbx"], "unknown service 'sandbx'; did you mean 'sandbox'?"),
    ],
    ids=" ".join,
)
def test_a_mistake_names_what_was_meant_and_exits_with_2(capsys, arguments, meant):
    refused(capsys, meant, *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["eval", "two-hop", "--tasks", "0"],
        ["eval", "two-hop", "--temperature", "-1"],
        ["eval", "two-hop", "--model", "/nowhere/at/all"],
        ["eval", "nobodys_module:x/Y-v0"],
        ["eval", "CartPole-v1"],
        ["train", "two-hop", "--steps", "0"],
        ["train", "two-hop", "--recipe.loss.epsilon", "2"],
        ["train", "two-hop", "--device", "gpu"],
        ["train", "two-hop", "--model", "/nowhere/at/all"],
        ["train"],
        ["demo", "two-hop", "--model", "/some/where"],
    ],
    ids=" ".join,
)
def test_a_wrong_request_is_refused_in_a_sentence(capsys, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    assert len(refused(capsys, "", *arguments)) > 20
    assert not list(tmp_path.iterdir()), "the corrected command finds the run's name free"


@pytest.mark.parametrize("columns", [40, 76, 80, 100])
def test_no_id_is_broken_in_a_list(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = run(capsys, "list")
    ids = [*palaestra.registered(), *palaestra.registry.games()]
    assert all(name in out for name in (*ids, "search", "seats: debater_0"))
    assert all(re.search(rf"[ \n]{name}[,\n]", out) for name in ("two-hop", "code-contest", "solver-critic"))
    table = [line for line in out.splitlines() if "│" in line]
    assert bool(table) == (columns > 76)


def test_check_gives_an_environment_its_options(capsys, monkeypatch):
    from palaestra.envs.checks import check

    def plays_alone(subject):
        """Which options it was made with."""
        with subject.opened() as machine:
            assert machine.spec.author.toolkits == (), "it has a tool"

    monkeypatch.setattr(check, "CHECKS", {"plays alone": plays_alone})
    assert run(capsys, "check", "code-math", "--env-options", "mode=self-contained")[0] == 0
    assert run(capsys, "check", "code-math")[0] == 1
    assert run(capsys, "check", "debate", "--env-options", "split=eval")[0] == 0
    for wrong in (["code-math", "--env-options", "mode=x"], ["debate", "--env-options", "x=1"]):
        refused(capsys, "", "check", *wrong)
    refused(capsys, "and none is", "check", "--env-options", "mode=x")


def test_without_a_demonstrator_eval_asks_who_plays_and_an_id_of_ones_own_is_told_to_need_its_module(capsys):
    refused(capsys, "name who plays with --model", "eval", "human-eval")
    for command in ("play", "eval", "train", "check"):
        refused(capsys, "MODULE:me/Logs-v0", command, "me/Logs-v0")


@pytest.mark.parametrize(
    "name", ["two-hop", "TwoHop", "two_hop", "palaestra/TwoHop-v0", "palaestra:palaestra/TwoHop-v0"]
)
def test_the_demonstrator_is_measured_under_any_spelling_of_its_id(capsys, name, tmp_path):
    figures = tmp_path / "figures.json"
    status, out, _ = run(capsys, "eval", name, "--tasks", "8", "--json", str(figures))
    assert status == 0
    assert "demonstrator in palaestra/TwoHop-v0" in words(out)
    found = json.loads(figures.read_text())
    assert (found["tasks"], found["success"], found["endings"]["answered"]) == (8, 1.0, 8)


_WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "{library}":
            raise ModuleNotFoundError("No module named " + name, name=name)
sys.meta_path.insert(0, Absent())
from palaestra.cli import main
sys.exit(main(sys.argv[1:]))
"""


def without(library, folder, *arguments):
    """Run a command in a fresh interpreter in which a library is not installed."""
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT.format(library=library), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "COLUMNS": "120"},
    )


@pytest.mark.parametrize(
    ("library", "arguments", "extra"),
    [
        ("torch", ["train", "two-hop"], "train"),
        ("transformers", ["train", "two-hop"], "train"),
        ("torch", ["eval", "two-hop", "--model", "some/folder"], "train"),
        ("torch", ["demo"], "train"),
        pytest.param("matplotlib", ["demo"], "plot", marks=pytest.mark.prove),
    ],
)
def test_a_missing_extra_names_its_install_command(library, arguments, extra, tmp_path):
    """At once, and before a run's folder is made."""
    done = without(library, tmp_path, *arguments)
    assert not list(tmp_path.iterdir())
    assert done.returncode == 2, done.stderr
    assert f"pip install 'palaestra[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def command(*arguments, **more):
    """A command in a process of its own, as a shell starts it."""
    settings = {"cwd": None, "capture_output": True, "timeout": 300, "check": False} | more
    settings["env"] = {**os.environ, "COLUMNS": "120", "PYTHONUNBUFFERED": "", **more.get("env", {})}
    return subprocess.run([sys.executable, "-m", "palaestra", *arguments], **settings)


def test_the_version_is_told(capsys):
    for asked in ("--version", "-V"):
        assert run(capsys, asked) == (0, f"palaestra {palaestra.__version__}\n", "")


@pytest.mark.parametrize("arguments", [[], ["list"], ["check", "calculator"]], ids=" ".join)
def test_forty_columns_are_enough(capsys, monkeypatch, arguments):
    monkeypatch.setenv("COLUMNS", "40")
    status, out, _ = run(capsys, *arguments)
    assert status == 0
    assert max(map(len, out.splitlines())) <= 40
    assert "…" not in out


def test_a_positional_is_called_by_its_name(capsys):
    _, out, _ = run(capsys, "check", "--help")
    assert "usage: palaestra check [-h] [ENV-ID ...]" in words(out)
    assert "STR" not in out


@pytest.mark.parametrize("arguments", [["list"], ["check", "calculator"], ["train", "--help"]], ids=" ".join)
def test_a_newcomers_first_commands_say_nothing_beside_what_was_asked(arguments):
    done = command(*arguments, env={"PYTHONWARNINGS": "default"})
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.fixture
def foreign_tasks(tmp_path):
    """A file of tasks whose letters few encodings have."""
    path = tmp_path / "tasks.jsonl"
    rows = [{"prompt": f"Что это? ∑ 😀 {n}", "answer": "ответ", "id": f"№{n}"} for n in range(20)]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_no_terminal_is_too_poor_in_letters(foreign_tasks, monkeypatch):
    for encoding in ("ascii", "latin-1"):
        for line in ("--help", "list", "check calculator", "train --help", "data FILE", "data №"):
            poor = [io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict") for _ in range(2)]
            monkeypatch.setattr(sys, "stdout", poor[0])
            monkeypatch.setattr(sys, "stderr", poor[1])
            try:
                status = main(line.replace("FILE", foreign_tasks).split())
            except SystemExit as stop:
                status = stop.code
            assert status == (2 if "№" in line else 0), line
            assert b"Traceback" not in poor[1].buffer.getvalue()
    few = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii:strict"}
    done = command("data", foreign_tasks, env=few)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("arguments", [["--help"], ["data", "FILE"]], ids=" ".join)
def test_a_reader_that_has_gone_ends_a_command_quietly(arguments, foreign_tasks):
    reader, writer = os.pipe()
    os.close(reader)
    done = command(
        *(foreign_tasks if text == "FILE" else text for text in arguments),
        capture_output=False,
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("arguments", [["--help"], ["list"]], ids=" ".join)
def test_a_full_disk_is_named(arguments):
    with open("/dev/full", "wb") as full:
        done = command(*arguments, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    advice = b"make room, and run the same command again"
    assert done.stderr == b"palaestra: nothing more can be written: No space left on device; " + advice + b"\n"


def test_a_file_that_may_grow_no_further_is_named_and_the_same_command_goes_on(tmp_path):
    saving = ("eval", "two-hop", "--tasks", "12", "--save", str(tmp_path / "played.jsonl"))

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))  # Some of the twelve episodes.

    done = command(*saving, preexec_fn=limit)
    assert done.returncode == 2 and b"Traceback" not in done.stderr
    assert b"can be written to %s: File too large; raise the limit" % bytes(tmp_path / "played.jsonl") in done.stderr
    done = command(*saving)
    assert done.returncode == 0 and b"episodes are played already" in done.stderr


def test_a_closed_output_or_input_is_no_fault():
    commands = ("list >&-", "--help >&-", "play two-hop <&- >&-")
    shell = ["sh", "-c", " && ".join(f'"$0" -m palaestra {command}' for command in commands), sys.executable]
    done = subprocess.run(shell, stderr=subprocess.PIPE, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_ends_a_command_that_runs(tmp_path):
    (tmp_path / "sleepy.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(600)\n")
    line = [sys.executable, "-m", "palaestra", "check", "sleepy:me/Sleepy-v0"]
    with subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"here\n"
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=300)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, b"\ninterrupted\n")


@pytest.fixture
def authored(tmp_path, monkeypatch):
    """Modules that somebody wrote in the current folder; forgotten, with their ids, after the test."""
    import gymnasium

    before, known = set(sys.modules), set(gymnasium.registry)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)

    yield write
    for name in set(sys.modules) - before:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]
    for env_id in set(gymnasium.registry) - known:
        gymnasium.registry.pop(env_id)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\ndef f(:\n    pass\n", "faulty.py, line 2: invalid syntax: def f(:"),
        ("import os\ndef f():\n    return {}['key']\nf()\n", "faulty.py, line 3: KeyError: 'key' (while faulty was"),
        ("\nimport json\njson.loads('{')\n", "faulty.py, line 3: JSONDecodeError: Expecting property name"),
        ("import no_such_library\n", "faulty.py, line 1: faulty needs 'no_such_library', which is not installed"),
        ("from json import nothing\n", "faulty.py, line 1: ImportError: cannot import name 'nothing'"),
        ("import sys\nsys.exit('usage: faulty')\n", "faulty.py, line 2: SystemExit: usage: faulty"),
        ("raise RuntimeError\n", "faulty.py, line 1: RuntimeError (while"),
        ("import palaestra\npalaestra.register('a/B-v0', 'no colon')\n", "expected a string 'module:name'"),
    ],
)
def test_what_is_wrong_in_an_authors_module_is_told_with_its_line(capsys, authored, text, said):
    authored("faulty", text)
    for name in ("check", "eval"):
        refused(capsys, said, name, "faulty:me/Faulty-v0")
        sys.modules.pop("faulty", None)
    with pytest.raises(palaestra.PalaestraError) as caught:
        palaestra.arena("faulty:me/Faulty-v0", 2)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("entry_point", "said"),
    [
        ("holder:Mising", "me/Held-v0: its class 'Mising' is not in "),
        ("holder:Mising", "holder.py; did you mean 'Missing'?"),
        ("nowhere_at_all:Missing", "its class 'Missing' cannot be loaded: there is no module 'nowhere_at_all'"),
        ("broken_world:Missing", "broken_world.py, line 1: invalid syntax"),
    ],
)
def test_an_entry_point_that_leads_nowhere_is_told(capsys, authored, entry_point, said):
    authored("broken_world", "def :\n")
    authored("holder", f"import palaestra\nMissing = 1\npalaestra.register('me/Held-v0', '{entry_point}')\n")
    refused(capsys, said, "check", "holder:me/Held-v0")
    with pytest.raises(palaestra.EnvironmentDefect) as caught:
        palaestra.arena("holder:me/Held-v0", 2)
    assert said in str(caught.value)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("holder", "'holder' is a module here, not an id; write holder:ID"),
        ("holder.py:me/Held-v0", "is a file; go to its folder and write holder:me/Held-v0"),
        ("./holder.py:me/Held-v0", "write holder:me/Held-v0"),
        (".holder:me/Held-v0", "is no name of a module"),
        ("holdr:me/Held-v0", "there is no module 'holdr' in this folder"),
        ("holder:me/Heldd-v0", "did you mean me/Held-v0"),
    ],
)
def test_an_id_that_was_typed_wrongly_is_put_right(capsys, authored, typed, said):
    authored("holder", "import palaestra\npalaestra.register('me/Held-v0', 'holder:Held')\n")
    refused(capsys, said, "check", typed)


@pytest.mark.parametrize(
    ("library", "extra"), [("httpx", "endpoint"), ("pyarrow.parquet", "data"), ("jinja2", "train")]
)
def test_a_library_that_is_missing_deep_inside_names_its_extra(capsys, monkeypatch, library, extra):
    def lacking(arguments):
        raise ModuleNotFoundError(f"No module named {library!r}", name=library)

    monkeypatch.setattr("palaestra.cli.eval.run", lacking)
    refused(capsys, f"pip install 'palaestra[{extra}]'", "eval", "two-hop")
