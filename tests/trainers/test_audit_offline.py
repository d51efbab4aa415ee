"""`palaestra audit` on a run's records: nothing is wrong with a clean one, and each change is found by its check."""

import json
import shutil
from dataclasses import replace

import numpy as np
import parrot
import pytest

import palaestra
from palaestra import TokenRow
from palaestra.agents.model_folder import export
from palaestra.cli import main
from palaestra.errors import UsageError
from palaestra.record import read, write
from palaestra.trainers import grpo
from palaestra.trainers.run.folder import Run
from palaestra.trainers.run.offline_audit import audit_run


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """The folder of a run of two steps."""
    folder, pupil = tmp_path_factory.mktemp("audit") / "run", parrot.learner(recorded_groups=3)
    run, arena = Run.create(folder, pupil.config), palaestra.arena(parrot.ENV, 12)
    try:
        export(pupil.model, pupil.tokenizer, folder / "start")
        for progress in grpo.train_learner(pupil, arena):
            run.add(progress)
    finally:
        run.close()
        arena.close()
    return folder


@pytest.fixture
def run(clean, tmp_path):
    return shutil.copytree(clean, tmp_path / "run")


def test_a_clean_run_passes_every_check_that_its_records_allow(run, capsys):
    assert main(["audit", str(run), "--json", str(run / "audit.json")]) == 0
    told = json.loads((run / "audit.json").read_text())
    assert told["findings"] == []
    unseen = {name for name, check in told["checks"].items() if not check["looked_at"]}
    assert unseen == {"critic", "token weights", "correction", "gradients"}
    assert told["checks"]["rewards"]["looked_at"] == told["figures"]["episodes"] == 24
    assert "Audit of" in capsys.readouterr().out


def row(record, **changes):
    """The record with another first row."""
    first = record.episode.rows[0]
    arrays = {name: getattr(first, name).copy() for name in ("ids", "sampled", "logprobs", "versions")}
    rows = (TokenRow(**arrays | {name: change(arrays[name]) for name, change in changes.items()}),)
    return replace(record, episode=replace(record.episode, rows=rows), lessons=told(record, trainer_logprobs=()))


def told(record, **changes):
    return tuple(replace(lesson, **changes) for lesson in record.lessons)


def negated(record):
    return replace(record, lessons=tuple(replace(one, advantage=-one.advantage) for one in record.lessons))


SPOILED = {
    "token mask": lambda record: row(record, sampled=lambda mask: np.roll(mask, 1)),
    "turn ends": lambda record: row(record, ids=lambda ids: np.append(ids[:-1], ids[0]).astype(np.int32)),
    "turn texts": lambda record: row(record, ids=lambda ids: np.concatenate([ids[:-2], ids[-2:-1] + 1, ids[-1:]])),
    "prompts": lambda record: row(record, ids=lambda ids: np.concatenate([ids[:1] + 1, ids[1:]])),
    "versions": lambda record: row(record, versions=lambda said: np.where(said < 0, said, 9).astype(np.int32)),
    "log-prob gap": lambda record: replace(
        record, lessons=told(record, trainer_logprobs=tuple(one.logprobs - 3 for one in record.episode.rows))
    ),
    "advantages": negated,
    "terms": lambda record: replace(record, lessons=told(record, terms={"outcome": 0.25})),
    "members": lambda record: replace(record, lessons=()),
    "rewards": lambda record: replace(record, episode=replace(record.episode, reward=0.125)),
    "groups": lambda record: replace(
        record, episode=replace(record.episode, start=replace(record.episode.start, task=7))
    ),
    "starts": lambda record: replace(
        record,
        episode=replace(record.episode, start=replace(record.episode.start, seed=record.episode.start.seed - 12)),
    ),
}


@pytest.mark.parametrize("check", SPOILED)
def test_a_record_that_was_changed_is_found(run, check, capsys):
    path = run / "episodes" / "step-000002.jsonl"
    records = list(read(path))
    at = next(i for i, one in enumerate(records) if one.lessons[0].advantage and one.lessons[0].trainer_logprobs)
    every = check in ("log-prob gap",)
    write(path, [SPOILED[check](one) if i == at or every else one for i, one in enumerate(records)])
    assert main(["audit", str(run)]) == 1
    assert f"\n{check}: " in capsys.readouterr().out


def test_metrics_that_do_not_fit_the_episodes_and_lines_that_are_no_records_are_found(run, capsys):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    second = json.loads(lines[1]) | {"reward": 0.9}
    (run / "metrics.jsonl").write_text("\n".join([lines[0], json.dumps(second)]) + "\n")
    (found,) = audit_run(run, print).findings
    assert found.check == "metrics"
    assert found.place == "step 2"
    with (run / "episodes" / "step-000002.jsonl").open("a") as file:
        file.write('{"cut off')
    assert main(["audit", str(run), "--no-rescore"]) == 1
    assert "cut off" in capsys.readouterr().out


def test_a_folder_without_episodes_is_refused(run):
    shutil.rmtree(run / "episodes")
    with pytest.raises(UsageError, match="recorded-groups"):
        audit_run(run, print)
