"""Made-up names of the people, cities, works, organisations and events of a world of `search_qa`.

All names are drawn from a random generator that the caller passes, so the same seed gives the same names.
"""

from collections.abc import Iterator, Sequence

import numpy as np

NAMESAKE_SHARE = 0.12
"""Share of people and works that are named after another one."""
_ONSETS = ("b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "dr", "kr", "st", "tr")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "au", "ei")
_ENDINGS = ("", "", "l", "n", "r", "s", "th", "nd")
_ADJECTIVES = (
    "Amber", "Bitter", "Blue", "Broken", "Burning", "Crooked", "Distant", "Empty", "Fallen", "First", "Frozen",
    "Gilded", "Green", "Grey", "Hidden", "Hollow", "Iron", "Last", "Long", "Lost", "Narrow", "New", "Nine", "Northern",
    "Old", "Pale", "Quiet", "Red", "Second", "Seven", "Silent", "Silver", "Slow", "Small", "Southern", "Stolen",
    "Third", "Turning", "White", "Winter",
)  # fmt: skip
_NOUNS = (
    "Anchor", "Bell", "Bridge", "Candle", "Castle", "Clock", "Crown", "Door", "Falcon", "Feather", "Field", "Flame",
    "Forest", "Garden", "Gate", "Glass", "Harbour", "Harvest", "Island", "Key", "Ladder", "Lantern", "Letter", "Mirror",
    "Moon", "Mountain", "Orchard", "Painter", "Rain", "River", "Road", "Rose", "Sailor", "Shadow", "Ship", "Song",
    "Stone", "Storm", "Tower", "Wheel",
)  # fmt: skip
_SOCIETIES = ("Glass Works", "Trading Company", "Academy", "Shipyard", "Museum", "Printing House", "Bank", "Theatre")
_EVENTS = ("Fair", "Treaty", "Regatta", "Council", "Trial", "Tournament", "Strike", "Congress", "Siege", "Auction")
_ROMAN = ("I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII")


def draw_words(rng: np.random.Generator, plain: bool) -> Iterator[str]:
    """Yield different made-up words, of two open syllables in a plain world, of two or three syllables otherwise."""
    used_words = set()
    while True:
        count = 2 if plain else int(rng.integers(2, 4))
        word = ""
        for _ in range(count):
            word += _ONSETS[rng.integers(15 if plain else len(_ONSETS))]
            word += _VOWELS[rng.integers(5 if plain else len(_VOWELS))]
        word = (word if plain else word + _ENDINGS[rng.integers(len(_ENDINGS))]).capitalize()
        if word not in used_words:
            used_words.add(word)
            yield word


def draw_person_name(rng: np.random.Generator) -> str:
    """Make up the name of one person."""
    words = draw_words(rng, plain=True)
    return f"{next(words)} {next(words)}"


def draw_names(kind: str, count: int, words: Iterator[str], rng: np.random.Generator, full: bool) -> list[str]:
    """Make up `count` different names (at least 4) for entities of a kind."""
    count = max(count, 4)
    if kind in ("city", "river"):
        return _places(count, words, rng, full)
    if kind == "person":
        return _people(count, words, rng, full)
    seconds = {"work": _NOUNS, "event": _EVENTS}.get(kind, _SOCIETIES)
    firsts = [next(words) for _ in range(count)] if kind == "organisation" else list(_ADJECTIVES)
    names = _paired(firsts, seconds, count, rng)
    if kind != "work":
        return [f"the {name}" for name in names]
    names = [f"The {name}" for name in names]
    spare = int(count * NAMESAKE_SHARE)
    names[count - spare :] = [f"{name} (second version)" for name in names[:spare]]
    return names


def _people(count: int, words: Iterator[str], rng: np.random.Generator, full: bool) -> list[str]:
    """Make up names of people. In a full world, more people share a surname, and some are named after an older one."""
    names = _from_few(count, 1.5 if full else 1.1, words, rng)
    spare = int(count * NAMESAKE_SHARE) if full else 0
    names[count - spare :] = [f"{name} the Younger" for name in names[:spare]]
    return names


def _places(count: int, words: Iterator[str], rng: np.random.Generator, full: bool) -> list[str]:
    """Make up names of cities or rivers: new words, or (for small models) pairs from a small vocabulary."""
    return [next(words) for _ in range(count)] if full else _from_few(count, 1.1, words, rng)


def _from_few(count: int, spread: float, words: Iterator[str], rng: np.random.Generator) -> list[str]:
    """Make `count` names as pairs of words from a small vocabulary; a larger `spread` means more words."""
    few = max(4, int(count**0.5 * spread) + 1)
    return _paired([next(words) for _ in range(few)], [next(words) for _ in range(few)], count, rng)


def _paired(firsts: Sequence[str], seconds: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    """Make `count` different pairs of words. If there are too few pairs, a Roman number follows the repeated ones."""
    total = len(firsts) * len(seconds)
    order = rng.permutation(total).tolist()
    pairs = [f"{firsts[at % len(firsts)]} {seconds[at // len(firsts)]}" for at in order[:count]]
    return pairs + [f"{pairs[at % total]} {_ROMAN[at // total]}" for at in range(total, count)]
