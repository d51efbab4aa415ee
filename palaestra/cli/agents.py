"""Open the agent that the options of a command name.

The agent is the environment's own script, a person at the keyboard, a model of the server at `--base-url`, or a model
that is loaded into this process from a folder or hub name. A command includes `AgentOptions` in its own options,
without a prefix, and plays inside `open_agent`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from palaestra import formats
from palaestra.cli.display import note
from palaestra.endpoint.config import RequestLimits, address_of
from palaestra.errors import UnknownId, UsageError
from palaestra.registry import demonstrators, format_read
from palaestra.trainers.config.sections_config import PromptConfig

if TYPE_CHECKING:
    from palaestra.agents import Agent
    from palaestra.judging.guard import Guard
    from palaestra.registry import Demonstrator

DEMONSTRATOR, HUMAN = "demonstrator", "human"
_MAX_TURN_TOKENS, _MAX_EPISODE_TOKENS = 4096, 23_040


@dataclass(frozen=True, kw_only=True)
class GuardOptions:
    """The options of a guard over an agent."""

    guard_url: str | None = None
    """OpenAI-compatible server of a reward model (`palaestra serve rrm`) that reads each turn before it is carried
    out."""
    guard_below: float = 0.3
    """Scores below this hold a turn back: the episode of a served model ends, and in `play` /send carries it out."""
    guard_model: str = "rrm"
    """The reward model's name at --guard-url."""

    def open_guard(self) -> "Guard | None":
        """Open the guard and return it; None without a URL. Raise a UsageError if it cannot be reached."""
        from palaestra.judging.guard import Guard

        if self.guard_url is None:
            return None
        guard = Guard(address_of(self.guard_url, "--guard-url"), self.guard_below, self.guard_model)
        try:
            guard.check()
        except BaseException:
            guard.close()
            raise
        return guard


@dataclass(frozen=True)
class AgentOptions(PromptConfig, GuardOptions, RequestLimits):
    """The options that name the agent."""

    model: Annotated[str, tyro.conf.arg(aliases=["-m"])] = DEMONSTRATOR
    """A model's folder or hub name (a run's is RUN/model), its name at --base-url, `demonstrator` for the environment's
    own script, or `human` for you at the keyboard."""
    base_url: Annotated[str | None, tyro.conf.arg(aliases=["-b"])] = None
    """OpenAI-compatible server to ask, as in http://localhost:8000/v1."""
    max_concurrent: Annotated[int, tyro.conf.arg(aliases=["-c"])] = field(default=32, kw_only=True)
    """Maximum number of requests sent at once. It adapts to a server that refuses some for their rate (429)."""
    native_tools: bool = True
    """Send tool schemas and calls in the server's own form; without it they are described in the system message."""
    tool_rate: float | None = field(default=None, kw_only=True)
    """Share of episodes in which the demonstrator uses its tool; by default what its author chose."""
    send_seed: bool = False
    """Send a seed with each request, for servers that take one."""
    device: str = "auto"
    """Device of a model that is loaded here: `cpu`, `cuda`, or `auto`."""

    def __post_init__(self) -> None:
        served = {option.name: option.default for option in fields(self)}
        loading_defaults = {
            name: served.pop(name) for name in ("model", "base_url", "device", "chat_template", "system", "tool_rate")
        }
        self.require_loaded(loads_here(self))
        if self.tool_rate is not None and not 0 <= self.tool_rate <= 1:
            raise UsageError(f"--tool-rate is {self.tool_rate:g}; expected a share from 0 to 1")
        if self.tool_rate is not None and (self.base_url is not None or self.model != DEMONSTRATOR):
            raise UsageError(f"--tool-rate is for the environment's demonstrator; {self.model} decides by itself")
        if self.base_url is None:
            idle = [name for name, default in served.items() if getattr(self, name) != default]
            if idle:
                flag = f"--{idle[0].replace('_', '-')}"
                raise UsageError(f"{flag} is for a server; name one with --base-url, or leave it out")
        elif self.model in (DEMONSTRATOR, HUMAN):
            raise UsageError(f"--base-url names a server; name one of its models with --model, found {self.model!r}")
        elif self.device != loading_defaults["device"]:
            raise UsageError("--device is for a model that is loaded here; leave it out beside --base-url")


@contextmanager
def open_agent(
    options: AgentOptions, env_id: str, *, slots: int, seed: int, environment: Mapping[str, Any] | None = None
) -> Iterator["Agent"]:
    """Open the agent that the options name, and close it at the end. `agent_cost` returns its cost even after that.

    `environment` holds the environment's options: an agent without a chat template writes calls in the format that the
    environment reads.
    """
    format = formats.DEFAULT if loads_here(options) else format_read(env_id, environment or {})
    agent = _opened(options, format, env_id, slots, seed)
    try:
        if agent.chat is not None:
            from palaestra.agents.dialect import prepared
            from palaestra.trainers.run.saved_config import options_changed, trained_format

            prepared(env_id, environment or {}, agent.chat.tokenizer, trained_format(options.model))
            if changed := options_changed(options.model, env_id, environment or {}):
                note(changed)
        yield agent
    finally:
        agent.engine.close()


def read_as(env_id: str, environment: Mapping[str, Any], model: str, tokenizer: Any) -> dict[str, Any]:
    """Return an environment's options for a model in this process: it then reads calls in the model's format. A chat
    template that shows no tools gets them in the system message, and a note says so.
    """
    from palaestra.agents.dialect import prepared
    from palaestra.trainers.run.saved_config import trained_format

    pinned_options, message = prepared(env_id, environment, tokenizer, trained_format(model))
    if message:
        note(message)
    return pinned_options


def loads_here(options: AgentOptions) -> bool:
    """Return whether the agent is a model that is loaded into this process, with its own chat template."""
    return options.base_url is None and options.model not in (DEMONSTRATOR, HUMAN)


def token_limits(model: str, turn: int | None, episode: int | None) -> tuple[int, int]:
    """Return the maximum tokens of a turn and of a row. A limit that is None is taken from the run that trained the
    model; without such a run, it is a large default.
    """
    from palaestra.trainers.config.grpo_config import GRPOConfig
    from palaestra.trainers.run.saved_config import configs_around

    trained = next((config for config in configs_around(model) if isinstance(config, GRPOConfig)), None)
    if turn is None:
        turn = trained.play.max_turn_tokens if trained else _MAX_TURN_TOKENS
    if episode is None:
        episode = trained.longest_row if trained else _MAX_EPISODE_TOKENS
    return turn, episode


def agent_cost(agent: "Agent") -> dict[str, Any] | None:
    """Return the requests, tokens and cost of an agent behind an endpoint; None for any other agent."""
    from dataclasses import asdict

    from palaestra.agents import EndpointPolicy

    return asdict(agent.engine.totals) if isinstance(agent.engine, EndpointPolicy) else None


def cost_text(cost: dict[str, Any]) -> str:
    """Return the result of `agent_cost` as one line of text."""
    text = f"{cost['answers']} answers, {cost['prompt_tokens']:,} tokens read, {cost['completion_tokens']:,} written"
    if cost["cost"]:
        text += f", {cost['cost']:,.4f} paid"
    if cost["estimated"]:
        text += f"; {cost['estimated']} answers came without figures, theirs are estimates"
    if cost["refused_for_rate"]:
        text += f"; {cost['refused_for_rate']} requests refused for their rate and sent again, at the end "
        text += f"{cost['at_once']} at once"
    if cost["unanswered"]:
        text += f"; {cost['unanswered']} requests without an answer"
    return text


def _opened(options: AgentOptions, format: str, env_id: str, slots: int, seed: int) -> "Agent":
    from palaestra.agents import Agent, EndpointPolicy, HumanPolicy, ScriptedPolicy
    from palaestra.endpoint import EndpointConfig

    if options.base_url is not None:
        limits = {limit.name: getattr(options, limit.name) for limit in fields(RequestLimits)}
        config = EndpointConfig(options.base_url, options.model, **limits)
        policy = EndpointPolicy(
            config,
            format=format,
            native_tools=options.native_tools,
            seed=seed if options.send_seed else None,
            guard=options.open_guard(),
        )
        try:
            policy.check()
        except BaseException:
            policy.close()
            raise
        return Agent(policy)
    if options.model == DEMONSTRATOR:
        return Agent(ScriptedPolicy(_script(env_id, options.tool_rate), seed, format))
    if options.model == HUMAN:
        return Agent(HumanPolicy(format=format))
    from palaestra.agents.local_model import load

    how: dict[str, Any] = {"slots": slots, "seed": seed, "device": options.device}
    return load(options.model, **how, chat_template=options.chat_template, system=options.system).agent


def _script(env_id: str, tool_rate: float | None) -> "Demonstrator | dict[str, Demonstrator]":
    """Return the demonstrator of the environment, which is the default agent, with this share of tool use."""
    try:
        rules = demonstrators(env_id)
        if tool_rate is None:
            return rules
        if isinstance(rules, Mapping):
            return {env: partial(rule, tool_rate=tool_rate) for env, rule in rules.items()}
        return partial(rules, tool_rate=tool_rate)
    except UnknownId:
        raise
    except UsageError as error:
        raise UsageError(
            f"{env_id} has no demonstrator, which plays by default; name who plays with --model: a folder or hub name, "
            "a model of the server at --base-url, or human for you at the keyboard"
        ) from error
