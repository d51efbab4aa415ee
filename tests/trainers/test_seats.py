"""Seats of a game in training: who plays them, whose episodes are compared, and whose are learned from."""

from dataclasses import replace

import batches
import families
import numpy as np
import pytest
from batches import same, weights

import palaestra
from palaestra.agents import Agent, ScriptedPolicy, TokenLimits, play
from palaestra.agents.local_model import serve
from palaestra.agents.policies.table import SeatedEngine, in_every_seat, seated_agent
from palaestra.agents.policies.tiny import tiny_model
from palaestra.episode import Ending, Start
from palaestra.errors import ConfigError, TrainingHalted, UsageError
from palaestra.protocols import Engine, Request
from palaestra.record import read
from palaestra.trainers import grpo
from palaestra.trainers.config.grpo_config import tiny_config
from palaestra.trainers.evaluation.evaluate import by_seat, evaluate
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.online_audit import require_rewards
from palaestra.trainers.losses.group_advantages import Successes
from palaestra.trainers.reward.async_scoring import Scoring
from palaestra.trainers.rollout.rollouts import play_batch
from palaestra.trainers.run.folder import Run
from palaestra.trainers.samplers.group_sampler import Groups
from palaestra.trainers.samplers.seats import seated
from palaestra.trainers.samplers.uniform import Uniform
from palaestra.trainers.setup.cold_start import demonstrate

GAME = "palaestra/solver_critic_v0"
SOLVER, CRITIC = "solver_0", "critic_0"
SMALL = {
    "steps": 2,
    "num_prompts": 3,
    "num_generations": 4,
    "num_mini_batches": 2,
    "slots": 24,
    "max_turn_tokens": 60,
    "max_episode_tokens": 512,
    "device": "cpu",
    "train_seats": (SOLVER,),
    "recorded_groups": 100,
}


def local():
    """A random agent with so many stops that its turns are short."""
    return batches.local(slots=24, every=3)


def critic():
    return ScriptedPolicy(palaestra.demonstrator(GAME))


@pytest.fixture
def arena():
    opened = palaestra.arena(GAME, 24)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def alternating(monkeypatch):
    """A random agent's rewards are all alike; these advantages are not, so that something is learned."""
    monkeypatch.setattr(Successes, "__call__", lambda _, batch, scores: np.resize([1.0, -1.0], len(batch.samples)))


def settings(**changes):
    return tiny_config(GAME, **{**SMALL, "advantage": "successes", **changes})


def against_script(engine):
    return {SOLVER: engine, CRITIC: critic()}


def trained(arena, engines=against_script, **changes):
    """Train, with the engines that `engines` makes of the model's; the pupil and the progress of each step."""
    pupil = local()
    agent = Agent(SeatedEngine(engines(pupil.agent.engine), [SOLVER]), pupil.agent.chat)
    return pupil, list(grpo.train_learner(Learner(agent, pupil.model, settings(**changes)), arena))


def test_one_seat_changes_nothing():
    starts = [Start(1, 2, group=3)]
    assert list(seated(starts, ())) == starts


def test_only_the_chosen_seat_is_learned_from_and_the_others_are_recorded(arena, tmp_path):
    pupil, curve = trained(arena)
    assert not same(weights(pupil.model), weights(local().model))
    assert [progress.metrics["optimizer_steps"] > 0 for progress in curve] == [True, True]
    for progress in curve:
        lessons = {seat: [] for seat in (SOLVER, CRITIC)}
        for episode, own in progress.rollouts:
            lessons[episode.start.seat].append(len(own))
        assert lessons == {SOLVER: [1] * 12, CRITIC: [0] * 12}
        assert progress.metrics[f"seats/{CRITIC}/success"] == sum(
            episode.parts["success"] for episode, _ in progress.rollouts if episode.start.seat == CRITIC
        ) / len(lessons[CRITIC])
    with Run(tmp_path / "run", settings()) as run:
        run.add(curve[0])
    kept = list(read(tmp_path / "run" / "episodes" / "step-000001.jsonl"))
    assert {record.episode.start.seat for record in kept} == {SOLVER, CRITIC}
    assert {record.episode.start.seat for record in kept if record.lessons} == {SOLVER}
    # A script's tokens are never compared with the trainer's.
    assert curve[-1].metrics["sampling/sampling_logp_difference/max"] < 1e-4


def test_the_same_seed_gives_the_same_weights_in_games_too(arena):
    one, curve = trained(arena)
    other, again = trained(arena)
    assert same(weights(one.model), weights(other.model))
    assert curve[-1].metrics["reward"] == again[-1].metrics["reward"]


def test_seats_may_share_weights_and_all_learn(arena):
    pupil, curve = trained(arena, lambda engine: {SOLVER: engine, CRITIC: engine}, train_seats=(), steps=1)
    assert all(lessons for episode, lessons in curve[0].rollouts if not episode.fault)
    assert {episode.start.seat for episode, lessons in curve[0].rollouts if lessons} == {SOLVER, CRITIC}
    assert not same(weights(pupil.model), weights(local().model))


def test_a_frozen_seat_keeps_its_weights(arena):
    frozen = local()
    before = weights(frozen.model)
    told = []
    frozen.agent.engine.update_weights = lambda tensors, version: told.append(version)
    pupil, curve = trained(arena, lambda engine: {SOLVER: engine, CRITIC: frozen.agent.engine})
    assert told == []
    assert same(weights(frozen.model), before)
    assert not same(weights(pupil.model), before)
    newest = {episode.versions[1] for episode, _ in curve[1].rollouts if episode.start.seat == SOLVER}
    assert newest == {1}
    assert {e.versions for e, _ in curve[1].rollouts if e.start.seat == CRITIC and e.versions} == {(0, 0)}


class Slate:
    """An engine that notes what it is asked."""

    sampled = 7

    def __init__(self, delay=0):
        self.requests, self.cancelled, self.waiting, self.delay, self.closed = [], [], [], delay, 0

    def submit(self, request):
        self.requests.append(request)
        self.waiting.append(len(self.requests) - 1)
        return self.waiting[-1]

    def poll(self, timeout=0.0):
        ready, self.waiting = self.waiting, []
        return [palaestra.Completion(ticket, text=f"answer {ticket}") for ticket in ready]

    def cancel(self, ticket):
        self.cancelled.append(ticket)
        self.waiting.remove(ticket)

    def close(self):
        self.closed += 1


def request(seat, seed=5):
    return Request(0, Start(0, seed, seat=seat), 0, (), (), (), 10)


def test_requests_go_to_the_engine_of_their_seat_and_tickets_do_not_collide():
    one, two = Slate(), Slate()
    table = SeatedEngine({"a_0": one, "b_0": two, "c_0": two}, learning=["b_0"])
    assert isinstance(table, Engine)
    assert table.sampled == 14, "an engine of two seats counts once"
    tickets = [table.submit(request(seat)) for seat in ("a_0", "b_0", "c_0", "a_0")]
    assert len(set(tickets)) == 4
    table.cancel(tickets[1])
    assert two.cancelled == [0]
    found = {completion.ticket: completion.text for completion in table.poll()}
    assert found == {tickets[0]: "answer 0", tickets[2]: "answer 1", tickets[3]: "answer 1"}
    assert table.poll() == []
    assert not table.learning, "an engine without weights of its own takes none"
    table.close()
    assert (one.closed, two.closed) == (1, 1)


def test_seats_of_one_game_do_not_draw_the_same_noise():
    slate = Slate()
    table = SeatedEngine({"a_0": slate, "b_0": slate})
    for seat, seed in (("a_0", 5), ("b_0", 5), ("a_0", 5), ("a_0", 6)):
        table.submit(request(seat, seed))
    seeds = [asked.start.seed for asked in slate.requests]
    assert seeds[0] == seeds[2]
    assert len(set(seeds)) == 3


def test_a_seat_without_an_engine_is_named():
    table = SeatedEngine({"a_0": Slate()})
    with pytest.raises(UsageError, match="no engine plays the seat 'b_0'; those with one are a_0"):
        table.submit(request("b_0"))
    with pytest.raises(UsageError, match="'c_0' learns but has no engine"):
        SeatedEngine({"a_0": Slate()}, learning=["c_0"])


def test_an_episode_that_another_seat_cut_short_is_not_learned_from(arena):
    # One token is too few for a turn: the solver is cut, and the critic has nothing to comment on.
    pupil = local()
    agent = Agent(SeatedEngine({SOLVER: pupil.agent.engine, CRITIC: critic()}), pupil.agent.chat)
    starts = [Start(task, task, seat=seat) for task in range(6) for seat in arena.seats]
    episodes = list(play(agent, arena, starts, limits=TokenLimits(1, 512)))
    cut = [episode for episode in episodes if episode.fault]
    assert cut
    assert {episode.start.seat for episode in cut} == {CRITIC}
    assert {episode.ending for episode in cut} == {Ending.TURN_LIMIT}
    blamed = [episode for episode in episodes if episode.ending is Ending.LENGTH_LIMIT]
    assert len(blamed) == len(cut)
    sampler = Uniform()(GAME, 100, Groups(1, 2, arena.seats, frozenset(arena.seats)))
    scoring, limits = Scoring(lambda episode: {}), TokenLimits(1, 512)
    while len((batch := play_batch(agent, arena, sampler, scoring, limits=limits)).samples) == len(batch.rollouts):
        pass
    learned = [episode.start.key for episode in batch.episodes]
    assert learned == [s.episode.start.key for s in batch.rollouts if not s.episode.fault]
    assert any(s.episode.ending is Ending.LENGTH_LIMIT for s in batch.scored)
    with pytest.raises(TrainingHalted, match="cut short by another seat"):
        require_rewards(replace(batch, rollouts=tuple(s for s in batch.rollouts if s.episode.fault), samples=()), 1.0)


def test_a_seat_that_does_not_exist_is_not_trained(arena):
    with pytest.raises(ConfigError, match=r"train_seats names 'jury_0'; .* solver_0, critic_0"):
        trained(arena, train_seats=("jury_0",))
    with pytest.raises(ConfigError, match="has one seat, which has no name"):
        trained(palaestra.arena(GAME, 4, seat=SOLVER))


def test_a_run_keeps_games_whole(arena, tmp_path):
    _, curve = trained(arena)
    with Run(tmp_path / "run", settings(recorded_groups=1)) as run:
        run.add(curve[0])
    seats = {}
    for record in read(tmp_path / "run" / "episodes" / f"step-{curve[0].step:06}.jsonl"):
        start = record.episode.start
        seats.setdefault((start.task, start.seed), []).append(start.seat)
    assert len(seats) == SMALL["num_generations"]
    assert all(sorted(found) == [CRITIC, SOLVER] for found in seats.values())


def test_players_at_one_table_each_have_their_own_chat(arena):
    tokenizer = families.TOKENIZERS["qwen2.5"]
    model = tiny_model(len(tokenizer), layers=1, seed=1)
    model.generation_config.eos_token_id = list(range(20, 250, 3))
    players = {SOLVER: local().agent, CRITIC: serve(model, tokenizer, slots=8).agent}
    starts = seated([Start(task, task) for task in range(2)], arena.seats)
    for episode in play(seated_agent(players), arena, starts, limits=TokenLimits(60, 512)):
        opening = players[episode.start.seat].chat.opening(episode.attempt.messages[:2], episode.tools)
        assert episode.rows[0].ids.tolist()[: len(opening)] == opening


def test_one_agent_in_every_seat_is_evaluated_seat_by_seat(arena):
    script = Agent(critic())
    report, episodes = evaluate(script, arena, tasks=4, seats=(SOLVER,))
    assert (report.success, report.tasks, len(episodes)) == (1.0, 4, 8)
    reports = by_seat(report, episodes, (SOLVER, CRITIC))
    assert {seat: (found.success, len(own)) for seat, (found, own) in reports.items()} == {
        SOLVER: (1.0, 4),
        CRITIC: (1.0, 4),
    }
    assert in_every_seat(script, ()) is script
    table = in_every_seat(script, (SOLVER, CRITIC))
    assert in_every_seat(table, (SOLVER, CRITIC)) is table


def test_demonstrations_of_a_game_are_of_all_its_seats(arena):
    played = demonstrate(arena, palaestra.demonstrator(GAME), 40, 0.5, seed=0)
    assert [episode.start.seat for episode in played[:2]] == [CRITIC, SOLVER]
    assert len(played) == 40
    at_once = [
        next("<tool_call>" in m["content"] for m in episode.attempt.messages if m["role"] == "assistant")
        for episode in played
    ]
    assert at_once[::2] != at_once[1::2]  # Their habits do not hang together.
