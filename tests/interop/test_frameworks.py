"""Agents of five frameworks, with code as their users write it, are evaluated, recorded, replayed and trained."""

from contextlib import closing
from dataclasses import replace

import framework_agents
import pytest
from commands import run
from framework_agents import NAMES, demonstrate
from transformers import AutoTokenizer

import palaestra
from palaestra.agents import Agent, Chat, ScriptedPolicy, play
from palaestra.envs.records.gathering import ReplayMachines
from palaestra.episode import Ending, Start
from palaestra.record import Record, read, write
from palaestra.trainers.audit.tokens import Flat, mask_findings, prompt_findings, spans, text_findings, turn_findings

framework_agents.register()
REWRITING = "Smolagents"


def env_id(name):
    return f"test/{name}-v0"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Episodes of each agent that a demonstrator has played, recorded, by the agent's name."""
    folder = tmp_path_factory.mktemp("played")
    for name in NAMES:
        with closing(palaestra.arena(env_id(name), 8)) as arena:
            played = play(Agent(ScriptedPolicy(demonstrate)), arena, [Start(n, n) for n in range(48)])
            episodes = sorted(played, key=lambda episode: episode.start.task)  # They end in any order.
        write(folder / f"{name}.jsonl", (Record(env_id(name), episode) for episode in episodes))
    return {name: folder / f"{name}.jsonl" for name in NAMES}


@pytest.fixture(scope="module")
def student(files, tmp_path_factory):
    """A tiny agent that has imitated the episodes of all agents but those that it has no room for."""
    folder = tmp_path_factory.mktemp("student")
    imitated = [path for name, path in files.items() if name != REWRITING]
    options = ["--run", folder / "run", "--epochs", "16", "--allow-code", "framework_agents"]
    palaestra.cli.main([*map(str, ["sft", *imitated, *options])])
    return folder / "run" / "model"


@pytest.mark.parametrize("name", NAMES)
def test_an_agent_of_a_framework_is_evaluated_recorded_and_replayed(name, files, capsys, tmp_path):
    records = list(read(files[name]))
    assert {(each.episode.ending, each.episode.parts["success"]) for each in records} == {(Ending.ANSWERED, 1.0)}
    assert {record.episode.attempt.turns for record in records} == {2}
    assert {len(record.episode.dialogues) for record in records} == {2 if name == REWRITING else 1}
    assert ReplayMachines().replay(records[:8]) is None
    changed = replace(records[0].episode.attempt, answer="black")
    other = replace(records[0], episode=replace(records[0].episode, attempt=changed))
    assert ReplayMachines().replay([other]).where == "answer"
    for form in ("messages", "inspect", "trl", "verl", "sharegpt"):
        out = tmp_path / form
        status, said, err = run(capsys, "export", files[name], "--to", form, "--out", out)
        assert status == 0, said + err
    status, said, err = run(capsys, "import", tmp_path / "inspect", "--from", "inspect", "--out", tmp_path / "b.jsonl")
    assert status == 0, said + err
    assert [record.episode.attempt.answer for record in read(tmp_path / "b.jsonl")] == [
        record.episode.attempt.answer for record in records
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_grpo_learns_the_tokens_that_were_sampled(name, request, train_a_step, model):
    if name == REWRITING:
        learner, options = model, {"episode_tokens": 8000}
    else:
        learner, options = request.getfixturevalue("student"), {"turn_tokens": 48}
    records = train_a_step(env_id(name), learner, must_learn=True, **options)
    episodes = [record.episode for record in records]
    assert len(episodes) == 20, "two groups of eight are recorded, two by two are measured before and after"
    flat, chat = Flat.of(episodes), Chat(AutoTokenizer.from_pretrained(learner))
    assert [*mask_findings(flat), *turn_findings(flat, chat)] == []
    assert [found for each in episodes for found in (*text_findings(each, chat), *prompt_findings(each, chat))] == []
    turns = [len(spans(row.sampled)) for episode in episodes for row in episode.rows]
    assert sum(turns) == sum(episode.attempt.turns for episode in episodes)
    if name != REWRITING:
        assert max(turns) == 2, "the call and the answer stand in one row"
        assert {episode.parts["success"] for episode in episodes} == {0.0, 1.0}
