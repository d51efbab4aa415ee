"""Items of reasoning-gym's generators, of those whose verifiers can be trusted with a reward.

Some verifiers pay for nonsense, some hand what the agent wrote to `eval`. So a generator is looked at before it is used
(the same number must give the same item, its own answer must be right, nonsense and the answers of other items must
not), a few are refused with a reason, and where a verifier evaluates text it is shown only what cannot run: a literal,
plain arithmetic, or bare words. Left out: the episode (`reasoning`), and a time limit for a verifier.
"""

import ast
import inspect
import json
import math
import re
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property, lru_cache
from typing import Any

from palaestra.errors import MissingExtra, UsageError

_NO_ANSWER = "its items have no reference answer"
_CREDIT = "its verifier gives credit to nonsense"
_SYMBOLS = "its verifier hands the agent's text to sympy, which runs Python code and may take for ever"
DENIED = {
    "acre": "the same seed gives different items, and nonsense earns credit",
    "boxnet": _NO_ANSWER,
    "codeio": "making an item runs programs that a language model wrote, in this process",
    "composite": "it is made of other generators; name one of them",
    "game_of_life_halting": _CREDIT,
    "graph_color": _NO_ANSWER,
    "intermediate_integration": _SYMBOLS,
    "polynomial_multiplication": _SYMBOLS,
    "propositional_logic": _NO_ANSWER,
    "puzzle24": "any four numbers that make 24 are right, whatever the question",
    "rubiks_cube": _NO_ANSWER,
    "rush_hour": _NO_ANSWER,
    "simple_integration": _SYMBOLS,
    "spell_backward": _CREDIT,
}
"""Generators that are refused, and why."""
ITEMS = 1_000_000
FEWER = {"word_ladder": 20_000}
"""What a generator allows where that is less."""
SEED = 0
SAMPLE = 6
"""Items that are looked at before a generator is used."""
MOST_FOR_NONSENSE = 0.05
MOST_FOR_OTHERS = 0.2
"""Share of other items' answers that may be right; some boards share a solution."""
NONSENSE = ("zzz wrong", "", "0", "yes and no")
MAX_CHARS = 20_000
"""Longest answer that is judged; a longer one is wrong."""
_EVALUATES = re.compile(r"\b(eval|exec|parse_expr|sympify)\(")
_ARITHMETIC = re.compile(r"(?!.*\*\s*\*)[0-9+\-*/(). ]{1,300}")
_WORDS = re.compile(r"[A-Za-z0-9_, \n-]*")


class Items:
    """The items of one generator, by number, and their verifier."""

    def __init__(self, generator: str, config: Mapping[str, Any]) -> None:
        self.generator = generator
        self._config = dict(config)
        self._dataset = _made(generator, self._config)
        self._last: tuple[int, Mapping[str, Any]] = (-1, {})
        self._check()

    def item(self, number: int) -> Mapping[str, Any]:
        """The item of a number."""
        number %= len(self._dataset)
        kept = self._last  # Another thread may replace it meanwhile.
        if number != kept[0]:
            kept = self._last = number, self._dataset[number]
        return kept[1]

    def score(self, answer: str | None, item: Mapping[str, Any]) -> float:
        """What the verifier says of an answer, from 0 to 1; 0 where it raises."""
        if answer is None or len(answer) > MAX_CHARS or (self._evaluates and not harmless(answer)):
            return 0.0
        try:
            found = float(self._dataset.score_answer(answer, item))
        except Exception:  # Verifiers raise anything at an answer of another form, and such an answer is wrong.
            return 0.0
        return min(max(found, 0.0), 1.0) if math.isfinite(found) else 0.0

    @cached_property
    def _evaluates(self) -> bool:
        """Whether a module of the generator's evaluates text."""
        for base in type(self._dataset).__mro__[:-1]:
            if base.__module__.partition(".")[0] == "reasoning_gym":
                try:
                    source = inspect.getsource(sys.modules[base.__module__])
                except OSError:  # Nothing to look at: then it may.
                    return True
                if _EVALUATES.search(source):
                    return True
        return False

    def _check(self) -> None:
        """Refuse a generator that a reward cannot stand on."""
        numbers = [at * (len(self._dataset) // SAMPLE) for at in range(SAMPLE)]
        items = [self._dataset[number] for number in numbers]
        again = _made(self.generator, self._config)
        for number, item in zip(numbers, items, strict=True):
            answer = item["answer"]
            if again[number] != item:
                self._refuse("the same number gives different items")
            if not isinstance(answer, str):
                self._refuse(_NO_ANSWER)
            if self.score(answer, item) < 1:
                self._refuse(f"its verifier does not accept its own answer {answer[:60]!r}")
            if max(self.score(nonsense, item) for nonsense in NONSENSE if nonsense != answer) > MOST_FOR_NONSENSE:
                self._refuse(_CREDIT)
        others = [self.score(other["answer"], item) >= 1 for item in items for other in items if _differ(other, item)]
        if sum(others) > MOST_FOR_OTHERS * len(others):
            self._refuse("its verifier accepts the answers of other items")

    def _refuse(self, reason: str) -> None:
        raise UsageError(f"generator {self.generator!r} with {self._config} is not used: {reason}; choose another one")


@lru_cache(maxsize=16)
def _opened(generator: str, config: str) -> Items:
    return Items(generator, json.loads(config))


def open_items(generator: str, config: Mapping[str, Any]) -> Items:
    """The items of a generator; opened and looked at once in this process."""
    return _opened(generator, json.dumps(config, sort_keys=True))


def harmless(answer: str) -> bool:
    """Whether evaluating this text could do nothing: a literal, arithmetic without powers, or words and numbers."""
    if _WORDS.fullmatch(answer) or _ARITHMETIC.fullmatch(answer):
        return True
    try:
        ast.literal_eval(answer.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return False
    return True


def require_known(generator: str, config: Mapping[str, Any]) -> None:
    """Refuse, cheaply, what can be refused before reasoning-gym is loaded."""
    if generator in DENIED:
        raise UsageError(f"generator {generator!r} is not used: {DENIED[generator]}; choose another one")
    if not isinstance(config, Mapping):
        raise UsageError(f"config is {config!r}; expected a mapping of the generator's settings, as {{'max_value': 9}}")
    for name in ("seed", "size"):
        if name in config:
            raise UsageError(f"config has {name!r}; an item is chosen by the task's number, so leave it out")


def _made(generator: str, config: Mapping[str, Any]) -> Any:
    try:
        import reasoning_gym  # type: ignore[import-untyped]
        from reasoning_gym.factory import DATASETS  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra("reasoning-gym", "code", "palaestra/Reasoning-v0") from None
    if generator not in DATASETS:
        close = get_close_matches(generator, set(DATASETS) - set(DENIED), n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else "its README lists them"
        raise UsageError(f"reasoning-gym has no generator {generator!r} among its {len(DATASETS)}; {hint}")
    try:
        return reasoning_gym.create_dataset(generator, seed=SEED, size=FEWER.get(generator, ITEMS), **config)
    except (TypeError, AssertionError, ValueError) as error:
        known = [name for name in DATASETS[generator][1].__dataclass_fields__ if name not in ("seed", "size")]
        raise UsageError(
            f"generator {generator!r} with {dict(config)}: {error}; it takes {', '.join(known)}"
        ) from error


def _differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(one["answer"] != other["answer"] and one["question"] != other["question"])
