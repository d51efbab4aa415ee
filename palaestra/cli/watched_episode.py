"""Let a model play one episode, and print it as it is played: `palaestra play ID --model M`.

What is printed is the transcript, or with `--show-prompt` the prompt as the model sees it, each turn what is new. Left
out: figures over many episodes (`palaestra eval`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from rich.console import Console

from palaestra.cli.agents import AgentOptions, open_agent, read_as, token_limits
from palaestra.envs.core.transcript import transcript
from palaestra.episode import Episode, Message, Start
from palaestra.errors import UsageError
from palaestra.registry import arena
from palaestra.shortening import visible

if TYPE_CHECKING:
    from palaestra.agents.chat import Chat
    from palaestra.protocols import Engine, Request


class PrintedEngine:
    """An engine whose requests are printed: the new messages, or the new tokens of the row with special tokens."""

    def __init__(self, engine: "Engine", chat: "Chat", console: Console, show_prompt: bool) -> None:
        self._engine, self._chat, self._console, self._show_prompt = engine, chat, console, show_prompt
        self._row, self._token_count, self._message_count = -1, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: "Request") -> int:
        """Print what is new since the last request, and submit it."""
        if request.row != self._row:  # The template has rewritten the dialogue: all of the row is new.
            self._row, self._token_count = request.row, 0
        self.show(request.ids, request.messages)
        return self._engine.submit(request)

    def show(self, ids: Sequence[int], messages: Sequence[Message]) -> None:
        """Print the tokens of the row, or the messages, that were not printed before."""
        if self._show_prompt:
            new_ids = list(ids[self._token_count :])
            text = visible(str(self._chat.tokenizer.decode(new_ids, skip_special_tokens=False)))
        else:
            text = transcript(messages[self._message_count :])
        self._token_count, self._message_count = len(ids), len(messages)
        if text:
            self._console.print(text, end="" if self._show_prompt else "\n", markup=False, soft_wrap=True)


def watch(
    env_id: str,
    environment: Mapping[str, Any],
    agent_options: AgentOptions,
    console: Console,
    *,
    task: int | None,
    seed: int | None,
    temperature: float,
    limits: tuple[int | None, int | None],
    show_prompt: bool,
) -> Episode:
    """Let the model play one episode, print it with its reward, and return it."""
    from palaestra.agents import Agent, TokenLimits, play

    model, rng = agent_options.model, np.random.default_rng(seed)
    with open_agent(agent_options, env_id, slots=1, seed=seed or 0, environment=environment) as agent:
        assert agent.chat is not None, "a model that is loaded has a chat"
        environment = read_as(env_id, environment, model, agent.chat.tokenizer)
        with closing(arena(env_id, 1, **environment)) as places:
            if seats := getattr(places, "seats", ()):
                raise UsageError(f"{env_id} is a game; name the model's seat, as in --env-options seat={seats[0]}")
            number = int(rng.integers(places.task_count)) if task is None else task
            if not 0 <= number < places.task_count:
                raise UsageError(f"task is {number}; expected 0 to {places.task_count - 1}")
            start = Start(number, int(rng.integers(2**31)) if seed is None else seed)
            console.print(
                f"{env_id}, task {start.task}, seed {start.seed}, played by {model}", style="dim", markup=False
            )
            printed = PrintedEngine(agent.engine, agent.chat, console, show_prompt)
            player = Agent(cast("Engine", printed), agent.chat)
            token_counts = TokenLimits(*token_limits(model, *limits))
            episodes: Iterator[Episode] = play(player, places, [start], limits=token_counts, temperature=temperature)
            (episode,) = episodes
            printed.show(episode.rows[-1].ids.tolist() if episode.rows else (), episode.attempt.messages)
    result = episode.fault if episode.reward is None else f"reward {episode.reward:g}"
    parts = "".join(f", {name} {value:g}" for name, value in episode.parts.items())
    new_line = "\n" * show_prompt
    console.print(f"{new_line}[{episode.ending}: {result}{parts}]", style="bold", markup=False, soft_wrap=True)
    return episode
