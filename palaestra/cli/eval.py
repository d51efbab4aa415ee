"""`palaestra eval ID --model FOLDER`: measure how good an agent is on tasks that it was not trained on.

`--greedy` measures the agent once more without random sampling. `--against` measures how much better it is than another
agent on the same tasks. Left out: the statistics (`trainers.evaluation.statistics`), and top-p, which some papers use:
palaestra measures the distribution that it trains.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from palaestra import formats
from palaestra.cli import agents
from palaestra.cli.agents import DEMONSTRATOR, AgentOptions, agent_cost, cost_text, read_as
from palaestra.cli.display import note
from palaestra.cli.eval_file import EvalFile, settings_of
from palaestra.cli.eval_options import EvalOptions
from palaestra.cli.ids import resolve_all
from palaestra.cli.measuring import EvalArena, measure, record_of, ways_of
from palaestra.cli.output import run_reported
from palaestra.errors import UsageError
from palaestra.protocols import Arena
from palaestra.registry import arena, chosen_format, is_game

if TYPE_CHECKING:
    from palaestra.agents import Agent
    from palaestra.trainers.reward.async_scoring import Scoring


def run(arguments: Sequence[str]) -> int:
    """Print the figures. Return 1 if a column of the table has no scored episode."""
    greedy_too = "--no-greedy" not in arguments
    return run_reported(EvalOptions, "eval", arguments, partial(evaluate_agents, greedy_too))


def evaluate_agents(greedy_too: bool, options: EvalOptions, figures: dict[str, Any]) -> int:
    """Measure the agents that the options name, print their tables and fill in the figures. Return the exit status."""
    env_id, console = resolve_all(options.env_id), Console()
    from palaestra.agents import TokenLimits
    from palaestra.cli.results import agents_figures, compare_agents, show_agents
    from palaestra.trainers.samplers.task_of_group import held_out

    limits = TokenLimits(*options.limits)
    names = [options.agent.model] if options.against is None else [options.agent.model, options.against]
    with ExitStack() as opened:
        file = opened.enter_context(_opened_file(options, env_id, greedy_too))
        critic = opened.enter_context(open_critic(options, env_id)) if options.critic else None
        # All are opened before the first plays, so that a mistake in a name is reported at once.
        playing = {name: opened.enter_context(open_agent(name, options, env_id)) for name in names}
        arenas = [opened.enter_context(open_arena(name, agent, options, env_id)) for name, agent in playing.items()]
        ways = ways_of(options, list(playing.values()), greedy_too)
        if (tasks := len(held_out(arenas[0].arena, options.tasks))) < options.tasks:
            note(f"there are only {tasks} tasks in the {options.split} split")
        measured = [
            measure(name, table, options, limits, ways, env_id, file, critic)
            for name, table in zip(names, arenas, strict=True)
        ]
        if file is not None:
            all_records = (
                record_of(env_id, agent, episode, options.others) for agent in measured for episode in agent.all
            )
            file.finish(all_records)
    compared = compare_agents(measured)
    show_agents(measured, compared, env_id, console)
    for name, agent in playing.items():
        if (cost := agent_cost(agent)) is not None:
            console.print(f"{name}: {cost_text(cost)}", markup=False, highlight=False)
    figures |= {"env_id": env_id, "split": options.split, "seed": options.seed}
    figures |= ({"others": options.others} if options.seats else {}) | agents_figures(measured, compared)
    return 0 if all(agent.scored for agent in measured) else 1


@contextmanager
def _opened_file(options: EvalOptions, env_id: str, greedy_too: bool) -> Iterator[EvalFile | None]:
    """Open the file that keeps the episodes, and close it at the end; None without `--save`."""
    if options.save is None:
        if options.agent.base_url is not None:
            note("no episode is kept if this is stopped; with --save FILE the same command goes on")
        yield None
        return
    with EvalFile(options.save, settings_of(options, env_id, greedy_too)) as file:
        for file_note in file.notes:
            note(file_note)
        try:
            yield file
        except BaseException:  # After an interrupt the user wants to know it most.
            note(f"what was played is in {file.path}; the same command plays the rest")
            raise


@contextmanager
def open_agent(name: str, options: EvalOptions, env_id: str) -> "Iterator[Agent]":
    """Open the agent that is called `name` in the options, and close it at the end."""
    chosen = options.agent
    if name != chosen.model:
        # A prompt that the options change is --model's own: a trained model brings its prompt with it.
        served = chosen.base_url is not None and name != DEMONSTRATOR and not Path(name).is_dir()
        chosen = replace(chosen, model=name) if served else AgentOptions(name, device=chosen.device)
    how: dict[str, Any] = {"slots": options.slots, "seed": options.seed, "environment": options.environment}
    with agents.open_agent(chosen, env_id, **how) as agent:
        yield agent


@contextmanager
def open_arena(name: str, agent: "Agent", options: EvalOptions, env_id: str) -> Iterator[EvalArena]:
    """Open the arena in which `agent` plays. At the end, close the arena and the agent of the other seats."""
    agent_options = _options_for(name, agent, env_id, options.environment)
    # The seats of a game each take a place.
    slots = options.slots if is_game(env_id) else min(options.slots, options.tasks * options.samples)
    with ExitStack() as opened:
        other = None
        if options.seats:
            chosen = AgentOptions(options.others, device=options.agent.device)
            how: dict[str, Any] = {"slots": slots, "seed": options.seed, "environment": agent_options}
            other = opened.enter_context(agents.open_agent(chosen, env_id, **how))
            other_options = _options_for(options.others, other, env_id, options.environment)
            if other.chat is not None and _format(env_id, other_options) != _format(env_id, agent_options):
                agent_options["format"] = "auto"
                note("the agents at this table write calls in different formats; whichever is met is read")
        places = opened.enter_context(closing(arena(env_id, slots, **agent_options)))
        yield _seated(agent, other, options.seats, places, agent_options)


def _seated(
    agent: "Agent", other: "Agent | None", seats: Sequence[str], places: Arena, environment: Mapping[str, Any]
) -> EvalArena:
    from palaestra.agents.policies.table import seated_agent

    there = tuple(getattr(places, "seats", ()))
    if unknown := [seat for seat in seats if seat not in there]:
        has = f"the seats {', '.join(there)}" if there else "one seat, which has no name: leave out --seats"
        raise UsageError(f"--seats names {unknown[0]!r}; the environment has {has}")
    if not there:
        return EvalArena(agent, places, environment, ())
    own_seats = tuple(seat for seat in there if not seats or seat in seats)
    players = {seat: agent if seat in own_seats or other is None else other for seat in there}
    return EvalArena(seated_agent(players), places, environment, own_seats)


def _options_for(name: str, agent: "Agent", env_id: str, environment: Mapping[str, Any]) -> dict[str, Any]:
    chat = agent.chat
    return dict(environment) if chat is None else read_as(env_id, environment, name, chat.tokenizer)


def _format(env_id: str, environment: Mapping[str, Any]) -> str:
    return chosen_format(env_id, environment) or formats.DEFAULT


@contextmanager
def open_critic(options: EvalOptions, env_id: str) -> "Iterator[Scoring]":
    """Open the client of the critic, and close it at the end. Raise a UsageError if the critic is not reachable."""
    from palaestra.trainers.reward.open_judge import open_scoring
    from palaestra.trainers.reward.reward_model import ReasoningReward

    if is_game(env_id):
        raise UsageError("--critic: a game has no second attempts, which are one agent's; measure it without")
    with closing(ReasoningReward(options.critic, options.critic_model).opened()) as judge:
        judge.check()
        with closing(open_scoring(lambda episode: {}, judge)) as scorer:
            yield scorer
