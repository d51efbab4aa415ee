"""What is asked of each package whose own loop plays here: its episodes, a check and an evaluation, a step."""

from contextlib import closing

from commands import run
from framework_agents import demonstrate

import palaestra
from palaestra.agents import Agent, ScriptedPolicy, play
from palaestra.episode import Ending, Start


def played(env_id, rule=demonstrate, **options):
    with closing(palaestra.arena(env_id, 8, **options)) as arena:
        starts = [Start(task, seed) for task in range(16) for seed in range(2)]
        return list(play(Agent(ScriptedPolicy(rule)), arena, starts))


def words_are_found_and_judged(capsys, model, env_id, **options):
    """Play its tasks, each of which wants the word of a number; the server is gone for every tenth number."""
    episodes = played(env_id, **options)
    assert {episode.ending for episode in episodes} == {Ending.ANSWERED, Ending.BROKEN}
    for episode in episodes:
        is_gone = episode.attempt.task.prompt.endswith("0?")
        assert episode.reward == (None if is_gone else 1.0)
        assert ("the server is gone" in episode.fault) == is_gone
        assert is_gone or [call.name for call in episode.attempt.calls] == ["look_up"]
    _checked_and_evaluated(capsys, model, env_id, chance=0.25, **options)


def _checked_and_evaluated(capsys, model, env_id, **options):
    given = ["--env-options", *(f"{name}={value}" for name, value in options.items())]
    status, out, err = run(capsys, "check", env_id, *given)
    assert status == 0, out + err
    limits = ["--tasks", "4", "--max-turn-tokens", "8", "--device", "cpu"]
    status, out, err = run(capsys, "eval", env_id, "--model", model, *limits, *given)
    assert status == 0, out + err


def trained(records):
    assert len(records) == 12, "eight are learned from, two by two are measured before and after"
    assert all(record.episode.ending is not Ending.BROKEN for record in records)
    assert all(record.episode.rows for record in records)
