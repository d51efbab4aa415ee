"""Count the causes of failed episodes: each as one short line, the most frequent first.

Texts that differ only in numbers, addresses and temporary paths are one cause, which is shown as its first text. Left
out: making control characters visible, which whoever prints the lines does.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from palaestra.episode import Episode

BROKEN, RAISED = "broken", "raised"
OTHERS = "other causes"
"""Text that the causes are counted under for which there is no room."""
_TITLES = {
    BROKEN: "episodes are BROKEN, and count in no figure",
    RAISED: "episodes ended because their harness raised an error",
}
_SHOWN, _MOST = 8, 1000
"""Number of causes that are reported, and of those that are told apart while they are counted."""
_READ = 4000
"""Most characters that are read of a text."""
_LONGEST, _END, _WORD = 300, 100, 40
"""Most characters of a cause, those of its beginning and its end where it is cut, and of a word in it. What varies
counts as one character, so that texts of the same cause are cut at the same words."""
_VARYING = re.compile(r"\w+://\S+|/tmp/\S+|[\w-]+(?:\.[\w-]+)*")
_VARIES = re.compile(r"[\d/]")


def one_line(text: str) -> str:
    """Return a text as one short line: the words at its beginning and at its end."""
    half = _READ // 2
    words = (text if len(text) <= _READ else f"{text[:half]} ... {text[-half:]}").split()
    words = [word if len(word) <= _WORD else f"{word[: _WORD - 3]}..." for word in words]
    sizes = [len(without_varying(word)) + 1 for word in words]
    if sum(sizes) <= _LONGEST:
        return " ".join(words)
    return " ".join([*words[: _words_in(sizes)], "...", *words[-_words_in(sizes[::-1]) :]])


def _words_in(sizes: Sequence[int]) -> int:
    """Return how many of the first words an end of a cause has."""
    return next(count for count, size in enumerate(accumulate(sizes), start=1) if size >= _END)


def without_varying(text: str) -> str:
    """Return a text without what differs between two reports of the same cause: numbers, words that hold a digit,
    addresses and temporary paths.
    """
    return _VARYING.sub(lambda word: "#" if _VARIES.search(word[0]) else word[0], text)


class Causes:
    """How often each cause has occurred, by kind: BROKEN for episodes without a reward, RAISED for those whose harness
    raised an error."""

    def __init__(self, counted: Iterable[Any] = ()) -> None:
        """Sum up what `as_dict` of other objects returned. Values of another type are ignored: a file may have been
        edited.
        """
        self._counts: dict[str, dict[str, int]] = {}
        self._texts: dict[str, str] = {OTHERS: OTHERS}
        """First text of each cause, by its key."""
        for kinds in counted:
            for kind in _TITLES:
                causes = kinds.get(kind) if isinstance(kinds, Mapping) else None
                for text, count in causes.items() if isinstance(causes, Mapping) else ():
                    if isinstance(text, str) and isinstance(count, int):
                        self.add(kind, text, count)

    @classmethod
    def of(cls, episodes: Iterable[Episode]) -> "Causes":
        """Return the causes of these episodes."""
        causes = cls()
        for episode in episodes:
            causes.add_episode(episode)
        return causes

    def add_episode(self, episode: Episode) -> None:
        """Count the cause of an episode, if it has one."""
        if episode.reward is None:
            self.add(BROKEN, episode.fault)
        elif episode.attempt.raised:
            self.add(RAISED, episode.attempt.raised)

    def add(self, kind: str, text: str, count: int = 1) -> None:
        """Count a cause that occurred `count` times."""
        line = one_line(text) or "no cause was recorded"
        key = without_varying(line)
        if key not in self._texts and len(self._texts) > _MOST:
            key = OTHERS
        self._texts.setdefault(key, line)
        counts = self._counts.setdefault(kind, {})
        counts[key] = counts.get(key, 0) + count

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Return the count of each cause by kind, the most frequent first. Beyond eight they are counted together."""
        return {kind: self._most_frequent(counts) for kind, counts in sorted(self._counts.items())}

    def lines(self) -> list[str]:
        """Return the causes for people: a line for each kind, and below it one for each cause."""
        result = []
        for kind, causes in self.as_dict().items():
            result.append(f"{sum(causes.values()):,} {_TITLES[kind]}:")
            result += [f"{count:>7,}  {text}" for text, count in causes.items()]
        return result

    def of_kind(self, kind: str) -> str:
        """Return the causes of a kind as the part of a sentence."""
        return "; ".join(f"{count:,} x {text}" for text, count in self.as_dict().get(kind, {}).items())

    def _most_frequent(self, counts: Mapping[str, int]) -> dict[str, int]:
        ordered = sorted(counts, key=lambda key: (key == OTHERS, -counts[key]))
        reported = ordered if len(ordered) <= _SHOWN else [key for key in ordered[: _SHOWN - 1] if key != OTHERS]
        other_count = sum(counts.values()) - sum(counts[key] for key in reported)
        return {self._texts[key]: counts[key] for key in reported} | ({OTHERS: other_count} if other_count else {})
