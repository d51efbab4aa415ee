"""Environments of palaestra in verl (0.9) as an agent loop: verl's servers sample, this loop plays, verl trains.

In the file of `actor_rollout_ref.rollout.agent.agent_loop_config_path`, and `agent_name: palaestra` in the rows:

    - name: palaestra
      _target_: palaestra.interop.verl_loop.PalaestraAgentLoop
      env_id: palaestra/TwoHop-v0
      options: {split: train}

A row's `extra_info.index` is the index of its task; its prompt is not read, for the environment writes it. Token-exact:
the ids that were sampled, with their log-probs if the sampling parameters ask for them. A BROKEN episode is played
again; if that breaks too, its mask is empty: no token of it is learned, but its reward counts as 0 in its group's mean.
verl learns from one row an episode: a template that rewrites earlier turns is refused.
"""

import asyncio
from collections.abc import Mapping
from functools import cache
from itertools import count
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from palaestra.agents.chat import Chat
from palaestra.agents.conversation import Conversation
from palaestra.envs.arena.text_env import TextEnv
from palaestra.episode import Ending
from palaestra.errors import Broken, UsageError
from palaestra.interop.episodes import open_text_env

_chat_of = cache(Chat)
_seeds = count()


class PalaestraAgentLoop(AgentLoopBase):
    """Plays one episode of an environment for each row."""

    def __init__(self, *arguments: Any, env_id: str, options: Mapping[str, Any] | None = None, **more: Any) -> None:
        """`options` are those of the environment, its split among them."""
        super().__init__(*arguments, **more)
        self._env_id, self._options = env_id, dict(options or {})

    async def run(self, sampling_params: dict[str, Any], **columns: Any) -> AgentLoopOutput:
        """Play an episode of the row's task."""
        task = int(columns["extra_info"]["index"])
        env = open_text_env(self._env_id, **self._options)
        try:
            output = await self._play(env, task, sampling_params)
            if output.reward_score is None:
                output = await self._play(env, task, sampling_params)
        finally:
            await asyncio.to_thread(env.close)
        if output.reward_score is None:
            output.reward_score, output.response_mask = 0.0, [0] * len(output.response_mask)
        return output

    async def _play(self, env: TextEnv, task: int, sampling_params: dict[str, Any]) -> AgentLoopOutput:
        """Play an episode; its reward is None if it is BROKEN."""
        limits, request_id = self.rollout_config, uuid4().hex
        room, tools = limits.prompt_length + limits.response_length, env.schemas
        try:
            _, info = await asyncio.to_thread(env.reset, seed=next(_seeds), options={"task": task})
        except Broken as error:
            info = {"messages": ({"role": "user", "content": str(error)},), "ending": "broken"}
        conversation = Conversation(_chat_of(self.tokenizer), info["messages"], tools)
        reward, turns = 0.0, 0
        while not info["ending"]:
            sampled = await self.server_manager.generate(
                request_id=request_id, prompt_ids=list(conversation.ids), sampling_params=sampling_params
            )
            ids, turns = list(sampled.token_ids), turns + 1
            text = conversation.add_sampled(ids, sampled.log_probs or [0.0] * len(ids), [0] * len(ids))
            if not ids or ids[-1] not in _chat_of(self.tokenizer).stops:
                step = await asyncio.to_thread(env.finish, Ending.LENGTH_LIMIT, text)
            else:
                step = await asyncio.to_thread(env.step, text)
                if not step[4]["ending"] and not conversation.hear(step[4]["messages"], tools, room):
                    step = await asyncio.to_thread(env.finish, Ending.LENGTH_LIMIT)
            reward, info = step[1], step[4]
        return self._output(conversation, None if info["ending"] == Ending.BROKEN else reward, turns)

    def _output(self, conversation: Conversation, reward: float | None, turns: int) -> AgentLoopOutput:
        if len(conversation.rows()) > 1:
            raise UsageError(
                f"an episode of {self._env_id} has several token rows, for this chat template rewrites earlier turns, "
                "and verl learns from one; choose a template that does not (palaestra doctor MODEL)"
            )
        (row,) = conversation.rows()
        begin = int(row.sampled.argmax()) if row.sampled.any() else len(row) - 1
        end = min(len(row), begin + self.rollout_config.response_length)
        return AgentLoopOutput(
            prompt_ids=row.ids[:begin].tolist(),
            response_ids=row.ids[begin:end].tolist(),
            response_mask=row.sampled[begin:end].astype(int).tolist(),
            response_logprobs=row.logprobs[begin:end].tolist(),
            reward_score=reward,
            num_turns=2 * turns,
            metrics=AgentLoopMetrics(),
            extra_fields={"turn_scores": [], "tool_rewards": []},
        )
