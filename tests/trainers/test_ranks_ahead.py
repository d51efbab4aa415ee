"""The first of two ranks plays alone where play is ahead or vLLM samples, and all ranks learn from its batches. Ranks
that sample nothing load their shards of a model alone.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from going import on, require_same_untimed, run_of, step_folder, told
from rank_ahead import AHEAD, STILL
from safetensors.torch import load_file

from palaestra.agents.engines.weight_files import read_each
from palaestra.record import read

STEPS = 3


@dataclass
class Seen:
    """The folder of the runs, and what each rank has written down."""

    folder: Path
    ranks: list


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ahead")
    script = [sys.executable, str(Path(__file__).with_name("rank_ahead.py")), str(folder)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=600)  # Against a hang alone.
    assert not done.returncode, done.stderr
    return Seen(folder, [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)])


@pytest.mark.prove
def test_two_ranks_that_play_ahead_have_the_curve_of_one(seen):
    """Weights that do not change leave nothing to time: then episodes and figures are the same."""
    on(seen.folder / "one", run_of(seen.folder / "model", **STILL), STEPS).agent.engine.close()
    lines, _ = told(seen.folder / "still")
    assert len(lines) == STEPS
    assert all("time/queued" in line for line in lines), "play was not on a thread of its own"
    require_same_untimed(seen.folder / "still", seen.folder / "one")


@pytest.mark.prove
def test_ranks_that_play_ahead_and_stop_go_on_without_a_group_skipped_or_repeated(seen):
    starts = [
        record.episode.start.key
        for file in sorted((seen.folder / "ahead" / "episodes").iterdir())
        for record in read(file)
    ]
    lines, _ = told(seen.folder / "ahead")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert all(line["staleness/max"] <= AHEAD["max_staleness"] for line in lines)
    assert len(set(starts)) == len(starts)
    first, last = (load_file(step_folder(seen.folder / "ahead", step) / "model/model.safetensors") for step in (1, 4))
    assert any(not torch.equal(first[name], last[name]) for name in first)


@pytest.mark.prove
def test_an_error_of_play_on_the_first_rank_ends_every_rank_and_says_why(seen):
    first, second = (rank["stopped"] for rank in seen.ranks)
    assert first == ["RuntimeError", "the arena is gone"]
    assert second == ["RankLost", "rank 0 of this job has stopped: RuntimeError: the arena is gone"]


@pytest.mark.prove
def test_one_fleet_plays_for_all_ranks_and_gets_the_weights_of_their_shards(seen):
    first, second = (rank["served"] for rank in seen.ranks)
    assert first["asked"] >= 2 * 16 and not second["asked"]
    assert (first["engine"], second["engine"]) == ("VllmEngine", "IdleEngine")
    for step in (1, 2):
        learned = load_file(step_folder(seen.folder / "served", step) / "model" / "model.safetensors")
        given = dict(read_each(Path(first["given"][step - 3])))
        assert given.keys() == learned.keys()
        assert all(torch.equal(given[name], learned[name]) for name in given)


@pytest.mark.prove
def test_a_rank_that_loads_its_shards_never_makes_a_whole_weight(seen):
    for rank in seen.ranks:
        total, largest = rank["memory"]["weights"]
        made, largest_made = rank["memory"]["by shards"]
        assert largest_made <= 0.51 * largest
        assert made <= 0.51 * total
        whole, largest_whole = rank["memory"]["whole"]
        assert largest_whole >= largest and whole >= total
        assert rank["memory"]["same"]
