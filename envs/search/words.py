"""The words of a query that matter, and the part of a document that is shown for them.

Only English stop words are known. Left out: stemming (the engine does it). In languages without blanks between words,
each letter counts as a word.
"""

import re

MAX_WORDS = 64
"""Maximum number of different words of a query that are searched for."""
_STOP_WORDS = (
    "a about above after again all also am an and any are as at be because been before being below between "
    "both but by can could did do does doing don down during each either else ever few for from further had "
    "has have having he her here hers him his how however i if in into is it its itself just let may me might "
    "more most must my neither no nor not now of off on once only or other our ours out over own please s same "
    "shall she should since so some such t than that the their theirs them then there these they this those "
    "through to too under until up upon us very was we were what when where whether which while who whom whose "
    "why will with within without would you your yours tell "
)
_STOPS = frozenset(_STOP_WORDS.split())
_WORD = re.compile(r"[^\W_]+")
_IDEOGRAPH = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\U00020000-\U0003ffff]")
_SCANNED = 200_000
"""Maximum characters of a text that are searched for the best part."""
_PLACES = 64
"""Maximum number of positions of one word that are compared."""


def spaced(text: str) -> str:
    """Return valid Unicode text in which each Chinese, Japanese or Korean letter is a word."""
    if text.isascii():
        return text
    return _IDEOGRAPH.sub(r" \g<0> ", text.encode("utf-8", "replace").decode())


def content_words(query: str) -> list[str]:
    """Return the different words of a query in lower case, without stop words, unless it has only stop words."""
    words = list(dict.fromkeys(_WORD.findall(spaced(query).lower())))
    return ([word for word in words if word not in _STOPS] or words)[:MAX_WORDS]


def passage(text: str, words: list[str], chars: int) -> str:
    """Return the part of a text, at most `chars` long, that contains most of the words, or its beginning."""
    if len(text) <= chars:
        return text
    if len(text) <= 2 * chars:  # Most passages of a corpus: its beginning or its end, which takes a third of the time.
        lowered, stems = text.lower(), [_stem(word) for word in words]
        head, tail = lowered[:chars], lowered[-chars:]
        better = sum([stem in tail for stem in stems]) > sum([stem in head for stem in stems])
        return _cut(text, len(text) - chars if better else 0, chars)
    places = _places(text[:_SCANNED].lower(), words)
    best, begin, first = 0, 0, 0
    inside: dict[str, int] = {}
    for place, word in places:
        inside[word] = inside.get(word, 0) + 1
        while place + len(word) - places[first][0] > chars * 3 // 4:
            gone = places[first][1]
            inside[gone] -= 1
            if not inside[gone]:
                del inside[gone]
            first += 1
        if len(inside) > best:
            best, begin = len(inside), places[first][0]
    return _cut(text, min(_sentence(text, begin, chars // 4), len(text) - chars), chars)


def _sentence(text: str, place: int, before: int) -> int:
    """Return the position, at most `before` characters before `place`, where its sentence or line begins."""
    first = max(0, place - before)
    begin = max(text.rfind("\n", first, place), text.rfind(". ", first, place) + 1)
    return begin if begin > 0 else first


def _stem(word: str) -> str:
    """Return the beginning of a word, which its other forms mostly share."""
    return word if len(word) < 6 else word[:-2]


def _places(lowered: str, words: list[str]) -> list[tuple[int, str]]:
    """Return the positions, sorted, of words that begin like one of `words`, each with that word."""
    positions = []
    for word in words:
        stem = _stem(word)
        position, count = lowered.find(stem), 0
        while position >= 0 and count < _PLACES:
            if not position or not lowered[position - 1].isalnum() or not stem.isascii():
                positions.append((position, word))
                count += 1
            position = lowered.find(stem, position + len(stem))
    positions.sort()
    return positions


def _cut(text: str, begin: int, chars: int) -> str:
    """Return about `chars` characters from `begin`, cut at blanks if possible, with dots where text is left out."""
    end = min(begin + chars, len(text))
    if begin and (blank := text.find(" ", begin, begin + 40)) >= 0:
        begin = blank + 1
    if end < len(text) and (blank := text.rfind(" ", end - 40, end)) > begin:
        end = blank
    return f"{'... ' * (begin > 0)}{text[begin:end].strip()}{' ...' * (end < len(text))}"
