"""`palaestra curate`: a model's pass rates become a file of tasks, which training plays and nothing else."""

import json
from collections import Counter

import families
import pytest
from commands import refused
from commands import run_in_words as run

from palaestra.agents.model_folder import export
from palaestra.agents.policies.tiny import tiny_model
from palaestra.record import read
from palaestra.trainers.data.curated import Curated
from palaestra.trainers.data.curation import BUCKETS

WORLD = '''
import palaestra
from palaestra.envs.suite import calculator


class Chancy(calculator.Calculator):
    pass


def chancy(messages, rng, tool_rate=1.0):
    """The larger the first factor, the seldomer right."""
    said = calculator.demonstrate(messages, rng, tool_rate)
    first = int(messages[1]["content"].split()[2])
    return said if messages[-1]["role"] == "user" or rng.random() > first / 100 else "no idea"


palaestra.register("me/Chancy-v0", "chancy_world:Chancy", demonstrator="chancy_world:chancy")
'''
ENV = "chancy_world:me/Chancy-v0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("world")
    (made / "chancy_world.py").write_text(WORLD)
    return made


@pytest.fixture
def there(folder, monkeypatch):
    """In the folder of the little world."""
    monkeypatch.chdir(folder)
    return folder


def curated(capsys, *arguments, out="fit.json", tasks=24):
    return run(capsys, "curate", ENV, "--out", out, "--tasks", tasks, *arguments)


def test_f22_what_is_kept_is_what_was_played_with_its_provenance_and_nothing_is_played_twice(capsys, there):
    status, shown, err = curated(capsys)
    assert status == 0, err
    episodes = [record.episode for record in read(there / "fit.played.jsonl")]
    passed = Counter(one.start.task for one in episodes if one.parts["success"] == 1)
    file = Curated.read("fit.json")
    assert {task.task: task.passed for task in file.tasks} == {
        task: count for task, count in sorted(passed.items()) if 0 < count < 8
    }
    assert Counter(one.start.task for one in episodes) == dict.fromkeys(range(24), 8)
    made = file.origin
    assert (file.env_id, file.split, made["model"], made["samples"], made["episodes"]) == (
        *(ENV, "train", "demonstrator", 8),
        192,
    )
    assert made["options"] == {"split": "train"}
    assert made["generated_tokens"] == 0, "a script has none"
    assert sum(made["found"].values()) == 24
    assert made["kept"] == {name: made["found"][name] for name in BUCKETS}
    assert f"{len(file.tasks)} tasks: fit.json" in shown
    before = (there / "fit.played.jsonl").read_bytes()
    status, _, err = curated(capsys, "--target", "hard=1", "medium=1", "easy=1")
    assert status == 0, err
    assert "192 of 192 are played already" in err
    assert len(set(Curated.read("fit.json").origin["kept"].values())) == 1
    assert curated(capsys, "-k", 4)[0] == 0
    assert Curated.read("fit.json").origin["episodes"] == 96
    assert (there / "fit.played.jsonl").read_bytes() == before
    assert curated(capsys)[0] == 0
    assert Curated.read("fit.json").tasks == file.tasks


def test_f22_the_target_may_be_another_models_file_of_the_same_environment_alone(capsys, there):
    assert curated(capsys, out="strong.json")[0] == 0
    status, _, err = curated(capsys, "--target", "strong.json", "--seed", 1, out="weak.json")
    assert status == 0, err
    strong, weak = (Curated.read(name).origin["kept"] for name in ("strong.json", "weak.json"))
    share = sum(weak.values()) / sum(strong.values())
    assert all(abs(weak[name] - strong[name] * share) < 1 for name in BUCKETS)
    asked = ["curate", "two-hop", "--out", "b.json", "--target", "strong.json"]
    refused(capsys, "holds tasks of chancy_world:me/Chancy-v0, and palaestra/TwoHop-v0 is played", *asked)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a random agent that stops early."""
    return families.random_agent(tmp_path_factory.mktemp("model"), layers=1)


def train(capsys, env, model, *arguments):
    small = {"num-prompts": 3, "num-generations": 2, "slots": 6, "max-turn-tokens": 8, "max-episode-tokens": 256}
    given = [str(part) for name, value in small.items() for part in (f"--play.{name}", value)]
    return ["train", env, "--model", model, "--steps", 2, "--eval-tasks", 0, "--device", "cpu", *given, *arguments]


def test_f22_training_plays_the_curated_tasks_and_no_other(capsys, there, model):
    assert curated(capsys)[0] == 0
    tasks = {task.task for task in Curated.read("fit.json").tasks}
    asked = train(capsys, ENV, model, "--curated", "fit.json", "--run", "run", "--save.recorded-groups", 9)
    status, _, err = run(capsys, *asked)
    assert status == 0, err
    played = [
        record.episode.start.task for path in (there / "run" / "episodes").glob("step-*") for record in read(path)
    ]
    assert len(played) == 12
    assert set(played) <= tasks
    assert json.loads((there / "run" / "config.json").read_text())["env"]["curated"] == ["fit.json"]
    refused(
        capsys, "holds tasks of chancy_world:me/Chancy-v0", *train(capsys, "two-hop", model, "--curated", "fit.json")
    )
    other = Curated.read("fit.json")
    Curated("palaestra/Arithmetic-v0", "train", other.tasks, other.origin).write(there / "false.json")
    refused(capsys, "is another; curated with", *train(capsys, "arithmetic", model, "--curated", "false.json"))
    (there / "few.jsonl").write_text('{"prompt": "What is 1 * 1?", "answer": "1", "split": "train"}\n')
    few = ["--env-options", "tasks=few.jsonl", "--curated", "fit.json"]
    refused(capsys, "it has no task", *train(capsys, ENV, model, *few))


def test_f22_where_no_task_is_solved_now_and_then_nothing_is_written(capsys, there):
    status, shown, _ = run(capsys, "curate", "two-hop", "--out", "sure.json", "--tasks", 3, "-k", 2)
    assert status == 1
    assert "no task is solved now and then, so sure.json was not written" in shown
    assert not (there / "sure.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-k", "0"], "at least 1"),
        (["-k", "1"], "every pass rate is 0 or 1"),
        (["--temperature", "0"], "always or never"),
        (["--target", "tough=1"], "tough=1"),
        (["--target", "nowhere.json"], "nowhere.json cannot be read"),
        (["--least-success", "2"], "least_success is 2"),
    ],
    ids=str,
)
def test_f22_a_wrong_request_is_refused_before_anything_is_played(capsys, there, arguments, said):
    refused(capsys, said, "curate", ENV, "--out", "none.json", *arguments)
    assert not (there / "none.played.jsonl").exists()


def test_f22_other_weights_in_the_same_folder_are_another_policy(capsys, there, model, tmp_path):
    asked = ["curate", "two-hop", "-m", tmp_path / "m", "--device", "cpu", "--out", "m.json", "--tasks", 2, "-k", 2]
    small = ["--max-turn-tokens", 8, "--max-episode-tokens", 256]
    tokenizer = families.TOKENIZERS["tiny"]
    export(tiny_model(len(tokenizer), layers=1, seed=1), tokenizer, tmp_path / "m")
    assert run(capsys, *asked, *small)[0] == 1, "it solves none"
    export(tiny_model(len(tokenizer), layers=1, seed=2), tokenizer, tmp_path / "m")
    refused(capsys, "weights was", *asked, *small)
