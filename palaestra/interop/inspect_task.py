"""Environments of palaestra as tasks of inspect_ai (0.3.285): its models, limits and logs, our tools and rewards.

    inspect_ai.eval(environment("palaestra/TwoHop-v0", tasks=64), model="openai/gpt-5", fail_on_error=False)

A sample's score holds the reward and each of its parts. A BROKEN episode is an error of its sample, never a score;
`retry_on_error=1` plays it again. `palaestra import LOG --from inspect` makes episodes of the log. Left out:
tokens, which inspect does not keep; inspect's sandboxes, for tools run where the environment's options say.
"""

import json
from collections.abc import Callable
from typing import Any

from anyio import CancelScope, get_cancelled_exc_class
from anyio.to_thread import run_sync
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessage, ChatMessageSystem, ChatMessageTool, ChatMessageUser, get_model
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolInfo, ToolParams
from inspect_ai.util import LimitExceededError

from palaestra.episode import Ending, Message
from palaestra.errors import Broken
from palaestra.interop.episodes import NativeEpisode

_KEPT = "palaestra"
"""Key of the outcome in the store of a sample."""


@task
def environment(env_id: str = "palaestra/TwoHop-v0", tasks: int = 64, split: str = "eval", **options: Any) -> Task:
    """Return the first tasks of an environment's split as an inspect task; `options` are the environment's."""
    episode = NativeEpisode(env_id, split=split, **options)
    samples = []
    for index in range(min(tasks, episode.task_count)):
        opening = [_message(message) for message in episode.begin(index, 0)]
        problem = episode.env.problem
        samples.append(Sample(opening, target=str(problem.answer), id=problem.id, metadata={"palaestra_task": index}))
    episode.close()
    return Task(samples, solver=play(env_id, split=split, **options), scorer=reward(), name=env_id)


@solver
def play(env_id: str, **options: Any) -> Solver:
    """Return a solver that plays an episode with the model that inspect evaluates."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        episode = NativeEpisode(env_id, **options)
        tools = [_tool(schema["function"]) for schema in episode.tools]
        try:
            opening = await run_sync(episode.begin, state.metadata["palaestra_task"], state.epoch - 1)
            state.messages = [_message(message) for message in opening]
            while not episode.ending:
                state.output = await get_model().generate(state.messages, tools)
                turn = state.output.message
                state.messages.append(turn)
                calls = [(call.id, call.function, json.dumps(call.arguments)) for call in turn.tool_calls or ()]
                cut = state.output.stop_reason in ("max_tokens", "model_length")
                answers = await run_sync(lambda: episode.take(turn.text, calls, cut=cut))  # noqa: B023
                state.messages += [_message(message) for message in answers]
        except (LimitExceededError, get_cancelled_exc_class()):  # One of inspect's limits; it scores the sample then.
            await _shielded(episode.cut)
            raise
        finally:
            if episode.reward is not None:
                state.store.set(_KEPT, {"reward": episode.reward, **episode.parts})
            await _shielded(episode.close)
        if episode.ending == Ending.BROKEN:
            raise Broken(episode.fault)
        state.completed = True
        return state

    return solve


@scorer(metrics={"*": [mean(), stderr()]})
def reward() -> Scorer:
    """Return a scorer whose values are the reward of the episode and its parts."""

    async def score(state: TaskState, target: Target) -> Score:
        outcome = state.store.get(_KEPT)
        if outcome is None:
            raise Broken("the episode has no reward")
        return Score(value=outcome, answer=state.output.completion)

    return score


async def _shielded(call: Callable[[], None]) -> None:
    """Call what may wait, also where a limit of time has cancelled all that waits."""
    with CancelScope(shield=True):
        await run_sync(call)


def _message(message: Message) -> ChatMessage:
    content = str(message.get("content") or "")
    if message["role"] == "tool":
        return ChatMessageTool(content=content, tool_call_id=message["tool_call_id"])
    return (ChatMessageSystem if message["role"] == "system" else ChatMessageUser)(content=content)


def _tool(schema: dict[str, Any]) -> ToolInfo:
    parameters = ToolParams.model_validate(schema["parameters"])
    return ToolInfo(name=schema["name"], description=schema.get("description", ""), parameters=parameters)
