"""Raising the tiny agent: the bad habit, the gate, and what happens when initial weights are stuck."""

import json
from dataclasses import replace
from types import SimpleNamespace

import families
import gymnasium
import pytest
import torch
from batches import TOKENIZER
from families import random_agent
from going import on, run_of
from safetensors.torch import load_file

import palaestra
from palaestra import ConfigError, TrainingHalted
from palaestra.agents import TokenLimits
from palaestra.agents.local_model import serve
from palaestra.agents.policies.tiny import tiny_model
from palaestra.envs import Task, ToolEnv
from palaestra.episode import Start, Status
from palaestra.trainers.config.sections_config import ColdStartConfig
from palaestra.trainers.config.sft_config import SFTConfig
from palaestra.trainers.learn.imitation import Imitation
from palaestra.trainers.setup import cold_start as room
from palaestra.trainers.setup.cold_start import cold_start, demonstrate
from palaestra.trainers.setup.imitation_gate import GateMeasure, gate_measure, halve_tool_use

DEMONSTRATOR = palaestra.demonstrator("palaestra/TwoHop-v0")
EARLY = {"first_gate": 2, "gate_every": 2, "imitation_decay": 3, "gate_episodes": 4}
SMALL = ColdStartConfig(demonstrations=24, imitation_steps=4, layers=1, max_attempts=3, **EARLY)


def raised(arena, gates, monkeypatch, config=SMALL, seed=0, demonstrator=DEMONSTRATOR, turn=20, seen=None):
    """Raise with a gate that answers these values in turn; returns the progress and the pupil."""
    answers = iter(gates)
    monkeypatch.setattr(room, "_reached", lambda *_: next(answers))
    seen = [] if seen is None else seen
    pupil = cold_start(
        arena,
        demonstrator,
        seed=seed,
        limits=TokenLimits(turn, 200),
        slots=8,
        device_name="cpu",
        config=config,
        sft=SFTConfig(batch_rows=8),
        on_progress=seen.append,
    )
    return seen, pupil


def test_the_demonstrator_has_its_bad_habit(two_hop):
    seen = []
    episodes = demonstrate(two_hop, DEMONSTRATOR, 300, 0.3, seed=0, on_progress=seen.append)
    used = [episode for episode in episodes if episode.attempt.calls]
    assert 0.2 < len(used) / 300 < 0.4
    assert all(episode.reward == 1.0 for episode in used)
    assert [progress.step for progress in seen] == list(range(6, 301, 6)), "how far they are is told on the way"
    guessed = [episode.reward for episode in episodes if not episode.attempt.calls]
    assert sum(guessed) / len(guessed) < 0.1


def test_demonstrations_repeat_by_seed_and_other_seeds_demonstrate_other_tasks(two_hop):
    def tasks(seed):
        return [e.start.task for e in demonstrate(two_hop, DEMONSTRATOR, 20, 0.3, seed=seed)]

    first = demonstrate(two_hop, DEMONSTRATOR, 20, 0.3, seed=0)
    again = demonstrate(two_hop, DEMONSTRATOR, 20, 0.3, seed=0)
    assert [e.attempt for e in first] == [e.attempt for e in again]
    assert set(tasks(0)).isdisjoint(tasks(1))


def test_imitation_ends_after_the_gate_is_passed_and_the_rate_has_fallen(two_hop, monkeypatch):
    seen, pupil = raised(two_hop, [0.5, 0.9, 0.88], monkeypatch)
    assert (pupil.attempts, pupil.steps) == (1, 4 + 3)
    assert len(pupil.demonstrations) == 24
    assert [p.metrics["success_with_tool"] for p in seen if "success_with_tool" in p.metrics] == [0.5, 0.9]
    assert not any(p.note for p in seen)


def test_weights_that_are_stuck_are_given_up_counted_and_told(two_hop, monkeypatch):
    drawn = []

    def watched(vocabulary, *, layers, seed):
        drawn.append(seed)
        return tiny_model(vocabulary, layers=layers, seed=seed)

    monkeypatch.setattr(room, "tiny_model", watched)
    seen, pupil = raised(two_hop, [0.3, 0.4, 0.2, 0.9, 0.9], monkeypatch)
    assert pupil.attempts == 2
    (note,) = [p.note for p in seen if p.note]
    assert "stuck at 0.40" in note
    assert "attempt 1 of 3" in note
    raised(two_hop, [0.9, 0.9], monkeypatch, seed=1)
    assert len(drawn) == len(set(drawn)) == 3, "each attempt and each seed draws its own initial weights"


def test_when_no_weights_pass_the_run_stops(two_hop, monkeypatch):
    said = r"none of 3 initial weights .* best reached 0\.20 .*--cold-start\.imitation-gate.*imitation-steps"
    with pytest.raises(TrainingHalted, match=said):
        raised(two_hop, [0.1, 0.2] * 3, monkeypatch)


def habits(shares, monkeypatch):
    """Make greedy play use its tool in these shares of twenty episodes, in turn; returns what is left of them."""
    left = list(shares)
    used, guessed = (
        SimpleNamespace(reward=1.0, start=Start(0, 0), attempt=SimpleNamespace(calls=[SimpleNamespace(status=status)]))
        for status in (Status.OK, Status.TOOL_ERROR)
    )

    def played(*_, greedy):
        count = round(left.pop(0) * 20)
        return [used] * count + [guessed] * (20 - count)

    monkeypatch.setattr(room, "_played", played)
    return left


def test_imitation_continues_until_the_greedy_agent_has_the_habit(two_hop, monkeypatch):
    config = replace(SMALL, imitation_steps=20, max_greedy_tool_share=0.1)
    left = habits([0.6, 0.1, 0.15, 0.0, 0.05], monkeypatch)
    seen, pupil = raised(two_hop, [0.9, 0.2, *[0.9] * 4], monkeypatch, config)
    # The first gate is too greedy and the second too bad. The third passes, but not after the decay (6 + 3 steps).
    assert [p.metrics.get("greedy_tool_share") for p in seen if "success_with_tool" in p.metrics] == [0.6, None, 0.1, 0]
    assert (pupil.attempts, pupil.steps, left) == (1, 10 + 3, [])
    habits([], monkeypatch)
    _, pupil = raised(two_hop, [0.9, 0.9], monkeypatch)
    assert pupil.steps == 2 + 3, "without a limit nothing greedy is played"


def test_each_time_the_greedy_agent_has_lost_the_habit_half_of_the_tool_use_is_left_out(two_hop, monkeypatch):
    imitated = []

    class Watched(Imitation):
        def __init__(self, learner, rows):
            imitated.append({row.ids.tobytes() for row in rows})
            super().__init__(learner, rows)

    monkeypatch.setattr(room, "Imitation", Watched)
    config = replace(SMALL, demonstrations=60, imitation_steps=20, max_greedy_tool_share=0.1)
    habits([0.6, 0.1, 0.2, 0.0, 0.0], monkeypatch)
    seen, pupil = raised(two_hop, [0.9] * 5, monkeypatch, config)
    count = sum(bool(episode.attempt.calls) for episode in pupil.demonstrations)
    everything, fewer, fewest = imitated
    assert len(everything) == 60
    assert fewest < fewer < everything
    left = [len(rows) - (60 - count) for rows in imitated]
    assert left == [count, -(-count // 2), -(-count // 4)], "a guess is never left out"
    notes = [progress.note for progress in seen if progress.note]
    ends = [f"{n} of {60 - count + n} demonstrations use it from now on" for n in left[1:]]
    assert [note.rpartition(": ")[2] for note in notes] == ends
    assert "uses its tool in 60% of its greedy episodes" in notes[0]


def test_in_a_mixture_each_environment_keeps_demonstrations_with_its_tool():
    def episode(env, status):
        calls = [SimpleNamespace(status=status)]
        return SimpleNamespace(start=Start(0, 0, env=env), attempt=SimpleNamespace(calls=calls))

    demonstrations = [
        (episode(env, status), ()) for env in "ab" for status in (Status.TOOL_ERROR, Status.OK, Status.OK)
    ]
    del demonstrations[2]
    assert halve_tool_use(demonstrations) == [demonstrations[place] for place in (0, 1, 2, 3)]
    assert halve_tool_use(demonstrations[:2]) == demonstrations[:2]


def test_where_the_habit_never_comes_the_error_names_the_way_out(two_hop, monkeypatch):
    config = replace(SMALL, max_attempts=1, max_greedy_tool_share=0.1)
    habits([0.6, 0.7], monkeypatch)
    seen = []
    message = r"agent has 0\.90 success .*, but uses its tool in 70% of its greedy episodes, and the limit is 10%: "
    with pytest.raises(
        TrainingHalted, match=message + r".*--cold-start\.tool-rate.*--cold-start\.max-greedy-tool-share"
    ):
        raised(two_hop, [0.9, 0.9], monkeypatch, config, seen=seen)
    assert ["use it from now on" in progress.note for progress in seen if progress.note] == [True, False]


def test_the_habit_is_measured_on_greedy_episodes(two_hop, monkeypatch):
    begun = []
    monkeypatch.setattr(room, "play", lambda agent, arena, starts, **_: iter(begun.extend(starts) or ()))
    monkeypatch.setattr(GateMeasure, "of", lambda *_: 1.0)
    local = serve(tiny_model(len(TOKENIZER), layers=1, seed=0), TOKENIZER, slots=4)
    config = replace(SMALL, max_greedy_tool_share=0.1)
    score = room._score(local, two_hop, TokenLimits(8, 256), GateMeasure({"": True}), config)
    assert [start.greedy for start in begun] == [False] * 4 + [True] * 4
    assert score.passes(config)


def test_the_gate_really_plays(two_hop):
    """Random weights do not pass it."""
    early = {**EARLY, "first_gate": 1, "gate_every": 1}
    config = ColdStartConfig(demonstrations=12, imitation_steps=1, max_attempts=1, layers=1, **early)
    how = {"seed": 0, "limits": TokenLimits(72, 256), "slots": 4, "device_name": "cpu"}
    with pytest.raises(TrainingHalted):
        cold_start(two_hop, DEMONSTRATOR, **how, config=config, sft=SFTConfig(batch_rows=4))


def test_the_engine_holds_no_cache_while_the_agent_imitates(two_hop):
    local = serve(tiny_model(len(TOKENIZER), layers=1, seed=0), TOKENIZER, slots=4)
    measure = SimpleNamespace(of=len)
    for _ in range(2):  # It can play again.
        assert room._reached(local, two_hop, TokenLimits(8, 256), measure, 4) == 4
        assert local.agent.engine.held_bytes == 0


def enough(*_, **__):
    raise TrainingHalted("enough")


def copied(messages, rng, tool_rate=1.0):
    """Repeats what it hears."""
    return messages[-1]["content"].split()[-1]


@pytest.fixture
def repeat():
    """An arena without tools: repeat the last word."""
    palaestra.register("test/Repeat-v0", f"{__name__}:Repeat")
    arena = palaestra.arena("test/Repeat-v0", 8)
    yield arena
    arena.close()
    gymnasium.registry.pop("test/Repeat-v0")


class Repeat(ToolEnv):
    """No tools."""

    def task(self, rng):
        return Task(prompt=f"Say {rng.integers(1000)}", answer="")

    def reward(self, attempt):
        return float(attempt.answer == attempt.task.prompt.split()[-1])


def test_where_no_demonstration_uses_a_tool_the_gate_measures_success(repeat, monkeypatch):
    seen, pupil = raised(repeat, [0.5, 0.9, 0.88], monkeypatch, demonstrator=copied)
    assert pupil.attempts == 1
    measured = "success_of_demonstrator"
    assert [p.metrics[measured] for p in seen if measured in p.metrics] == [0.5, 0.9]
    episodes = pupil.demonstrations
    assert GateMeasure(with_tool={"": False}).of(episodes) == 1.0
    assert GateMeasure(with_tool={"": True}).of(episodes) == 0.0, "nothing calls a tool, so nothing would ever pass"
    with pytest.raises(TrainingHalted, match=r"none of 3 .* of the demonstrator's success on tasks .* 0\.85 is needed"):
        raised(repeat, [0.1] * 6, monkeypatch, demonstrator=copied)


def test_without_a_tool_the_gate_asks_for_a_share_of_what_was_shown_the_bad_habit_included(repeat, monkeypatch):
    def habitual(messages, rng, tool_rate=1.0):
        return copied(messages, rng) if rng.random() < tool_rate else "nothing"

    _, pupil = raised(repeat, [0.9, 0.88], monkeypatch, demonstrator=habitual)
    shown = [episode.parts["success"] for episode in pupil.demonstrations]
    assert 0 < sum(shown) < 0.85 * len(shown), "a gate on success itself would refuse this demonstrator"
    measure = gate_measure(pupil.demonstrations, SMALL)
    assert measure.of(pupil.demonstrations) == pytest.approx(1.0)
    assert measure.of([one for one in pupil.demonstrations if not one.parts["success"]]) == 0.0


def test_a_tiny_agent_whose_demonstrations_do_not_fit_is_refused_before_anything_is_imitated(repeat, monkeypatch):
    monkeypatch.setattr(room, "tiny_model", None)
    said = (
        r"^the agent cannot learn from the demonstrations: 100% of the demonstrations are longer than what may be "
        r"played: the longest row has (\d+) tokens and the longest turn (\d+); set --play.max-episode-tokens, which "
        r"is 200, to 200 or more, and --play.max-turn-tokens, which is 1, to \2 or more$"
    )
    with pytest.raises(ConfigError, match=said):
        raised(repeat, [], monkeypatch, demonstrator=copied, turn=1)


def test_where_enough_demonstrations_fit_the_longer_ones_are_told(repeat, monkeypatch):
    def wordy(messages, rng, tool_rate=1.0):
        return copied(messages, rng) + f" {rng.integers(10**9)}" * (20 if rng.random() < 0.05 else 0)

    monkeypatch.setattr(Repeat, "reward", lambda self, attempt: 1.0)
    seen, pupil = raised(repeat, [0.9, 0.9], monkeypatch, demonstrator=wordy, turn=20)
    (note,) = [progress.note for progress in seen if progress.note]
    assert " of the demonstrations are longer than what may be played" in note
    assert pupil.attempts == 1


def test_a_demonstrator_below_the_gate_is_said_before_anything_is_imitated(repeat, two_hop, monkeypatch):
    monkeypatch.setattr(room, "tiny_model", None)

    def mute(messages, rng, tool_rate=1.0):
        return "nothing"

    with pytest.raises(TrainingHalted, match=r"tool_rate=0\.3, reaches 0\.00 success in 24 .* is to reach 0\.85"):
        raised(repeat, [], monkeypatch, demonstrator=mute)

    def hasty(messages, rng, tool_rate=1.0):
        return "nothing" if messages[-1]["role"] == "tool" else DEMONSTRATOR(messages, rng)

    with pytest.raises(TrainingHalted, match=r"the demonstrator reaches 0\.00 success in episodes with a served call"):
        raised(two_hop, [], monkeypatch, demonstrator=hasty)


def test_of_demonstrations_that_break_the_causes_are_said():
    rule, seen = lambda messages, rng, tool_rate=1.0: "a turn", []
    arena = families.Talk(4, broken=lambda start, tries: start.task % 2)
    assert len(demonstrate(arena, rule, 20, 1.0, seed=0, on_progress=seen.append)) == 10
    assert seen[-1].note == "10 episodes are BROKEN, and count in no figure:\n     10  it broke"
    with pytest.raises(TrainingHalted, match=r"every demonstration is BROKEN \(20 x it broke\)"):
        demonstrate(families.Talk(4, broken=lambda start, tries: True), rule, 20, 1.0, seed=0)


@pytest.fixture
def file_of_sums(tmp_path):
    """An arena of sixty problems from a file."""
    rows = [{"prompt": f"What is {n} * {n + 3}?", "answer": str(n * (n + 3)), "split": "train"} for n in range(60)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arena = palaestra.arena("palaestra/Calculator-v0", 16, tasks=str(tmp_path / "sums.jsonl"))
    yield arena
    arena.close()


def test_of_a_file_of_tasks_the_gate_plays_those_that_are_not_demonstrated(file_of_sums, monkeypatch):
    demonstrator = palaestra.demonstrator("palaestra/Calculator-v0")
    demonstrations = demonstrate(file_of_sums, demonstrator, 200, 1.0, seed=3)
    assert len(demonstrations) == 200
    assert len({episode.start.seed for episode in demonstrations}) == 200
    shown = {episode.start.task for episode in demonstrations}

    begun = []

    def watched(agent, arena, starts, **_):
        begun.extend(starts)
        return iter(())

    local = serve(tiny_model(len(families.TOKENIZERS["tiny"]), layers=1), families.TOKENIZERS["tiny"], slots=4)
    monkeypatch.setattr(room, "play", watched)
    room._reached(local, file_of_sums, TokenLimits(10, 120), GateMeasure(with_tool={"": True}), 192)
    measured = {start.task for start in begun}
    assert len(begun) == len({start.seed for start in begun}) == 192
    assert shown.isdisjoint(measured)
    assert shown | measured == set(range(file_of_sums.task_count))


def test_whoever_raises_an_agent_on_a_small_file_is_warned(file_of_sums, monkeypatch):
    monkeypatch.setattr(room, "demonstrate", lambda *_, **__: [])
    monkeypatch.setattr(room, "gate_measure", enough)
    seen, how = [], {"seed": 0, "limits": TokenLimits(20, 200), "device_name": "cpu"}
    with pytest.raises(TrainingHalted, match="enough"):
        cold_start(file_of_sums, DEMONSTRATOR, **how, on_progress=seen.append)
    assert "tasks are demonstrated" in seen[0].note


@pytest.fixture
def pretrained(tmp_path, monkeypatch):
    """The settings of a run that begins with demonstrations for a model from a folder, whose gate is always passed."""
    monkeypatch.setattr(room, "_reached", lambda *_: 1.0)
    cold = {"demonstrations": 16, "imitation_steps": 2, "imitation_batch_rows": 4, **EARLY}
    model = random_agent(tmp_path / "model")
    return model, lambda **changes: run_of(model, max_turn_tokens=72, max_episode_tokens=256, **cold, **changes)


def weights_in(folder):
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("lora_r", [0, 4], ids=["all weights", "an adapter"])
def test_a_pretrained_model_imitates_with_all_its_weights_and_goes_on_from_there(pretrained, tmp_path, lora_r):
    model, settings = pretrained
    config = settings(lora_r=lora_r, steps=2)
    on(tmp_path / "run", config, steps=1)
    given, start = weights_in(model), weights_in(tmp_path / "run" / "start")
    assert not any(torch.equal(start[name], given[name]) for name in given if "proj" in name)
    resumed, whole = on(tmp_path / "run"), on(tmp_path / "whole", config)
    assert all(map(torch.equal, resumed.model.state_dict().values(), whole.model.state_dict().values()))
    base = {name: value for name, value in whole.model.state_dict().items() if "base_layer" in name}
    assert len(base) == (0 if not lora_r else 14), "two layers of seven matrices"
    for name, value in base.items():
        assert torch.equal(value, start[name.removeprefix("base_model.model.").replace(".base_layer", "")])


def test_a_pretrained_model_imitates_nothing_unless_demonstrations_are_asked_for(tmp_path):
    config = run_of(random_agent(tmp_path / "model"))
    assert not config.cold_started
    on(tmp_path / "run", config, steps=1)
    assert not (tmp_path / "run" / "start").exists()
