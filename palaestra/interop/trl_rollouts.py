"""Environments of palaestra in TRL's GRPOTrainer (1.16) as its `rollout_func`: our loop plays with the trainer's model.

    rollouts = TRLRollouts("palaestra/TwoHop-v0", tokenizer)
    GRPOTrainer(model, rollouts.reward, config, rollouts.dataset(64), rollout_func=rollouts, processing_class=tokenizer)

Token-exact: what is trained on is what was sampled, with its log-probs. A BROKEN episode has the reward None, which TRL
leaves out. TRL learns from one row an episode, so a template that rewrites earlier turns is refused. Left out: sampling
from a server (TRL's own vLLM modes).
"""

from itertools import count
from typing import Any

import torch
from datasets import Dataset

from palaestra import arena
from palaestra.agents import TokenLimits, play
from palaestra.agents.local_model import LocalModel, serve
from palaestra.episode import Episode, Start
from palaestra.errors import UsageError


class TRLRollouts:
    """A `rollout_func` that plays episodes of an environment with the model that TRL trains."""

    def __init__(
        self, env_id: str, tokenizer: Any, *, limits: TokenLimits | None = None, seed: int = 0, **options: Any
    ) -> None:
        """`options` are those of the environment, its split among them."""
        self.env_id, self._options, self._tokenizer, self._limits = env_id, options, tokenizer, limits
        self._seed, self._seeds = seed, count(seed)
        self._local: LocalModel | None = None

    def dataset(self, tasks: int) -> Dataset:
        """Return the first tasks as rows; a prompt is only the index of a task, for the environment writes it."""
        return Dataset.from_dict({"prompt": [f"{self.env_id} {task}" for task in range(tasks)]})

    def reward(self, palaestra_reward: list[float | None], **_: Any) -> list[float | None]:
        """Return the rewards of the episodes, the trainer's `reward_funcs`."""
        return palaestra_reward

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
        """Play an episode for each prompt, as the trainer calls it."""
        model = trainer.accelerator.unwrap_model(trainer.model)
        training, slots = model.training, len(prompts)
        if self._local is None or self._local.model is not model:
            self._local = serve(model, self._tokenizer, slots=slots, seed=self._seed)
        model.eval()  # Else dropout would choose other tokens than those whose log-probs are compared.
        engine: Any = self._local.agent.engine
        engine.update_weights(model.named_parameters(), trainer.state.global_step)  # Drops what it remembers of them.
        starts = [Start(int(p.rpartition(" ")[2]), next(self._seeds), group) for group, p in enumerate(prompts)]
        episodes = arena(self.env_id, slots, **self._options)
        try:
            generator = play(
                self._local.agent, episodes, iter(starts), limits=self._limits, temperature=trainer.temperature
            )
            with torch.no_grad():
                by_group = {episode.start.group: episode for episode in generator}
        finally:
            episodes.close()
            model.train(training)
        rows = [self._row(by_group[group]) for group in range(slots)]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _row(self, episode: Episode) -> dict[str, Any]:
        if len(episode.rows) > 1:
            raise UsageError(
                f"an episode of {self.env_id} has {len(episode.rows)} token rows, for this chat template rewrites "
                "earlier turns, and TRL learns from one; choose a template that does not (palaestra doctor MODEL)"
            )
        if not episode.sampled_tokens:  # BROKEN before the first turn.
            end = self._tokenizer.eos_token_id
            row = {"prompt_ids": [end], "completion_ids": [end], "logprobs": [0.0], "env_mask": [0]}
            return {**row, "palaestra_reward": None}
        (tokens,) = episode.rows
        chosen = tokens.sampled.nonzero()[0]
        begin, end = int(chosen[0]), int(chosen[-1]) + 1
        return {
            "prompt_ids": tokens.ids[:begin].tolist(),
            "completion_ids": tokens.ids[begin:end].tolist(),
            "logprobs": tokens.logprobs[begin:end].tolist(),
            "env_mask": tokens.sampled[begin:end].astype(int).tolist(),
            "palaestra_reward": episode.reward,
        }
