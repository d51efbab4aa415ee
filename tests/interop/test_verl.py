"""verl's agent loop plays an environment of palaestra against a stand-in of verl's server, token by token."""

import asyncio

import lookup_world
import numpy as np
import pytest


class StandIn:
    """Samples from the model, as verl's server does with its engine, and keeps what it was asked."""

    def __init__(self, local, said=None):
        self.local, self.said, self.calls = local, said, []

    async def generate(self, request_id, *, prompt_ids, sampling_params, **options):
        from verl.workers.rollout.replica import TokenOutput

        from palaestra.episode import Start
        from palaestra.protocols import Request

        if self.said is not None:
            text = self.said(self.local.tokenizer.decode(prompt_ids))
            ids = self.local.agent.chat.encode_turn(text)
            output = TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids))
        else:
            engine = self.local.agent.engine
            engine.submit(Request(len(self.calls), Start(0, len(self.calls)), 0, (), (), prompt_ids, 8))
            answers = []
            while not answers:
                answers = engine.poll()
            output = TokenOutput(token_ids=list(answers[0].ids), log_probs=list(answers[0].logprobs))
        self.calls.append((request_id, list(prompt_ids), output))
        return output


@pytest.fixture
def loop_of(model):
    """A function that makes verl's loop for an environment, and the stand-in that it asks."""
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.utils.dataset.rl_dataset import RLHFDataset

    from palaestra.agents.local_model import load
    from palaestra.interop.verl_loop import PalaestraAgentLoop

    def make(env_id, said=None):
        local = load(str(model), slots=1)
        server = StandIn(local, said)
        config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"prompt_length": 300, "response_length": 300}}})
        wrapped = DictConfigWrap(config), DictConfigWrap(OmegaConf.create({}))
        loop = PalaestraAgentLoop(
            wrapped[0],
            server,
            local.tokenizer,
            None,
            RLHFDataset,
            wrapped[1],
            env_id=env_id,
            options={"split": "train"},
        )
        return loop, server

    return make


def played(loop, task):
    return asyncio.run(loop.run({"temperature": 1.0}, raw_prompt=[], extra_info={"index": task}))


def scripted(text):
    answer, arguments = lookup_world.turn([text])
    return answer if arguments is None else f'<tool_call>{{"name": "look_up", "arguments": {arguments}}}</tool_call>'


def test_the_row_is_what_the_server_was_asked_and_what_it_sampled(loop_of):
    loop, server = loop_of(lookup_world.ENV_ID, scripted)
    rewards = {}
    for task in range(8):
        server.calls.clear()
        output = played(loop, task)
        row, mask = [*output.prompt_ids, *output.response_ids], np.array(output.response_mask)
        for _, asked, sampled in server.calls if output.reward_score else []:
            assert row[: len(asked) + len(sampled.token_ids)] == [*asked, *sampled.token_ids]
        if output.reward_score:
            sampled = [token for _, _, each in server.calls for token in each.token_ids]
            assert np.array(output.response_ids)[mask == 1].tolist() == sampled
            assert np.array(output.response_logprobs)[mask == 1].tolist() == [-0.5] * len(sampled)
            assert (output.reward_score, output.num_turns) == (1.0, 4)
            assert len({request_id for request_id, _, _ in server.calls}) == 1
        else:
            assert mask.sum() == 0, "a BROKEN episode teaches nothing"
            assert len({request_id for request_id, _, _ in server.calls}) == 2, "it was played again"
        prompt = loop.tokenizer.decode(output.prompt_ids)
        rewards[lookup_world.is_gone(lookup_world.number_of(prompt))] = output.reward_score
    assert rewards == {True: 0.0, False: 1.0}


def test_the_sampled_log_probs_are_those_of_the_row_under_the_model(loop_of):
    import torch

    loop, server = loop_of(lookup_world.ENV_ID)
    output = played(loop, 1)
    ids = torch.tensor([[*output.prompt_ids, *output.response_ids]])
    with torch.no_grad():
        logprobs = server.local.model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
    theirs = logprobs[len(output.prompt_ids) - 1 :].numpy()
    mask = np.array(output.response_mask) == 1
    assert mask.any()
    assert np.abs(theirs - np.array(output.response_logprobs))[mask].max() < 1e-4
