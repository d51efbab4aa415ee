"""Items of reasoning-gym's generators, only of those whose verifiers are reliable enough for a reward.

Some verifiers accept nonsense, and some pass the agent's text to `eval`. So a few generators are refused with a reason,
and each other one is checked before its first use: the same number must give the same item, and its own answer must be
right, but nonsense, answers of other items and several answers at once must be wrong. If a verifier evaluates text, it
gets only text that is safe: a literal, plain arithmetic, or words that are not an expression. Answers of agents are
verified in a process that is killed when it takes too long (`limited_processes`). Left out: the episode (`reasoning`).
"""

import ast
import base64
import inspect
import json
import pickle
import re
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property, lru_cache
from typing import Any

from palaestra.envs.rewards.limited_processes import LimitedProcesses
from palaestra.envs.rewards.structure import as_float
from palaestra.errors import MissingExtra, UsageError

_NO_ANSWER = "its items have no reference answer"
_CREDIT = "its verifier gives credit to nonsense"
_UNSTEADY = "the same number gives different items"
_SYMBOLS = "its verifier hands the agent's text to sympy, which runs Python code and may take for ever"
DENIED = {
    "acre": "the same seed gives different items, and nonsense earns credit",
    "boxnet": _NO_ANSWER,
    "codeio": "making an item runs programs that a language model wrote, in this process",
    "coin_flip": _CREDIT,
    "composite": "it is made of other generators; name one of them",
    "figlet_font": _CREDIT,
    "game_of_life_halting": _CREDIT,
    "graph_color": _NO_ANSWER,
    "intermediate_integration": _SYMBOLS,
    "list_functions": _UNSTEADY,
    "polynomial_equations": _CREDIT,
    "polynomial_multiplication": _SYMBOLS,
    "propositional_logic": _NO_ANSWER,
    "puzzle24": "any four numbers that make 24 are right, whatever the question",
    "rectangle_count": _CREDIT,
    "rubiks_cube": _NO_ANSWER,
    "rush_hour": _NO_ANSWER,
    "simple_integration": _SYMBOLS,
    "spell_backward": _CREDIT,
    "string_manipulation": "its verifier does not accept its own answers",
    "time_intervals": _CREDIT,
}
"""Generators that are refused, and why."""
ITEMS = 1_000_000
FEWER = {"word_ladder": 20_000}
"""Number of items of generators that have fewer than ITEMS."""
SEED = 0
SAMPLE = 6
"""Number of items that are checked before a generator is used."""
GUESSED = 50
"""Number of items in which the commonest answer is counted."""
MOST_FOR_NONSENSE = 0.05
MOST_FOR_OTHERS = 0.2
"""Share of other items' answers that may be right; some boards share a solution."""
NONSENSE = (
    *("zzz wrong", "", "0", "yes and no"),
    *("nan", "-NaN", "nan+nani", "inf", "-Infinity", "inf-infi", "1e999", "9" * 400),
)
HEDGES = ("{} or {}", "{}, {}", "{}\n{}")
"""Formats of two answers at once, to hide the right one among others."""
MAX_CHARS = 20_000
"""Longest answer that is judged; a longer one is wrong."""
SECONDS = 2.0
"""Timeout of a verifier in seconds; a normal one takes less than a millisecond."""
MEGABYTES = 2048
"""Address space of a verifier's process; reasoning-gym and its imports need a few hundred megabytes."""
_EVALUATES = re.compile(r"\b(eval|exec|parse_expr|sympify)\(")
_ARITHMETIC = re.compile(r"(?!.*\*\s*\*)[0-9+\-*/(). ]{1,300}")
_WORDS = re.compile(r"[A-Za-z0-9_, \n-]*")
_NO_NUMBER = r"s?nan|inf(?:inity)?"
_NOT_FINITE = re.compile(rf"(?=.*(?:{_NO_NUMBER}))(?:{_NO_NUMBER}|[ije]|[\W\d_])*", re.IGNORECASE | re.DOTALL)
_LONG_EXPONENT = re.compile(r"(?<![\w.])[\d_.]+[eE][+-]?[\d_]{4,}")
_POWER_OF_TEN = re.compile(r"(?<![\w.])[\d_.]+[eE]\+?[\d_]+(?!\w)")


class Items:
    """The items of one generator, by number, and the verifier of answers."""

    def __init__(self, generator: str, config: Mapping[str, Any]) -> None:
        self.generator = generator
        self._config = dict(config)
        self._dataset = _made(generator, self._config)
        self._last: tuple[int, Mapping[str, Any]] = (-1, {})

    def item(self, number: int) -> Mapping[str, Any]:
        number %= len(self._dataset)
        last = self._last  # Another thread may replace it meanwhile.
        if number != last[0]:
            last = self._last = number, self._dataset[number]
        return last[1]

    async def judge(self, answer: str | None, item: Mapping[str, Any]) -> float:
        """Return the verifier's score of an agent's answer, from 0 to 1; 0 if it takes too long."""
        if answer is None or len(answer) > MAX_CHARS:
            return 0.0
        if answer == item["answer"]:
            return 1.0
        sent = json.dumps([answer, base64.b64encode(pickle.dumps(item)).decode()])
        score = await _verifiers.ask(_key(self.generator, self._config), sent)
        return 0.0 if score is None else _bounded(float(score))

    def score(self, answer: str, item: Mapping[str, Any]) -> float:
        """Score an answer in this process without a timeout: for trusted answers, or inside the limited process."""
        if answer != item["answer"] and (not_finite(answer) or (self._evaluates and not harmless(answer))):
            return 0.0
        try:
            return _bounded(float(self._dataset.score_answer(answer, item)))
        except MemoryError:  # The process is replaced.
            raise
        except Exception:  # Verifiers raise anything at an answer of another form, and such an answer is wrong.
            return 0.0

    @cached_property
    def _evaluates(self) -> bool:
        """True if a module of the generator evaluates text as code or as an expression."""
        for base in type(self._dataset).__mro__[:-1]:
            if base.__module__.partition(".")[0] == "reasoning_gym":
                try:
                    source = inspect.getsource(sys.modules[base.__module__])
                except OSError:  # There is no source, so assume that it evaluates.
                    return True
                if _EVALUATES.search(source):
                    return True
        return False

    @cached_property
    def commonest(self) -> float:
        """Share of items with the commonest answer, counted in a sample, because making an item can take a second."""
        step = max(len(self._dataset) // GUESSED, 1)
        return max(Counter(self._dataset[at * step]["answer"] for at in range(GUESSED)).values()) / GUESSED

    def check(self) -> None:
        """Raise `UsageError` for a generator whose items or verifier are not reliable."""
        numbers = [at * (len(self._dataset) // SAMPLE) for at in range(SAMPLE)]
        items = [self._dataset[number] for number in numbers]
        again = _made(self.generator, self._config)
        for number, item in zip(numbers, items, strict=True):
            answer = item["answer"]
            if again[number] != item:
                self._refuse(_UNSTEADY)
            if not isinstance(answer, str):
                self._refuse(_NO_ANSWER)
            if self.score(answer, item) < 1:
                self._refuse(f"its verifier does not accept its own answer {answer[:60]!r}")
            if max(self.score(nonsense, item) for nonsense in NONSENSE if nonsense != answer) > MOST_FOR_NONSENSE:
                self._refuse(_CREDIT)
        others = [self.score(other["answer"], item) >= 1 for item in items for other in items if _differ(other, item)]
        if sum(others) > MOST_FOR_OTHERS * len(others):
            self._refuse("its verifier accepts the answers of other items")
        if sum(map(self._hedged, items, [*items[1:], items[0]])) > MOST_FOR_OTHERS * SAMPLE:
            self._refuse("its verifier accepts an answer among others")

    def _hedged(self, item: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Return whether the verifier accepts the right answer together with a wrong one, in both orders.

        Then a list of all answers would succeed. A verifier that reads only the first or the last answer is not at
        fault.
        """
        right, wrong = item["answer"], other["answer"]
        if not _differ(item, other) or self.score(wrong, item) >= 1:
            return False
        orders = ((right, wrong), (wrong, right))
        return any(all(self.score(form.format(*order), item) >= 1 for order in orders) for form in HEDGES)

    def _refuse(self, reason: str) -> None:
        raise UsageError(f"generator {self.generator!r} with {self._config} is not used: {reason}; choose another one")


class _Verifier:
    """The work of the limited process: it scores an agent's answer to an item."""

    @staticmethod
    def load(setting: str) -> str:
        """Load a generator. The parent process has checked it."""
        _unchecked(setting)
        return "loaded"

    @staticmethod
    def answer(setting: str, question: str) -> str:
        """Return the score of an answer. The unpickled item comes from the parent process, never from an agent."""
        text, item = json.loads(question)
        return repr(_unchecked(setting).score(text, pickle.loads(base64.b64decode(item))))


_verifiers = LimitedProcesses(_Verifier, SECONDS, MEGABYTES)


@lru_cache(maxsize=16)
def _unchecked(key: str) -> Items:
    generator, config = json.loads(key)
    return Items(generator, config)


@lru_cache(maxsize=16)
def _opened(key: str) -> Items:
    generator, config = json.loads(key)
    items = Items(generator, config)
    with warnings.catch_warnings(action="ignore"):  # Verifiers warn about nonsense.
        items.check()
    return items


def _key(generator: str, config: Mapping[str, Any]) -> str:
    return json.dumps([generator, dict(config)], sort_keys=True)


def open_items(generator: str, config: Mapping[str, Any]) -> Items:
    """Return the items of a generator. Each process opens and checks them once."""
    return _opened(_key(generator, config))


def _bounded(score: float) -> float:
    """Return a verifier's score if it is from 0 to 1; 0 for any other value, such as NaN."""
    return score if 0 <= score <= 1 else 0.0


def not_finite(answer: str) -> bool:
    """Return whether a text reads as infinity or NaN, which some verifiers accept as any number."""
    powers = map(as_float, _POWER_OF_TEN.findall(answer))
    return bool(_NOT_FINITE.fullmatch(answer)) or any(power == float("inf") for power in powers)


def harmless(answer: str) -> bool:
    """Return whether it is safe to evaluate a text: a literal, arithmetic without powers, or words.

    A single word is not safe, because it may be a variable of the verifier; several words in a row are a syntax error.
    A long exponent is not safe, because sympy computes all digits of 1e-999999999.
    """
    if _LONG_EXPONENT.search(answer):
        return False
    if _ARITHMETIC.fullmatch(answer):
        return True
    try:
        ast.parse(answer.strip(), mode="eval")
    except SyntaxError:
        return bool(_WORDS.fullmatch(answer))
    except (ValueError, MemoryError, RecursionError):
        return False
    try:
        ast.literal_eval(answer.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return False
    return True


def require_known(generator: str, config: Mapping[str, Any]) -> None:
    """Raise `UsageError` for a generator or settings that can be refused before reasoning-gym is loaded."""
    if not isinstance(generator, str):
        raise UsageError(f"generator is {generator!r}; expected the name of one, as 'countdown'")
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
        fit = sorted(set(DATASETS) - set(DENIED))
        close = get_close_matches(generator, fit, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"expected one of {', '.join(fit)}"
        raise UsageError(f"reasoning-gym has no generator {generator!r} among its {len(DATASETS)}; {hint}")
    try:
        return reasoning_gym.create_dataset(generator, seed=SEED, size=FEWER.get(generator, ITEMS), **config)
    except (TypeError, AssertionError, ValueError) as error:
        settings = [name for name in DATASETS[generator][1].__dataclass_fields__ if name not in ("seed", "size")]
        raise UsageError(
            f"generator {generator!r} with {dict(config)}: {error}; it takes {', '.join(settings)}"
        ) from error


def _differ(item: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(item["answer"] != other["answer"] and item["question"] != other["question"])
