"""Recorded episodes for imitation, from any agent and any environment.

Episodes that cannot be imitated are left out and counted: BROKEN ones, those that ran out of tokens, and lines that are
not episodes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from palaestra import formats
from palaestra.agents.dialect import AUTO, template_format
from palaestra.agents.tool_prompt import lacks_tools
from palaestra.episode import Ending, Episode, is_turn
from palaestra.errors import PalaestraError, UnknownId, UsageError
from palaestra.reading import RecordReader, episode_files
from palaestra.record import Record
from palaestra.registry import chosen_format, require_loaded


@dataclass(slots=True)
class Demonstrations:
    """The episodes of some files that can be imitated, and the number of those that cannot."""

    episodes: list[tuple[str, Episode]] = field(default_factory=list)
    """Episodes, each with a text that names its location."""
    dialects: list[str] = field(default_factory=list)
    """Call format of each episode."""
    environments: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    imperfect: int = 0
    """Number of episodes without full success; they are imitated too."""
    synthetic: int = 0
    """Number of episodes that were not played: calls were inserted into a written solution."""
    defects: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, Any]:
        """Return the numbers of episodes for the summary of a run."""
        return {
            "episodes": len(self.episodes),
            "environments": dict(self.environments),
            "left_out": dict(self.left_out),
            "imperfect": self.imperfect,
            "synthetic": self.synthetic,
            "no_episodes": self.defects,
        }


def demonstrations(files: Sequence[str]) -> Demonstrations:
    """Return the episodes of these files that can be imitated. Raise `UsageError` if there are none."""
    if not files:
        raise UsageError("name one or more episode files, such as palaestra collect writes: palaestra sft FILE")
    dataset = Demonstrations()
    reading = RecordReader(_chosen([Path(name) for name in files], dataset), dataset.notes.append)
    for place, record in reading:
        if reason := unfit(record.episode):
            dataset.left_out[reason] += 1
            continue
        # Drop the teacher's tokens: the student has another tokenizer.
        dataset.episodes.append((place, replace(record.episode, rows=())))
        dataset.dialects.append(_dialect(record, dataset.notes))
        dataset.environments[record.env_id] += 1
        dataset.imperfect += record.episode.parts.get("success", 0.0) < 1
        dataset.synthetic += record.synthetic
    dataset.defects = reading.defects
    if not dataset.episodes:
        reasons = [f"{count} {reason}" for reason, count in dataset.left_out.items()]
        reasons += [f"{dataset.defects} lines are no episodes"] * bool(dataset.defects)
        reasons_text = ", ".join(reasons) or "the files are empty"
        raise UsageError(f"there is no episode to imitate in {', '.join(files)}: {reasons_text}")
    return dataset


def unfit(episode: Episode) -> str:
    """Return the reason why an episode cannot be imitated, as the end of a sentence; "" if it can be."""
    turns = [message for message in episode.attempt.messages if is_turn(message)]
    if episode.reward is None:
        return "are BROKEN"
    # Its last turn was cut off. Imitation would teach the agent to stop there.
    if episode.ending is Ending.LENGTH_LIMIT:
        return "ran out of tokens"
    if not turns:
        return "have no turn of an agent"
    if any(not isinstance(message.get("content"), str) for message in turns):
        return "have a turn that is no text"
    # These turns are context and must not be trained on.
    if any(message["role"] == "assistant" for message in episode.start.prefix):
        return "begin with turns of an earlier attempt"
    return ""


def in_format(dataset: Demonstrations, format: str | None, tokenizer: Any) -> tuple[Demonstrations, str | None]:
    """Return the episodes with calls in the format that the student writes, and that format.

    If the format is not known, the episodes stay unchanged, and `format` is returned.
    """
    target = format or template_format(tokenizer)
    if target is None and lacks_tools(tokenizer):  # The system message shows one format.
        target = Counter(dataset.dialects).most_common(1)[0][0] if dataset.dialects else formats.DEFAULT
    if target is None or target == AUTO:
        if target == AUTO:
            dataset.notes.append(
                "the chat template writes calls in a format that is not known here; they stay as they are"
            )
        return _counted(dataset), format
    episodes: list[tuple[str, Episode]] = []
    changed = 0
    for (place, episode), source in zip(dataset.episodes, dataset.dialects, strict=True):
        try:
            new = _translated(episode, source, target)
        except UsageError:
            dataset.left_out[f"have a turn that {target} cannot write"] += 1
            continue
        changed += new is not episode
        episodes.append((place, new))
    if not episodes:
        raise UsageError(f"none of the episodes can be written in the call format {target}; choose another --format")
    if changed:
        dataset.notes.append(f"the calls of {changed} episodes are written anew as {target}, which the student writes")
    return _counted(replace(dataset, episodes=episodes, dialects=[target] * len(episodes))), target


def _counted(dataset: Demonstrations) -> Demonstrations:
    """Return the demonstrations with notes on the episodes that were left out."""
    notes = [f"{count} episodes {reason}; they are left out" for reason, count in dataset.left_out.items()]
    if dataset.imperfect:
        notes.append(f"{dataset.imperfect} episodes are short of full success, and are imitated too")
    if dataset.synthetic:
        notes.append(f"{dataset.synthetic} episodes are synthetic: calls were put into written solutions, and made")
    if dataset.defects:
        notes.append(f"{dataset.defects} lines are no episodes; the rest is imitated")
    return replace(dataset, notes=[*dataset.notes, *notes])


def _chosen(paths: Sequence[Path], dataset: Demonstrations) -> list[Path]:
    """Return these files and those in these folders, but no file of played episodes if the folder has its selection."""
    files = episode_files(paths)
    superseded = [
        path
        for path in files
        if path not in paths
        and path.name.endswith(".played.jsonl")
        and path.with_name(f"{path.name.removesuffix('.played.jsonl')}.jsonl") in files
    ]
    dataset.notes += [f"{path} is left out: what was chosen of it is beside it" for path in superseded]
    return [path for path in files if path not in superseded]


def _translated(episode: Episode, source: str, target: str) -> Episode:
    """Return the episode with its calls in another format; the same object if nothing changes."""
    messages = [
        {**message, "content": formats.translate(message["content"], target, episode.tools, source)}
        if message["role"] == "assistant"
        else message
        for message in episode.attempt.messages
    ]
    if tuple(messages) == episode.attempt.messages:
        return episode
    return replace(episode, attempt=replace(episode.attempt, messages=tuple(messages)))


def _dialect(record: Record, notes: list[str]) -> str:
    """Return the format of an episode's calls, from its options or its environment; the default if neither says it."""
    call_format = record.options.get("format")
    if call_format is None:
        try:
            require_loaded(record.env_id, "an episode")
            call_format = chosen_format(record.env_id, record.options)
        except PalaestraError as error:  # The environment is not available, but imitation does not need it.
            note = f"calls are read as {formats.DEFAULT}: {error}"
            if not isinstance(error, UnknownId) and note not in notes:
                notes.append(note)
    return call_format if isinstance(call_format, str) and call_format in formats.FORMATS else formats.DEFAULT
