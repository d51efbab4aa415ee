"""Environments of GEM, TextArena and SkyRL are checked, evaluated and trained on, with the real packages."""

import json
import random
import re
from itertools import pairwise

import numpy as np
import pytest
from commands import run

import palaestra
from palaestra.agents.agent import Agent
from palaestra.agents.play import play
from palaestra.agents.policies.scripted import ScriptedPolicy
from palaestra.episode import Ending, Start
from palaestra.errors import TaskFileError, UsageError

BOXED = {"foreign/Gem-v0": "\\boxed{%d}", "foreign/TextArena-v0": "[%d]"}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A file of SkyRL's rows: sums, in an environment of one turn and in one of several."""
    path = tmp_path_factory.mktemp("skyrl") / "rows.jsonl"
    lines = [
        {
            "prompt": [{"role": "user", "content": f"What is {n} + 1? End with #### and the number."}],
            "env_class": ("gsm8k", "gsm8k_multi_turn")[n % 2],
            "reward_spec": {"ground_truth": str(n + 1)},
            "extra_info": {"max_turns": 2},
        }
        for n in range(40)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def searching(form):
    """A rule that halves what is left of the numbers."""

    def rule(messages, rng):
        low, high = map(int, re.search(r"between (\d+) and (\d+)", messages[0]["content"]).groups())
        for before, after in pairwise(messages):
            if before["role"] == "assistant":
                guess = int("".join(filter(str.isdigit, before["content"])))
                low, high = (guess + 1, high) if "higher" in after["content"] else (low, guess - 1)
        return form % ((low + high) // 2)

    return rule


def played(env_id, rule, slots=16, **options):
    with_close = palaestra.arena(env_id, slots, ordered=True, **options)
    try:
        starts = [Start(task, seed) for task in range(8) for seed in range(2)]
        episodes = list(play(Agent(ScriptedPolicy(rule)), with_close, iter(starts)))
    finally:
        with_close.close()
    return sorted(episodes, key=lambda episode: episode.start.key)


@pytest.mark.parametrize("env_id", BOXED)
def test_a_game_is_won_by_who_can_play_it_and_lost_by_who_cannot(env_id):
    episodes = played(env_id, searching(BOXED[env_id]))
    assert {episode.ending for episode in episodes} == {Ending.ANSWERED}
    assert np.mean([episode.parts["success"] for episode in episodes]) == 1
    lost = played(env_id, lambda messages, rng: "I do not know")
    assert np.mean([episode.parts["success"] for episode in lost]) == 0


@pytest.mark.parametrize("env_id", BOXED)
def test_episodes_that_run_at_once_draw_as_each_does_alone_and_disturb_nobody(env_id):
    """Both packages draw from the global generators."""
    game = {"foreign/Gem-v0": "game:GuessTheNumber-v0-random", "foreign/TextArena-v0": "Bandit-v0"}[env_id]
    turn = {"foreign/Gem-v0": "\\boxed{7}", "foreign/TextArena-v0": "[red]"}[env_id]
    random.seed(5)
    expected = random.random()
    random.seed(5)
    many, alone = (played(env_id, lambda messages, rng: turn, slots, game=game) for slots in (16, 1))
    assert random.random() == expected
    assert [episode.attempt.messages for episode in many] == [episode.attempt.messages for episode in alone]


def test_rows_of_skyrl_are_answered_and_divided(rows):
    def rule(messages, rng):
        return f"#### {int(messages[0]['content'].split()[2]) + 1}"

    episodes = played("foreign/SkyRL-v0", rule, tasks=str(rows), split="train")
    assert {(episode.ending, episode.parts["success"]) for episode in episodes} == {(Ending.ANSWERED, 1.0)}
    counts = [palaestra.arena("foreign/SkyRL-v0", 1, tasks=str(rows), split=split) for split in ("train", "eval")]
    assert sum(arena.task_count for arena in counts) == 40
    assert all(arena.task_count > 0 for arena in counts)


def test_a_row_names_no_module_to_import(rows, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(rows.read_text("utf-8").replace('"gsm8k"', '"antigravity:gsm8k"'), "utf-8")
    with pytest.raises(TaskFileError, match="unknown game 'antigravity:gsm8k'"):
        palaestra.arena("foreign/SkyRL-v0", 1, tasks=str(path))


def test_a_game_of_two_players_and_an_unknown_one_are_refused():
    with pytest.raises(UsageError, match="TicTacToe-v0 is no game for one player"):
        palaestra.arena("foreign/TextArena-v0", 1, game="TicTacToe-v0")
    with pytest.raises(UsageError, match="did you mean 'game:GuessTheNumber-v0-easy'"):
        palaestra.arena("foreign/Gem-v0", 1, game="game:GuessTheNumber-v0-eazy")


@pytest.mark.parametrize("env_id", ["foreign/Gem-v0", "foreign/TextArena-v0", "foreign/SkyRL-v0"])
def test_it_is_checked_evaluated_and_trained_on(env_id, rows, model, train_a_step, capsys, tmp_path):
    options = {"tasks": str(rows), "success_at": 1} if "SkyRL" in env_id else {}
    pairs = [f"{name}={value}" for name, value in options.items()]
    given = ["--env-options", *pairs] if pairs else []
    status, out, err = run(capsys, "check", env_id, *given)
    assert status == 0, out + err
    limits = ["--max-turn-tokens", "8", "--max-episode-tokens", "700", "--tasks", "4", "--json", tmp_path / "eval.json"]
    status, out, err = run(capsys, "eval", env_id, "--model", model, "--device", "cpu", *limits, *given)
    assert status == 0, out + err
    records = train_a_step(env_id, **options)
    assert records
    assert all(record.episode.rows and record.episode.ending is not Ending.BROKEN for record in records)
