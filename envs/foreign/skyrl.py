"""Environments of skyrl-gym: `foreign/SkyRL-v0` with `tasks=` a file of rows as SkyRL's datasets have them.

A row has `prompt` (messages), `env_class` (the id of an environment) and what this environment reads, `reward_spec`
mostly. About a fifth of the rows, by the hash of the prompt, is the split eval. Left out: SkyRL's trainer.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from palaestra.envs.core.tasks import check_split, split_of
from palaestra.envs.data.rows import read_rows
from palaestra.envs.foreign.text_game import TextGame, installed
from palaestra.errors import TaskFileError, UsageError, unknown_name
from palaestra.options import SERVICE


class SkyRL(TextGame):
    """One of SkyRL's environments. The sum of its rewards is the reward; say with success_at which sum is a success."""

    def __init__(
        self,
        tasks: str = "",
        split: str = "train",
        game: str = "",
        config: Annotated[Mapping[str, Any] | None, SERVICE] = None,
    ) -> None:
        """`game` stands for `env_class` in rows that lack it; `config` is given to the environment, and may name
        servers and limits."""
        with installed("skyrl-gym", "foreign/SkyRL-v0"):
            import skyrl_gym
        check_split(split)
        if not tasks:
            raise UsageError("foreign/SkyRL-v0 needs tasks=FILE, rows with prompt, env_class and reward_spec")
        self._make, self._config = skyrl_gym.make, dict(config or {})
        self._game: Any = None
        self.tasks = []
        for row in read_rows(tasks)[1]:
            columns, name = row.columns, row.columns.get("env_class", game)
            if row.fault or not isinstance(columns.get("prompt"), list) or not columns["prompt"]:
                raise TaskFileError(tasks, f"row {row.number} {row.fault or 'has no prompt, a list of messages'}")
            if name not in skyrl_gym.registry:  # Its `make` imports the module that stands before a colon.
                raise TaskFileError(tasks, f"row {row.number}: {unknown_name('game', str(name), skyrl_gym.registry)}")
            if split_of(json.dumps(columns["prompt"])) == split:
                self.tasks.append({**columns, "env_class": name})
        if not self.tasks:
            raise UsageError(f"{tasks}: no row is for {split!r}; the hash of a prompt makes a fifth of the rows eval")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin the row of `options={"task": index}`, or one that is drawn."""
        super().reset(seed=seed)
        index = (options or {}).get("task")
        row = self.tasks[int(self.np_random.integers(len(self.tasks))) if index is None else index]
        self._game = self._make(row["env_class"], env_config=self._config, extras=row)
        return _read(self._game.init(row["prompt"])[0])

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one turn."""
        if self._game is None:
            raise UsageError("step: no episode has begun; call reset first")
        output = self._game.step(action)
        observation, info = _read(output["observations"])
        return observation, float(output["reward"]), bool(output["done"]), False, info

    def close(self) -> None:
        """Release what the environment holds."""
        if self._game is not None:
            self._game.close()


def _read(messages: Any) -> tuple[str, dict[str, Any]]:
    """Return messages as text, and as the info in which the arena reads them one by one."""
    text = "\n\n".join(str(message["content"]) for message in messages)
    return text, {"messages": tuple(dict(message) for message in messages)}
