"""The forecast of a step: the simulation against cases computed by hand, its workload, the best split."""

from dataclasses import replace
from itertools import pairwise

import families
import pytest
from transformers import Qwen3Config, Qwen3MoeConfig

from palaestra.episode import Call, Status
from palaestra.errors import UsageError
from palaestra.trainers.config.grpo_config import grpo_config
from palaestra.trainers.plan.card_costs import CARDS, active_parameters
from palaestra.trainers.plan.card_plan import extrapolated, plan_cards
from palaestra.trainers.plan.step_simulation import Costs, ServingLayout, StepSimulation
from palaestra.trainers.plan.workload import AssumedEpisodes, PlannedEpisode, PlannedTurn, measured
from palaestra.trainers.scale.memory_estimate import outline

FREE = Costs(
    decode_pass=1.0,
    decode_row=0.0,
    decode_context=0.0,
    read_token=0.0,
    turn=0.0,
    latency=0.0,
    learn_step=0.0,
    learn_token=0.0,
    publish=0.0,
)
"""A decode pass takes a second, and all else no time. A turn of n tokens takes n passes and one for what it reads."""
ONE_TURN = PlannedEpisode(4, (PlannedTurn(5, 0.0, 0),))
WITH_TOOL = PlannedEpisode(4, (PlannedTurn(2, 10.0, 3), PlannedTurn(2, 0.0, 0)))


def forecast(costs, episodes, *, slots, servers=1, group=1, ahead=0, own_process=True):
    """A step of these episodes."""
    layout = ServingLayout(servers, slots, len(episodes), group, ahead, own_process)
    return StepSimulation(costs, layout, episodes).forecast(steps=4)


@pytest.mark.parametrize(
    ("costs", "episodes", "layout", "seconds"),
    [
        ({}, [ONE_TURN, ONE_TURN], {"slots": 1}, 12),  # One after the other: twice 1 + 5.
        ({}, [ONE_TURN, ONE_TURN], {"slots": 2}, 6),  # Both in the same passes.
        ({}, [ONE_TURN, ONE_TURN], {"slots": 2, "servers": 2}, 6),
        ({"decode_row": 0.5}, [ONE_TURN, ONE_TURN], {"slots": 2}, 11),  # Five passes of 1 + 2 / 2.
        ({}, [WITH_TOOL], {"slots": 1}, 16),  # 1 + 2, the tool's 10, 1 + 2.
        ({}, [WITH_TOOL, replace(ONE_TURN, turns=(PlannedTurn(9, 0.0, 0),))], {"slots": 2}, 16),
        ({}, [WITH_TOOL, WITH_TOOL], {"slots": 1}, 32),
        ({"read_token": 1.0}, [ONE_TURN, ONE_TURN], {"slots": 2, "group": 2}, 10),  # The prompt's 4 tokens read once.
        ({"turn": 2.0}, [ONE_TURN, ONE_TURN], {"slots": 2}, 10),  # Turns are worked for one after the other.
        ({"latency": 2.0}, [ONE_TURN, ONE_TURN], {"slots": 2}, 8),
        ({"latency": 2.0}, [ONE_TURN, ONE_TURN], {"slots": 2, "own_process": False}, 6),  # The trainer sees it at once.
        ({"learn_step": 3.0, "learn_token": 0.5}, [ONE_TURN, ONE_TURN], {"slots": 2}, 18),  # 6, 3, and 18 tokens.
        ({"learn_token": 0.5}, [ONE_TURN, ONE_TURN], {"slots": 2, "group": 2}, 13),  # 6, and 14: one prompt for both.
        ({"publish": 4.0}, [ONE_TURN, ONE_TURN], {"slots": 2}, 10),
    ],
)
def test_a_step_takes_what_it_takes_by_hand(costs, episodes, layout, seconds):
    assert forecast(replace(FREE, **costs), episodes, **layout).seconds == pytest.approx(seconds)


@pytest.mark.parametrize("learning", [7.0, 20.0])
def test_ahead_a_step_takes_the_longer_of_both_sides_and_by_turns_their_sum(learning):
    costs, episodes = replace(FREE, learn_step=learning), [ONE_TURN, ONE_TURN]
    assert forecast(costs, episodes, slots=1).seconds == pytest.approx(12 + learning)
    ahead = forecast(costs, episodes, slots=1, ahead=1)
    assert ahead.seconds == pytest.approx(max(12, learning))
    assert ahead.serving_idle == pytest.approx(1 - 12 / max(12, learning))
    assert ahead.learning_idle == pytest.approx(1 - learning / max(12, learning))


def test_ahead_a_long_step_and_a_short_one_count_as_two_of_their_mean():
    """Two batches end together: the slots of both wait for the same long turn."""
    long = replace(ONE_TURN, turns=(PlannedTurn(49, 0.0, 0),))
    layout = ServingLayout(1, 2, 1, 1, max_staleness=1)
    simulation = StepSimulation(replace(FREE, learn_step=1.0), layout, [long, ONE_TURN])
    found = simulation.forecast(steps=4).seconds
    times = [time for time, _, _ in simulation._updates]
    steps = [later - former for former, later in pairwise(times)][-4:]
    assert max(steps) > 5 * min(steps)
    assert found == pytest.approx((steps[-1] + steps[-2]) / 2)


def test_ahead_an_update_stops_the_learner_and_makes_servers_read_their_cache_again():
    costs = replace(FREE, learn_step=20.0, publish=3.0)
    assert forecast(costs, [ONE_TURN, ONE_TURN], slots=1, ahead=1).seconds == pytest.approx(23)
    # Play is the longer side here: 2 x (0.4 + 6) s, the 3 of the update, the 4 tokens that it finds cached, and the
    # 0.6 s of a pass that it cuts short.
    costs = replace(FREE, learn_step=2.0, publish=3.0, read_token=0.1)
    assert forecast(costs, [ONE_TURN, ONE_TURN], slots=1, ahead=1).seconds == pytest.approx(16.8)


def test_the_workload_of_records_is_what_they_count():
    row = families.token_row(3, [4, 5], reply=6)
    spoken = [{"role": role, "content": "text"} for role in ("user", "assistant", "tool", "assistant")]
    calls = (Call("look", {}, "text", Status.OK, seconds=0.25),)
    episode = families.an_episode(row)
    episode = replace(episode, attempt=replace(episode.attempt, messages=tuple(spoken), calls=calls))
    (planned,) = measured([episode])
    assert planned == PlannedEpisode(3, (PlannedTurn(4, 0.25, 6), PlannedTurn(5, 0.0, 0)))
    assert (planned.tokens, planned.sampled) == (len(row), episode.sampled_tokens)
    assert measured([episode], 0.5)[0].turns[0].tool_seconds == 0.5
    assert measured([replace(episode, rows=())])[0].turns[0].tool_seconds == 0.25  # Tokens by characters, same waits.
    with pytest.raises(UsageError, match="no recorded episode has a turn"):
        measured([])


def test_drawn_episodes_fit_their_rows_and_have_the_asked_medians():
    asked = AssumedEpisodes(prompt=100, turns=3, sampled=50, tool_tokens=20, tool_seconds=2.0)
    episodes = asked.draw(400, 1000)
    assert max(episode.tokens for episode in episodes) <= 1000
    sampled = sorted(turn.sampled for episode in episodes for turn in episode.turns)
    assert sampled[len(sampled) // 2] == pytest.approx(50, rel=0.15)
    assert all(episode.turns[-1].tool_seconds == 0 for episode in episodes)
    with pytest.raises(UsageError, match="leaves no room"):
        asked.draw(1, 100)


@pytest.fixture(scope="module")
def small():
    """A model's config of 12 million weights."""
    return Qwen3Config(
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=32_000,
    )


def test_within_a_machine_more_cards_are_never_slower_at_their_best_split(small):
    config = grpo_config(
        "palaestra/TwoHop-v0", model="small", num_prompts=16, num_generations=4, max_episode_tokens=4096
    )
    episodes = AssumedEpisodes().draw(64, 4096)
    plans = {cards: plan_cards(cards, config, small, CARDS["h100"], episodes) for cards in (2, 4, 8)}
    for ahead in (0, 1):
        best = [min(p.step.seconds for p in plans[cards] if p.max_staleness == ahead) for cards in (2, 4, 8)]
        assert best == sorted(best, reverse=True)
    assert all(plan.serving + plan.learning == plan.cards for some in plans.values() for plan in some)
    assert all([plan.max_staleness for plan in some] == [0, 1] for some in plans.values())
    for some in extrapolated(16, plans[4], plans[8]):
        assert some.cards == some.serving + some.learning == 16
        assert some.step.seconds <= max(plan.step.seconds for plan in plans[8])


def test_of_experts_only_those_count_that_a_token_is_sent_to(small):
    config = Qwen3MoeConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=500,
        moe_intermediate_size=32,
        num_experts=8,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
    )
    shape = outline(config)
    assert shape.parameters - active_parameters(shape) == 2 * 6 * 3 * 64 * 32  # Layers, unused experts, three matrices.
    assert active_parameters(outline(small)) == outline(small).parameters
