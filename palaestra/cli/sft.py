"""`palaestra sft FILE... --model NAME`: a student imitates recorded episodes, those of `palaestra collect` for one.

Left out: choosing episodes. Whatever the files hold is imitated, whoever played it and in whatever environments, but
for what cannot be: BROKEN ones, those that ran out of tokens, and lines that are no episodes. All are counted.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from palaestra import formats
from palaestra.cli.display import show_line, watch
from palaestra.cli.episodes import Reading, episode_files
from palaestra.cli.train import option_value
from palaestra.episode import Episode
from palaestra.errors import PalaestraError, UsageError
from palaestra.record import Record
from palaestra.registry import chosen_format
from palaestra.trainers.interrupts import Interrupted, Interrupts
from palaestra.trainers.sft_config import SFTConfig, tiny_sft_config

if TYPE_CHECKING:
    from palaestra.agents.local_model import LocalModel
    from palaestra.trainers.sft import SFTRows

_HELD_BACK = "\na model is being written; then this ends. Ctrl-C again ends at once, without it\n"


@dataclass(frozen=True)
class Options:
    """Imitate recorded episodes: what the agent said in them, given what it had read.

    The defaults shown are the tiny agent's; with --model they are those of GRPO-TCR's authors.
    """

    files: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Episode files, or folders of them (a run's folder too)."""
    config: Annotated[SFTConfig, tyro.conf.arg(name="")]
    run: Path | None = None
    """Folder for the results; runs/sft-NAME by default."""


@dataclass(slots=True)
class Found:
    """The episodes of some files that can be imitated, and how many cannot."""

    episodes: list[tuple[str, Episode]]
    """Each with the words for its place."""
    dialects: list[str]
    """The call format of each."""
    environments: Counter[str]
    left_out: Counter[str]
    imperfect: int
    """Episodes without full success; they are imitated too."""
    defects: int


def parse(arguments: Sequence[str]) -> Options:
    """Options whose defaults fit the model that is asked for."""
    prog = "palaestra sft"
    model = option_value(arguments, "--model", "-m") or "tiny"
    config = tiny_sft_config() if model == "tiny" else SFTConfig(model)
    return tyro.cli(Options, args=list(arguments), prog=prog, default=Options(tyro.MISSING, config))


def run(arguments: Sequence[str]) -> int:
    """Imitate, and keep the model."""
    options, console = parse(arguments), Console()
    if not options.files:
        raise UsageError("name one or more episode files, such as palaestra collect writes: palaestra sft FILE")
    folder: Path | None = None
    with Interrupts(_HELD_BACK) as interrupts:
        try:
            found = read(options.files, console)
            local = open_student(options.config, found)
            config = spoken(options.config, found, local, console)
            lesson = written(config, found, local, console)
            from palaestra.trainers.run import fresh_folder
            from palaestra.trainers.sft import open_folder

            folder = options.run or fresh_folder(f"sft-{Path(options.config.model).name}")
            files = [str(path) for path in options.files]
            open_folder(folder, {**config.as_dict(), "files": files})
            _imitate(config, found, local, lesson, folder, interrupts, console)
        except Interrupted as stop:
            print(f"\ninterrupted; {_left(folder)}", file=sys.stderr)
            return 128 + stop.number
        except PalaestraError as error:
            if folder is None:
                raise
            print(f"palaestra sft: {error}\n{_left(folder)}", file=sys.stderr)
            return 2
    return 0


def read(files: Sequence[Path], console: Console) -> Found:
    """The episodes of these files that can be imitated; there must be one."""
    from palaestra.trainers.sft import unfit

    reading, found = Reading(_chosen(files, console), console), Found([], [], Counter(), Counter(), 0, 0)
    for place, record in reading:
        if reason := unfit(record.episode):
            found.left_out[reason] += 1
            continue
        # The student has tokens of its own; the teacher's may be many.
        found.episodes.append((place, replace(record.episode, rows=())))
        found.dialects.append(_dialect(record))
        found.environments[record.env_id] += 1
        found.imperfect += record.episode.parts.get("success", 0.0) < 1
    found.defects = reading.defects
    if not found.episodes:
        reasons = [f"{count} {reason}" for reason, count in found.left_out.items()]
        reasons += [f"{found.defects} lines are no episodes"] * bool(found.defects)
        listed = ", ".join(reasons) or "the files are empty"
        raise UsageError(f"there is no episode to imitate in {', '.join(map(str, files))}: {listed}")
    return found


def _chosen(paths: Sequence[Path], console: Console) -> list[Path]:
    """These files and those in these folders, but not all that was played where what was chosen of it is there."""
    files = episode_files(paths)
    played = [
        path
        for path in files
        if path not in paths
        and path.name.endswith(".played.jsonl")
        and path.with_name(f"{path.name.removesuffix('.played.jsonl')}.jsonl") in files
    ]
    for path in played:
        show_line(console, f"{path} is left out: what was chosen of it is beside it")
    return [path for path in files if path not in played]


def open_student(config: SFTConfig, found: Found) -> "LocalModel":
    """The model that learns: from disk or hub, or the tiny one with a tokenizer made of these very episodes."""
    from palaestra.agents.local_model import find_device, load, serve

    if config.model != "tiny":
        return load(config.model, slots=1, seed=config.seed, device=config.device)
    from palaestra.agents.policies.tiny import tiny_model, tiny_tokenizer

    device = find_device(config.device)
    texts = (message["content"] for _, episode in found.episodes for message in episode.attempt.messages)
    tokenizer = tiny_tokenizer(text for text in texts if isinstance(text, str))
    return serve(tiny_model(len(tokenizer), seed=config.seed).to(device), tokenizer, slots=1, seed=config.seed)


def spoken(config: SFTConfig, found: Found, local: "LocalModel", console: Console) -> SFTConfig:
    """Write the calls of the episodes as the student writes them; the config that says how."""
    from palaestra.agents.dialect import AUTO, template_format

    target = config.format or template_format(local.tokenizer)
    if target is None or target == AUTO:
        if target == AUTO:
            show_line(
                console, "the chat template writes calls in a format that is not known here; they stay as they are"
            )
        return config
    episodes: list[tuple[str, Episode]] = []
    changed = 0
    for (place, episode), source in zip(found.episodes, found.dialects, strict=True):
        try:
            new = _translated(episode, source, target)
        except UsageError:
            found.left_out[f"have a turn that {target} cannot write"] += 1
            continue
        changed += new is not episode
        episodes.append((place, new))
    if not episodes:
        raise UsageError(f"none of the episodes can be written in the call format {target}; choose another --format")
    if changed:
        show_line(console, f"the calls of {changed} episodes are written anew as {target}, which the student writes")
    found.episodes, found.dialects = episodes, [target] * len(episodes)
    return replace(config, format=target)


def _translated(episode: Episode, source: str, target: str) -> Episode:
    """The episode with its calls in another format; itself where that changes nothing."""
    messages = [
        {**message, "content": formats.translate(message["content"], target, episode.tools, source)}
        if message["role"] == "assistant"
        else message
        for message in episode.attempt.messages
    ]
    if tuple(messages) == episode.attempt.messages:
        return episode
    return replace(episode, attempt=replace(episode.attempt, messages=tuple(messages)))


def _dialect(record: Record) -> str:
    """The format in which an episode's calls were read."""
    named = record.options.get("format")
    if named is None:
        try:
            named = chosen_format(record.env_id, record.options)
        except PalaestraError:  # Its environment is not here, which imitation does not need.
            named = None
    return named if named in formats.FORMATS else formats.DEFAULT


def written(config: SFTConfig, found: Found, local: "LocalModel", console: Console) -> "SFTRows":
    """The episodes as the student reads them, and a few lines about them."""
    from palaestra.trainers.sft import longest_row, sft_rows

    assert local.agent.chat is not None, "a model has a chat"
    most = longest_row(local.model, config)
    made = sft_rows(local.agent.chat, found.episodes, most)
    tokens, said = sum(map(len, made.rows)), sum(int(row.sampled.sum()) for row in made.rows)
    known = ", ".join(f"{count} of {env_id}" for env_id, count in found.environments.items())
    show_line(console, f"{known}: {len(made.rows)} rows, {tokens:,} tokens, {said:,} of them the agent's")
    warnings = [f"{count} episodes {reason}; they are left out" for reason, count in found.left_out.items()]
    if found.imperfect:
        warnings.append(f"{found.imperfect} episodes are short of full success, and are imitated too")
    if made.truncated:
        gone = f", and {made.emptied} of them left out, for nothing that the agent said was left" * bool(made.emptied)
        warnings.append(f"{made.truncated} rows are longer than {most} tokens; they were cut off{gone}")
    if found.defects:
        warnings.append(f"{found.defects} lines are no episodes; the rest is imitated")
    for warning in warnings:
        show_line(console, warning, "yellow")
    if not made.rows:
        raise UsageError(f"no row has a token of the agent among its first {most}; a larger max_row_tokens may help")
    return made


def _imitate(
    config: SFTConfig,
    found: Found,
    local: "LocalModel",
    made: "SFTRows",
    folder: Path,
    interrupts: Interrupts,
    console: Console,
) -> None:
    from palaestra.trainers.durable import write_text
    from palaestra.trainers.run import cpu_seconds, versions
    from palaestra.trainers.sft import Imitation, study

    began = time.perf_counter()
    imitation = Imitation(local.model, made.rows, config)
    losses = watch(study(imitation, local, folder, interrupts), console)
    summary: dict[str, Any] = {
        "model": config.model,
        "seed": config.seed,
        "epochs": config.epochs,
        "steps": imitation.steps,
        "episodes": len(found.episodes),
        "environments": dict(found.environments),
        "left_out": dict(found.left_out),
        "imperfect": found.imperfect,
        "no_episodes": found.defects,
        "rows": len(made.rows),
        "rows_truncated": made.truncated,
        "rows_emptied": made.emptied,
        "tokens": sum(map(len, made.rows)),
        "sampled_tokens": sum(int(row.sampled.sum()) for row in made.rows),
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "wall_seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(cpu_seconds(), 1),
        "versions": versions(),
    }
    write_text(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    show_line(console, f"loss a token: {losses[0]:.3f} at first, {losses[-1]:.3f} at last")
    show_line(console, f"model and figures: {folder}")


def _left(folder: Path | None) -> str:
    """What is there to use of a run that did not end."""
    from palaestra.trainers.sft import last_epoch

    kept = last_epoch(folder) if folder is not None else None
    if kept is None:
        return "no epoch was finished"
    return f"the model of the last whole epoch is {kept}; --model {kept} begins another run with it"
