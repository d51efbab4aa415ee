"""Recorded episodes that a student can imitate: what the files hold, whoever played it and in whatever environments.

Left out are those that cannot be imitated: BROKEN ones, those that ran out of tokens, and lines that are no episodes.
All are counted.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from palaestra import formats
from palaestra.agents.dialect import AUTO, template_format
from palaestra.episode import Ending, Episode
from palaestra.errors import PalaestraError, UsageError
from palaestra.reading import Reading, episode_files
from palaestra.record import Record
from palaestra.registry import chosen_format


@dataclass(slots=True)
class Demonstrations:
    """The episodes of some files that can be imitated, and how many cannot."""

    episodes: list[tuple[str, Episode]] = field(default_factory=list)
    """Each with the words for its place."""
    dialects: list[str] = field(default_factory=list)
    """The call format of each."""
    environments: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    imperfect: int = 0
    """Episodes without full success; they are imitated too."""
    synthetic: int = 0
    """Episodes that nobody has played: calls were put into a written solution."""
    defects: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, Any]:
        """For a summary."""
        return {
            "episodes": len(self.episodes),
            "environments": dict(self.environments),
            "left_out": dict(self.left_out),
            "imperfect": self.imperfect,
            "synthetic": self.synthetic,
            "no_episodes": self.defects,
        }


def demonstrations(files: Sequence[str]) -> Demonstrations:
    """The episodes of these files that can be imitated; there must be one."""
    if not files:
        raise UsageError("name one or more episode files, such as palaestra collect writes: palaestra sft FILE")
    found = Demonstrations()
    reading = Reading(_chosen([Path(name) for name in files], found), found.notes.append)
    for place, record in reading:
        if reason := unfit(record.episode):
            found.left_out[reason] += 1
            continue
        # The student has tokens of its own; the teacher's may be many.
        found.episodes.append((place, replace(record.episode, rows=())))
        found.dialects.append(_dialect(record))
        found.environments[record.env_id] += 1
        found.imperfect += record.episode.parts.get("success", 0.0) < 1
        found.synthetic += record.synthetic
    found.defects = reading.defects
    if not found.episodes:
        reasons = [f"{count} {reason}" for reason, count in found.left_out.items()]
        reasons += [f"{found.defects} lines are no episodes"] * bool(found.defects)
        listed = ", ".join(reasons) or "the files are empty"
        raise UsageError(f"there is no episode to imitate in {', '.join(files)}: {listed}")
    return found


def unfit(episode: Episode) -> str:
    """Why an episode cannot be imitated, in words that end a sentence; empty if it can."""
    turns = [message for message in episode.attempt.messages if message["role"] == "assistant"]
    if episode.reward is None:
        return "are BROKEN"
    if episode.ending is Ending.LENGTH_LIMIT:  # Its last turn was cut, and imitating it would teach to stop there.
        return "ran out of tokens"
    if not turns:
        return "have no turn of an agent"
    if any(not isinstance(message.get("content"), str) for message in turns):
        return "have a turn that is no text"
    if any(message["role"] == "assistant" for message in episode.start.prefix):  # Context, never trained on.
        return "begin with turns of an earlier attempt"
    return ""


def in_format(found: Demonstrations, format: str | None, tokenizer: Any) -> tuple[Demonstrations, str | None]:
    """The calls of the episodes as the student writes them, and in which format that is; None where they stay."""
    target = format or template_format(tokenizer)
    if target is None or target == AUTO:
        if target == AUTO:
            found.notes.append(
                "the chat template writes calls in a format that is not known here; they stay as they are"
            )
        return _counted(found), format
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
        found.notes.append(f"the calls of {changed} episodes are written anew as {target}, which the student writes")
    return _counted(replace(found, episodes=episodes, dialects=[target] * len(episodes))), target


def _counted(found: Demonstrations) -> Demonstrations:
    """The same, with words for what was left out."""
    notes = [f"{count} episodes {reason}; they are left out" for reason, count in found.left_out.items()]
    if found.imperfect:
        notes.append(f"{found.imperfect} episodes are short of full success, and are imitated too")
    if found.synthetic:
        notes.append(f"{found.synthetic} episodes are synthetic: calls were put into written solutions, and made")
    if found.defects:
        notes.append(f"{found.defects} lines are no episodes; the rest is imitated")
    return replace(found, notes=[*found.notes, *notes])


def _chosen(paths: Sequence[Path], found: Demonstrations) -> list[Path]:
    """These files and those in these folders, but not all that was played where what was chosen of it is there."""
    files = episode_files(paths)
    played = [
        path
        for path in files
        if path not in paths
        and path.name.endswith(".played.jsonl")
        and path.with_name(f"{path.name.removesuffix('.played.jsonl')}.jsonl") in files
    ]
    found.notes += [f"{path} is left out: what was chosen of it is beside it" for path in played]
    return [path for path in files if path not in played]


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
