"""An engine that says what a demonstrator would, in tokens that it scores with a model: whole dialogues with tool calls
to learn from, without a model that has learned to write them.
"""

from dataclasses import replace
from functools import partial

import families
import torch

import palaestra
from palaestra.agents import Agent, Chat
from palaestra.agents.policies.scripted import ScriptedPolicy
from palaestra.agents.policies.tiny import tiny_model
from palaestra.trainers.config.grpo_config import tiny_config
from palaestra.trainers.learn.learner import Learner

ENV = "palaestra/TwoHop-v0"
SMALL = {
    "steps": 2,
    "num_prompts": 3,
    "num_generations": 4,
    "num_mini_batches": 2,
    "slots": 12,
    "max_turn_tokens": 200,
    "max_episode_tokens": 1000,
    "device": "cpu",
}


class Parrot:
    """A trained engine that shares the weights of a model."""

    shares_weights = True
    shares_memory = True

    def __init__(self, model, chat, tool_rate=0.5, cut_every=0):
        """With `cut_every`, each so manieth turn comes without its end, as one does that had no room for it."""
        self.model, self.chat, self.cut_every = model, chat, cut_every
        self.script = ScriptedPolicy(partial(palaestra.demonstrator(ENV), tool_rate=tool_rate))
        self.version, self.sampled, self.asked = 0, 0, {}

    def submit(self, request):
        ticket = self.script.submit(request)
        self.asked[ticket] = list(request.ids)
        return ticket

    def poll(self, timeout=0.0):
        return [self._said(done) for done in self.script.poll()]

    def _said(self, done):
        before, said = self.asked.pop(done.ticket), self.chat.encode_turn(done.text)
        cut = bool(self.cut_every) and not done.ticket % self.cut_every
        said = said[:-1] if cut else said
        with torch.no_grad():
            logits = self.model(input_ids=torch.tensor([before + said])).logits[0, len(before) - 1 : -1]
        logprobs = torch.log_softmax(logits, -1).gather(1, torch.tensor(said)[:, None])[:, 0].tolist()
        self.sampled += len(said)
        return replace(done, text=None, ids=said, logprobs=logprobs, versions=[self.version] * len(said), cut=cut)

    def update_weights(self, tensors, version):
        self.version = version

    def cancel(self, ticket):
        self.script.cancel(ticket)

    def nothing(self, *_):
        """There is nothing to stop or to release."""

    pause = resume = release = reclaim = close = nothing


def learner(family="tiny", recipe="grpo-tcr", cut_every=0, **changes):
    """Who learns from a parrot."""
    chat = Chat(families.TOKENIZERS[family])
    model = tiny_model(len(families.TOKENIZERS[family]), layers=1, seed=3)
    config = tiny_config(ENV, recipe, **{**SMALL, **changes})
    return Learner(Agent(Parrot(model, chat, cut_every=cut_every), chat), model, config)
