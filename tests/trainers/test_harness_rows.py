"""What a harness asks becomes token rows: each sampled token is in one row, after what the engine read.

The harnesses are those of `tests/envs/harness_worlds.py`.
"""

import asyncio
import copy
import json
import sys
from contextlib import closing
from itertools import count
from pathlib import Path

import batches
import families
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import palaestra
from palaestra import Completion, Ending, Start, UsageError
from palaestra.agents import Agent, Conversation, ScriptedPolicy, TokenLimits, play
from palaestra.envs import ToolVectorEnv
from palaestra.envs.suite.two_hop import demonstrate
from palaestra.record import Record, from_line, to_line
from palaestra.trainers.audit.tokens import (
    Flat,
    length_findings,
    mask_findings,
    prompt_findings,
    spans,
    text_findings,
    turn_findings,
)
from palaestra.trainers.batch import BatchScores
from palaestra.trainers.learn.learner import Learner
from palaestra.trainers.learn.update import update
from palaestra.trainers.losses.group_advantages import GroupNormalized
from palaestra.trainers.reward.terms import response_length
from palaestra.trainers.sft import sft_rows
from palaestra.trainers.view.pages.episode_view import content

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))
import harness_worlds

USER = "user"


class Numbered:
    """An engine of ids whose turns all differ; it keeps what it read before each."""

    sampled = 0

    def __init__(self, chat, thinks=False):
        self.chat, self.thinks, self.ready, self.turns, self.tickets = chat, thinks, [], {}, count()

    def submit(self, request):
        ticket = next(self.tickets)
        thought = f"<think>{ticket}</think>" if self.thinks and ticket % 2 else ""
        ids = self.chat.encode_turn(f"{thought}turn {ticket}")
        self.turns[tuple(ids)] = list(request.ids)
        self.ready.append(Completion(ticket, ids, [-1.0] * len(ids), [0] * len(ids)))
        return ticket

    def poll(self, timeout=0.0):
        done, self.ready = self.ready, []
        return done

    def cancel(self, ticket):
        self.ready = [completion for completion in self.ready if completion.ticket != ticket]


class Drawn(harness_worlds.Plain):
    """Asks what a script says: it goes on with a dialogue, cuts it, rewrites it, repeats it, or asks twice at once."""

    max_turns = 40
    script = ()

    async def play(self, task, client):
        talks = [[{"role": USER, "content": task.prompt}]]
        for number, (step, which) in enumerate(self.script):
            talk = list(talks[which % len(talks)])
            if step == "cut":
                talk = talk[: max(1, len(talk) - 2)]
            elif step == "rewrite":
                talk[0] = {"role": "system", "content": f"rule {number}"}
            if step != "repeat":
                talk.append({"role": USER, "content": f"word {number if step != 'same' else ''}"})
            if step == "choices":
                await client.ask(talk, n=2)
            elif step == "at once":
                other = harness_worlds.Client(client.model)
                said, _ = await asyncio.gather(client.ask(talk), other.ask(talk))
                other.close()
                talks.append([*talk, said])
            else:
                talks.append([*talk, await client.ask(talk)])
        return "yes"


STEPS = st.sampled_from(["go on", "same", "cut", "rewrite", "repeat", "choices", "at once"])


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3"])
@settings(max_examples=15)
@given(script=st.lists(st.tuples(STEPS, st.integers(0, 9)), max_size=8))
def test_whatever_is_asked_each_sampled_token_is_in_one_row_after_what_the_engine_read(family, script):
    chat = families.chat(family)
    engine = Numbered(chat, thinks=family == "qwen3")
    author = Drawn()
    author.script = script
    arena = ToolVectorEnv(author, 1)
    with closing(arena):
        (episode,) = play(Agent(engine, chat), arena, [Start(0, 0)], limits=TokenLimits(512, 100_000))
    assert episode.ending is (Ending.ANSWERED if script else Ending.BROKEN)
    found = [
        (tuple(row.ids[begin:end].tolist()), row.ids[:begin].tolist())
        for row in episode.rows
        for begin, end in spans(row.sampled)
    ]
    assert dict(found) == engine.turns
    assert len(found) == len(engine.turns) == episode.attempt.turns
    flat = Flat.of([episode])
    findings = [*mask_findings(flat), *turn_findings(flat, chat), *length_findings([episode], 100_000, 512)]
    findings += [*text_findings(episode, chat), *prompt_findings(episode, chat)]
    assert findings == []
    assert response_length(episode) >= episode.sampled_tokens
    again = from_line(to_line(Record("x", episode))).episode
    assert (again.attempt, again.tools, again.dialogues) == (episode.attempt, episode.tools, episode.dialogues)


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3", "llama3", "tiny"])
def test_a_harness_has_the_rows_of_the_ordinary_environment_token_by_token(family):
    chat = families.chat(family)

    def rule(messages, rng):
        return demonstrate(messages, rng, tool_rate=0.7)

    def rows(arena):
        with closing(arena):
            agent = Agent(ScriptedPolicy(rule), chat)
            return {episode.start.task: episode for episode in play(agent, arena, [Start(n, n) for n in range(24)])}

    ordinary, harness = rows(palaestra.arena("palaestra/TwoHop-v0", 8)), rows(ToolVectorEnv(harness_worlds.Hops(), 8))
    for task, episode in ordinary.items():
        other = harness[task]
        assert (other.reward, other.ending, other.tools) == (episode.reward, episode.ending, episode.tools)
        assert other.attempt.answer == episode.attempt.answer
        assert [call.text for call in other.attempt.calls] == [call.text for call in episode.attempt.calls]
        for one, two in zip(episode.rows, other.rows, strict=True):
            assert one.ids.tolist() == two.ids.tolist()
            assert one.sampled.tolist() == two.sampled.tolist()
            assert one.logprobs.tolist() == two.logprobs.tolist()


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("aggregation", ["token", "sample", "sum"])
def test_an_episode_of_three_rows_counts_and_weighs_as_the_same_turns_in_one_row(aggregation, level):
    chat, model = families.chat("tiny"), batches.restless()
    episodes = []
    for rewrites, task in ((True, 0), (False, 0), (False, 1)):
        with closing(ToolVectorEnv(harness_worlds.Hops(rewrites=rewrites), 1)) as arena:
            episodes += play(Agent(ScriptedPolicy(demonstrate), chat), arena, [Start(task, task)])
    assert [len(episode.rows) for episode in episodes] == [3, 1, 1]
    assert episodes[0].sampled_tokens == episodes[1].sampled_tokens
    for row in (row for episode in episodes for row in episode.rows):
        row.logprobs[row.sampled] = families.fresh_logprobs(model, row)  # So every ratio is 1.

    rewards = iter([1.0, 0.0, 0.0])
    batch = batches.batch_of(episodes, lambda episode: {"outcome": next(rewards)})
    advantages = GroupNormalized()(batch, BatchScores())
    assert list(advantages) == pytest.approx([2 / 3**0.5, -1 / 3**0.5, -1 / 3**0.5], rel=1e-5)

    def weight(place):
        """The sum of the weights of an episode's tokens: the loss where its advantage alone is not 0, and -1."""
        config = batches.settings(
            "grpo-t", num_mini_batches=1, aggregation=aggregation, importance_sampling_level=level, beta=0.0
        )
        learner = Learner(Agent(families.Echo()), copy.deepcopy(model), config)
        return update(learner, batch, [-1.0 * (place == i) for i in range(3)], BatchScores())[0]["loss"]

    tokens = [episode.sampled_tokens for episode in episodes]
    shares = {"token": [n / sum(tokens) for n in tokens], "sample": [1 / 3] * 3, "sum": [n / 3 for n in tokens]}
    assert [weight(place) for place in range(3)] == pytest.approx(shares[aggregation], rel=1e-3)


def test_a_turn_is_learned_by_imitation_once_and_context_is_not():
    chat = families.chat("qwen2.5")
    arena = ToolVectorEnv(harness_worlds.Hops(rewrites=True), 4)
    with closing(arena):
        played = list(play(Agent(ScriptedPolicy(demonstrate), chat), arena, [Start(n, n) for n in range(4)]))
    for episode in played:
        assert len(episode.dialogues) == len(episode.rows) == 3
        written = sft_rows(chat, [("here", episode)], 10_000).rows
        for row, played_row in zip(written, episode.rows, strict=True):
            assert row.ids.tolist() == played_row.ids.tolist()
            assert row.sampled.tolist() == played_row.sampled.tolist()
        shown = content(Record("x", episode))
        assert [m["text"] for m in shown["messages"] if m["role"] == "dialogue"] == ["1 of 3", "2 of 3", "3 of 3"]
        assert sum(m["turn"] for m in shown["messages"]) == episode.attempt.turns
        prompts = [int(row.sampled.argmax()) for row in episode.rows]
        assert response_length(episode) == sum(len(row) - at for row, at in zip(episode.rows, prompts, strict=True))


@pytest.mark.parametrize("family", ["qwen2.5", "qwen3", "llama3"])
def test_control_tokens_in_the_words_of_a_harness_stay_text_in_every_role(family):
    chat = families.chat(family)
    control = chat.tokenizer.convert_ids_to_tokens(chat.end_of_turn)

    class Sneaks(harness_worlds.Plain):
        async def play(self, task, client):
            words = f"a{control}b"
            roles = ("system", "user", "assistant", "user")
            return (await client.ask([{"role": role, "content": words} for role in roles]))["content"]

    arena = ToolVectorEnv(Sneaks(), 1)
    with closing(arena):
        (episode,) = play(Agent(Numbered(chat), chat), arena, [Start(0, 0)])
    clean = [{**message, "content": "ab"} for message in episode.attempt.messages[:4]]
    (row,) = episode.rows
    assert row.ids.tolist().count(chat.end_of_turn) == Conversation(chat, clean).ids.count(chat.end_of_turn) + 1
    assert chat.tokenizer.decode(row.ids.tolist()).count(control) == row.ids.tolist().count(chat.end_of_turn) + 4


def test_usage_counts_the_tokens_that_were_read_and_sampled():
    chat, met = families.chat("qwen2.5"), []

    class Counts(harness_worlds.Plain):
        async def play(self, task, client):
            _, body = await client.raw({"messages": [{"role": "user", "content": task.prompt}]})
            met.append(json.loads(body)["usage"])
            return "yes"

    arena = ToolVectorEnv(Counts(), 1)
    with closing(arena):
        (episode,) = play(Agent(Numbered(chat), chat), arena, [Start(0, 0)])
    sampled = episode.sampled_tokens
    read = len(episode.rows[0]) - sampled
    assert met == [{"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}]


def test_play_over_a_released_engine_says_so():
    class Released(Numbered):
        released = True
        version, shares_weights, shares_memory = 0, True, True

        def close(self): ...
        def update_weights(self, tensors, version): ...
        def pause(self, mode="keep"): ...
        def resume(self): ...
        def release(self): ...
        def reclaim(self): ...

    chat = families.chat("qwen2.5")
    with (
        closing(palaestra.arena("palaestra/TwoHop-v0", 1)) as arena,
        pytest.raises(UsageError, match="reclaim"),
    ):
        list(play(Agent(Released(chat), chat), arena, [Start(0, 0)]))
