"""Second attempts that have read a critique of the first: who plays them when, from what, and what is learned from."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import families
import gymnasium
import pytest
from batches import TOKENIZER, local, same, settings, weights
from fake_server import FakeServer as Server
from test_ahead import apart
from test_ranks import Talking
from test_reagent import by_length

import palaestra
from palaestra import ConfigError
from palaestra.agents import Agent, ScriptedPolicy, TokenLimits, play
from palaestra.envs import Task, ToolEnv, tool
from palaestra.envs.records.gathering import ReplayMachines
from palaestra.episode import Attempt, Start
from palaestra.record import Record, from_line, to_line
from palaestra.trainers import grpo
from palaestra.trainers.batch import BatchScores, Scored
from palaestra.trainers.config.grpo_config import grpo_config
from palaestra.trainers.config.recipes import find_recipe
from palaestra.trainers.evaluation.evaluate import evaluate
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.losses.group_advantages import GroupNormalized
from palaestra.trainers.reward.async_scoring import JudgeResult, Scoring
from palaestra.trainers.reward.reward_model import ReasoningReward
from palaestra.trainers.rollout.async_rollouts import PlayAhead
from palaestra.trainers.rollout.engine_lock import EngineLock
from palaestra.trainers.rollout.rank_sampler import Share
from palaestra.trainers.rollout.rollouts import play_batch
from palaestra.trainers.samplers.group_sampler import Groups
from palaestra.trainers.samplers.reagent_u import Refined, second_start

SAID = "The second hop is missing."
LIMITS = TokenLimits(30, 600)


def opened(prompts=2, generations=4, count=10_000, **options):
    return Refined(**options)("x/Y-v0", count, Groups(prompts, generations))


def ended(start, reward=0.0, critique=SAID):
    """A first or second attempt that has ended, with what its judge said; None for a judge that gave up."""
    episode = replace(families.an_episode(families.token_row(3, [2])), start=start)
    said = ({"role": "user", "content": "question"}, {"role": "assistant", "content": f"guess {start.seed}"})
    episode = replace(episode, attempt=replace(episode.attempt, messages=said))
    if critique is None:
        return Scored(episode, fault="its judge failed")
    return Scored(episode, {"outcome": reward}, {"critique": critique})


async def judge(episodes):
    return [JudgeResult({"judge": episode.sampled_tokens / 100}, {"critique": SAID}) for episode in episodes]


def outcome(episode):
    return {"outcome": 2 * episode.reward - 1}


def batches_of(arena, sampler, count):
    """What a random agent plays for these batches."""
    scoring = Scoring(outcome, judge, ordered=True)
    agent, batches = apart().agent, []
    with closing(scoring):
        for _ in range(count):
            batches.append(play_batch(agent, arena, sampler, scoring, limits=LIMITS))
            agent.engine.reclaim()
    return batches


def test_f33_twice_as_many_attempts_and_the_second_read_the_first_and_its_critique_masked(two_hop):
    (batch,) = batches_of(two_hop, opened(generations=3), 1)
    by_seed = {episode.start.seed: episode for episode in batch.episodes}
    assert [len(batch.groups[batch.groups == group]) for group in (0, 1)] == [6, 6]
    assert batch.figures["sampler/refined"] == 6
    for episode in batch.episodes:
        (row,) = episode.rows
        opening, turn = row.ids[: int(row.sampled.argmax())], row.ids[row.sampled]
        said = [one["content"] for one in episode.attempt.messages if one["role"] == "assistant"]
        assert len(said) == 1, "the attempt is the second one alone"
        assert said[0] == TOKENIZER.decode(turn[turn != 0], skip_special_tokens=False) or turn[-1] in range(20, 250, 6)
        read = TOKENIZER.decode(opening)
        if episode.start.seed % 6 < 3:
            assert not episode.start.prefix
            assert SAID not in read
            continue
        first = by_seed[episode.start.seed - 3]
        assert first.start.group == episode.start.group
        assert first.start.task == episode.start.task
        *attempt, request = episode.start.prefix
        assert tuple(attempt) == first.attempt.messages[-len(attempt) :]
        assert SAID in request["content"] and "solve the task again" in request["content"]
        assert SAID in read and len(opening) > len(first.rows[0])
        assert row.sampled.sum() == episode.sampled_tokens == len(turn) > 0
        assert (row.logprobs[~row.sampled] == 0).all() and (row.versions[~row.sampled] == -1).all()


def test_f34_all_attempts_of_a_task_are_one_pool():
    rewards = {0: 0.06, 1: 0.12, 2: 1.24, 3: 0.03, 4: 1.27, 5: 1.21, 6: 1.27, 7: 0.09}
    source = opened(prompts=1)
    while (batch := source.batch()) is None:
        start = source.next()
        source.observe(ended(start, rewards[start.seed]))
    assert batch.rewards.mean() == pytest.approx(0.66125)
    assert batch.rewards.std(ddof=1) == pytest.approx(0.6275, abs=5e-5)
    seeds, advantages = [one.start.seed for one in batch.episodes], GroupNormalized()(batch, BatchScores())
    found = dict(zip(seeds, advantages, strict=True))
    expected = [-0.958, -0.863, 0.922, -1.006, 0.970, 0.874, 0.970, -0.910]
    assert [found[seed] for seed in range(8)] == pytest.approx(expected, abs=6e-4)


def test_a_second_attempt_begins_when_its_critique_is_there_and_not_when_all_have_ended():
    source = opened(prompts=2, generations=2)
    firsts = [source.next() for _ in range(4)]
    assert source.next() is None, "nothing else until a critique comes"
    source.observe(ended(firsts[2]))
    second = source.next()
    assert (second.seed, second.group, second.task) == (firsts[2].seed + 2, firsts[2].group, firsts[2].task)
    assert [one["role"] for one in second.prefix] == ["assistant", "user"]
    assert source.next() is None
    source.observe(ended(second))
    assert source.next() is None, "a second attempt has no third"


def test_without_a_critique_a_plain_second_sample_keeps_the_pool_and_is_counted():
    source, critiques = opened(prompts=1), {0: "", 1: None, 2: "  \n", 3: SAID}
    while (batch := source.batch()) is None:
        start = source.next()
        source.observe(ended(start, critique=critiques.get(start.seed, SAID)))
    assert [bool(one.episode.start.prefix) for one in batch.rollouts] == [False] * 7 + [True]
    assert len({one.episode.start.key for one in batch.rollouts}) == 8, "each samples with noise of its own"
    assert len(batch.samples) == 7, "the first attempt whose judge gave up is dropped, never a 0"
    assert (batch.figures["sampler/refined"], batch.figures["sampler/without_critique"]) == (1, 3)


def test_an_attempt_that_never_spoke_has_nothing_to_be_refined():
    scored = ended(Start(3, 0))
    attempt = replace(scored.episode.attempt, messages=({"role": "user", "content": "q"},))
    silent = replace(scored, episode=replace(scored.episode, attempt=attempt))
    assert second_start(silent, 4, 500).prefix == ()


class Repeats(ToolEnv):
    """Its reward reads the messages: right is whoever has called once and said yes."""

    def task(self, rng):
        return Task(prompt="Call look, then say yes.", answer="yes")

    @tool
    def look(self) -> str:
        "Look."
        return "a long sight " * 30

    def reward(self, attempt: Attempt) -> float:
        said = [one["content"] for one in attempt.messages if one["role"] == "assistant"]
        return float(len(said) == 2 and said[-1] == "yes" and len(attempt.calls) == 1)


@pytest.fixture
def repeats():
    palaestra.register("test/Repeats-v0", f"{__name__}:Repeats")
    arena = palaestra.arena("test/Repeats-v0", 4, ordered=True)
    yield arena
    arena.close()
    gymnasium.registry.pop("test/Repeats-v0")


def improves(messages, rng):
    """Fails at first; does as it is told where it has read a critique."""
    if messages[-1]["role"] == "user":
        return '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    return "yes" if any(SAID in one["content"] for one in messages) else "no"


def test_a_reward_that_reads_messages_sees_the_second_attempt_alone_and_replays(repeats):
    agent = Agent(ScriptedPolicy(improves))
    (first,) = play(agent, repeats, [Start(0, 1)])
    (second,) = play(agent, repeats, [second_start(Scored(first, {"outcome": 0.0}, {"critique": SAID}), 2, 1000)])
    assert (first.reward, second.reward) == (0.0, 1.0)
    assert [one["role"] for one in second.attempt.messages] == ["user", "assistant", "tool", "assistant"]
    seen = second.start.as_seen(second.attempt.messages)
    assert [one["role"] for one in seen[1:6]] == ["assistant", "tool", "assistant", "user", "assistant"]
    assert second.start.without_prefix(seen) == second.attempt.messages
    record = from_line(to_line(Record("test/Repeats-v0", second)))
    assert record.episode.start.prefix == second.start.prefix
    assert record.episode.attempt.messages == second.attempt.messages
    assert ReplayMachines().replay([record]) is None
    other = replace(second, start=replace(second.start, prefix=({"role": "user", "content": "other"},)))
    assert ReplayMachines().replay([replace(record, episode=other)]) is None, "it is context alone"


def test_the_longest_first_attempt_is_cut_tool_results_first_with_a_marker(repeats):
    (first,) = play(Agent(ScriptedPolicy(improves)), repeats, [Start(0, 1)])
    scored = Scored(first, {"outcome": 0.0}, {"critique": SAID})
    whole, cut = (second_start(scored, 2, budget).prefix for budget in (1000, 180))
    assert whole[:-1] == first.attempt.messages[1:]
    assert sum(len(one["content"]) for one in cut) <= 180 * 3
    assert [one for one in cut if one["role"] != "tool"] == [one for one in whole if one["role"] != "tool"]
    assert "characters left out ...]" in cut[1]["content"]


def told(batch):
    return [(one.episode.start, [row.ids.tolist() for row in one.episode.rows], one.terms) for one in batch.rollouts]


def test_a_run_goes_on_with_the_same_second_attempts(two_hop):
    whole = batches_of(two_hop, opened(generations=2), 2)
    again = opened(generations=2)
    again.load(json.loads(json.dumps(whole[0].state)))
    (after,) = batches_of(two_hop, again, 1)
    assert told(after) == told(whole[1])
    assert after.state == whole[1].state and after.samples == whole[1].samples
    assert any(start.prefix for start, *_ in told(after))


def test_they_are_played_ahead_of_the_learner_too():
    arena = palaestra.arena("palaestra/TwoHop-v0", 16)
    agent, scoring = apart().agent, Scoring(outcome, judge)
    sampler, lock = opened(generations=2), EngineLock()
    ahead = PlayAhead(agent, arena, sampler, scoring, limits=LIMITS, max_staleness=1, lock=lock)
    with closing(arena), closing(scoring), closing(ahead):
        for number in range(2):  # More would wait for newer weights.
            batch = ahead.next()
            assert batch.number == number
            assert len(batch.samples) == 8 and batch.figures["sampler/refined"] == 4


def test_several_ranks_play_each_attempt_once_and_have_the_same_batches():
    count, table, barrier = 2, {}, threading.Barrier(2)

    def work(rank):
        share, batches = Share(opened(prompts=3, generations=2), Talking(rank, count, table, barrier)), []
        own = []
        while len(batches) < 2:
            while (start := share.next()) is not None:
                own.append(start)
                share.observe(ended(start))
            if (batch := share.batch()) is not None:
                batches.append(batch)
        return own, [(told(batch), batch.samples, batch.state, batch.figures) for batch in batches]

    with ThreadPoolExecutor(count) as ranks:
        (first, batches), (second, same_batches) = ranks.map(work, range(count))
    assert batches == same_batches
    starts = [*first, *second]
    assert len(starts) == len({start.key for start in starts}) == 2 * sum(bool(start.prefix) for start in starts) == 24


def test_groups_whose_members_are_all_equal_are_replaced_only_where_asked():
    source = opened(prompts=1, max_rounds=3)
    while (batch := source.batch()) is None:
        start = source.next()
        source.observe(ended(start, reward=float(start.group == 1 and start.seed % 2)))
    assert {one.start.group for one in batch.episodes} == {1}
    assert batch.figures["sampler/kept"] == 1 and batch.figures["sampler/groups"] == 2


def test_games_rows_too_short_for_both_attempts_and_a_critique_that_nobody_writes_are_refused():
    with pytest.raises(ConfigError, match="no judge to write one"):
        replace(find_recipe("grpo-tcr"), sampler=Refined())
    with pytest.raises(ConfigError, match="--critic URL"):
        find_recipe("reagent-c")  # It trains nothing.
    with pytest.raises(ConfigError, match="is a game of the seats a, b"):
        Refined()("x/Y-v0", 10, Groups(2, 2, ("a", "b"), frozenset("ab")))
    with pytest.raises(ConfigError, match="no greedy attempt"):
        Refined()("x/Y-v0", 10, Groups(2, 2, greedy=True))
    long = find_recipe("reagent-u")
    assert settings(long, max_prefix_tokens=300, max_episode_tokens=301).longest_row == 301
    with pytest.raises(ConfigError, match="no room for a second one"):
        settings(long, max_prefix_tokens=300, max_episode_tokens=300)
    assert grpo_config("x/Y-v0", long).longest_row == 11_000 + 13_824 + 2560


def test_f35_a_run_of_reagent_u_learns_from_both_rounds_and_asks_no_judge_to_measure(two_hop):
    with Server(by_length) as server:
        pupil = local()
        recipe = replace(find_recipe("reagent-u"), judge=ReasoningReward((server.url,)))
        small = settings(recipe, max_episode_tokens=600, num_prompts=2, num_generations=2)
        learner = Learner(pupil.agent, pupil.model, small)
        before = weights(pupil.model)
        (first, second) = grpo.train_learner(learner, two_hop)
        assert not same(before, weights(pupil.model))
        assert len(first.rollouts) == 8 and first.metrics["sampler/refined"] == 4
        judged = [lesson.remarks["critique"] for _, lessons in first.rollouts for lesson in lessons]
        assert len(judged) == 8, "both rounds have a verdict"
        for episode, (lesson,) in second.rollouts:
            assert sum(lesson.terms.values()) == pytest.approx(episode.reward + 0.3 * lesson.remarks["score"])
            assert lesson.advantage != 0 or first.metrics["reward_std"] == 0
        asked = len(server.questions)
        evaluate(pupil.agent, two_hop, tasks=4, limits=LIMITS)
        assert len(server.questions) == asked == 16
