"""Environments of palaestra in TRL's GRPOTrainer (1.16) as its `environment_factory`: TRL plays, tools are methods.

    environments = TRLEnvironments("palaestra/Calculator-v0", tokenizer)
    GRPOTrainer(model, environments.reward, config, environments.dataset(64), environment_factory=environments)

As exact as TRL's loop, which keeps a turn's ids and reads calls itself; no call that it cannot read reaches the
environment. Each call is a turn, and a turn without a call is the answer: so environments without tools, with users, or
with several calls a turn in their reward want `trl_rollouts`. A BROKEN episode has the reward None, which TRL leaves
out.
"""

from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any

from datasets import Dataset

from palaestra import formats
from palaestra.episode import Ending
from palaestra.errors import Broken, UsageError
from palaestra.interop.episodes import open_text_env

_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}
_OVER = "The episode is over."


class TRLEnvironments:
    """An `environment_factory`: each call returns an environment whose methods are the tools of a palaestra one."""

    def __init__(self, env_id: str, tokenizer: Any, **options: Any) -> None:
        """`options` are those of the environment, its split among them."""
        self.env_id, self._options, self._end = env_id, options, tokenizer.eos_token_id
        env = open_text_env(self.env_id, **self._options)
        self._tools = {schema["function"]["name"]: _method(schema["function"]) for schema in env.schemas}
        env.close()
        if not self._tools or {"reset", "get_reward"} & set(self._tools):
            raise UsageError(f"{env_id} has the tools {list(self._tools)}: TRL's loop needs some, none called reset")

    def __call__(self) -> Any:
        """Return a new environment."""
        env = open_text_env(self.env_id, **self._options)
        return type("PalaestraEnvironment", (_Environment,), dict(self._tools))(env)

    def dataset(self, tasks: int) -> Dataset:
        """Return the first tasks as rows, with their prompts."""
        env = open_text_env(self.env_id, **self._options)
        prompts = [list(env.reset(seed=0, options={"task": task})[1]["messages"]) for task in range(tasks)]
        env.close()
        return Dataset.from_dict({"prompt": prompts, "task": list(range(tasks))})

    def reward(
        self, environments: Sequence[Any], completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], **_: Any
    ) -> list[float | None]:
        """Return the reward of each episode, of which the last message is the answer: the `reward_funcs`."""
        return [
            env._finish(completion[-1], not ids or ids[-1] != self._end)
            for env, completion, ids in zip(environments, completions, completion_ids, strict=True)
        ]


class _Environment:
    """The state of one rollout: TRL calls `reset` and the methods that were made of tools."""

    def __init__(self, env: Any) -> None:
        self._env, self._result = env, (0.0, "")

    def reset(self, task: int = 0, **_: Any) -> None:
        """Begin an episode of the task."""
        self._result = (0.0, "")
        try:
            self._env.reset(options={"task": task})
        except Broken:  # An error would end the training.
            self._result = (0.0, Ending.BROKEN)

    def _step(self, text: str) -> str:
        if self._result[1]:
            return _OVER
        observation, reward, *_, info = self._env.step(text)
        self._result = reward, info["ending"]
        return str(observation) or _OVER

    def _finish(self, message: Mapping[str, Any], is_cut: bool) -> float | None:
        """Return the reward, after the last message was taken as the answer; None for BROKEN.

        A turn whose tokens ran out, and a call that TRL did not run any more, end the episode without an answer.
        """
        text = str(message.get("content") or "") if message["role"] == "assistant" else ""
        if not self._result[1] and (is_cut or message["role"] != "assistant" or message.get("tool_calls")):
            _, reward, *_, info = self._env.finish(Ending.LENGTH_LIMIT, text)
            self._result = reward, info["ending"]
        self._step(text)
        reward, ending = self._result
        return None if ending == Ending.BROKEN or not ending else float(reward)


def _method(schema: Mapping[str, Any]) -> Any:
    """Return a method with the name, types and docstring from which transformers makes the schema again."""
    name, fields = schema["name"], schema["parameters"].get("properties", {})
    required = schema["parameters"].get("required", [])

    def method(self: Any, **arguments: Any) -> str:
        call = formats.ParsedCall(name, arguments)
        return str(self._step(formats.get(self._env.author.format).render([call])))

    parameters = [
        Parameter(
            field,
            Parameter.KEYWORD_ONLY,
            annotation=_TYPES.get(str(about.get("type")), Any),
            default=Parameter.empty if field in required else about.get("default"),
        )
        for field, about in fields.items()
    ]
    method.__name__ = method.__qualname__ = name
    method.__signature__ = Signature([Parameter("self", Parameter.POSITIONAL_ONLY), *parameters])  # type: ignore[attr-defined]
    method.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": str}
    lines = [f"    {field}: {about.get('description') or field}" for field, about in fields.items()]
    method.__doc__ = "\n".join([schema.get("description") or name, "", *(["Args:", *lines] if lines else [])])
    return method
