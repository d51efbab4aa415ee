"""Environments of palaestra as environments of verifiers (0.1.14): its clients and trainers, our tools and rewards.

    env = load_environment("palaestra/TwoHop-v0", tasks=64)
    env.evaluate_sync(ClientConfig(...), "model", num_examples=64, rollouts_per_example=4)

verifiers' client decides whether tokens are exact: `openai_chat_completions_token` keeps them, the others keep texts. A
BROKEN episode is an InfraError in its state, which verifiers can retry (`max_retries`); its reward there is 0, so leave
out what has an error before you average or train. Left out: verifiers' servers of tools, for tools run in this process.
"""

import asyncio
import json
from itertools import count
from typing import Any

import verifiers as vf
from datasets import Dataset

from palaestra.episode import Ending
from palaestra.errors import Broken
from palaestra.interop.episodes import NativeEpisode

_KEPT = "palaestra_episode"
_TASK = "palaestra_task"
"""Key in the column `info`; verifiers takes a key `task` for its own."""


class PalaestraEnv(vf.MultiTurnEnv):
    """An environment of palaestra. Its own limit of turns holds."""

    def __init__(self, env_id: str, tasks: int, **options: Any) -> None:
        """`options` are those of the environment, its split among them."""
        self._palaestra, self._seeds = (env_id, options), count()
        episode = NativeEpisode(env_id, **options)
        indices = range(min(tasks, episode.task_count))
        prompts = [episode.begin(index, 0) for index in indices]
        tools = [
            vf.Tool(name=tool["name"], description=tool.get("description", ""), parameters=tool["parameters"])
            for tool in (schema["function"] for schema in episode.tools)
        ]
        rows = Dataset.from_dict({"prompt": prompts, "info": [json.dumps({_TASK: index}) for index in indices]})
        super().__init__(dataset=rows, tool_defs=tools, rubric=vf.Rubric(funcs=[reward]))
        for part in episode.env.author.parts:
            self.add_rubric(vf.Rubric(funcs=[_part(part)], weights=[0.0]))
        episode.close()

    async def setup_state(self, state: vf.State) -> None:
        """Begin the episode."""
        env_id, options = self._palaestra
        state[_KEPT] = episode = NativeEpisode(env_id, **options)
        try:
            await asyncio.to_thread(episode.begin, state["info"][_TASK], next(self._seeds))
        except Broken as error:
            raise vf.InfraError(str(error)) from error

    async def env_response(self, messages: vf.Messages, state: vf.State, **_: Any) -> vf.Messages:
        """Take the model's turn, and return what the environment answers."""
        turn, step = messages[-1], state["trajectory"][-1]
        calls = [(call.id, call.name, call.arguments) for call in turn.tool_calls or ()]
        thinking, cut = turn.reasoning_content or "", bool(step["is_truncated"])
        episode = state[_KEPT]
        answers = await asyncio.to_thread(episode.take, str(turn.content or ""), calls, reasoning=thinking, cut=cut)
        if episode.ending == Ending.BROKEN:
            raise vf.InfraError(episode.fault)
        if episode.ending:
            state["final_env_response"] = answers
        return answers

    @vf.cleanup
    async def end_episode(self, state: vf.State) -> None:
        """End an episode that one of verifiers' limits has ended, and release its tools."""
        if (episode := state.pop(_KEPT, None)) is not None:
            if state.get("error") is None:
                await asyncio.to_thread(episode.cut)
            state["palaestra_parts"] = dict(episode.parts)
            state["palaestra_reward"] = episode.reward
            episode.close()


async def reward(state: vf.State) -> float:
    """Return the reward of the episode; 0 beside an error in the state."""
    return float(state.get("palaestra_reward") or 0.0)


def _part(name: str) -> Any:
    async def part(state: vf.State) -> float:
        return float(state.get("palaestra_parts", {}).get(name, 0.0))

    part.__name__ = name
    return part


def load_environment(env_id: str = "palaestra/TwoHop-v0", tasks: int = 64, **options: Any) -> vf.Environment:
    """Return an environment of palaestra, by the name that verifiers calls."""
    return PalaestraEnv(env_id, tasks, **options)
