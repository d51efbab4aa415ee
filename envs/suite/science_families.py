"""Families of science questions with random numbers: the question, the right value, and the values of common mistakes.

A family is data: `right` and `wrong` are expressions over the drawn numbers and the functions of `math`. The options
must not reveal which is right. If they were the right value and its mistakes, their order of size would reveal it nine
times in ten. So the options are x, a*x, b*x and a*b*x, where a and b are factors by which mistakes differ from the
right value, and it is drawn which of the four is the right value. A question always has the same options, so it is
never in two splits. Left out: the episode around a question (`science`), and questions from files (`science_files`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import combinations

import numpy as np

from palaestra.envs.suite.demonstrations import filled

OPTIONS = 4
LEAST_APART = 0.04
"""Smallest relative difference of two options, so that the nearest one to a computed value is unique."""
MOST_APART = 4.0
"""Mistakes that are off by more than this factor are left out: their size would give them away."""
_SPARE = (0.5, 2.0, 1.5, 0.75, 3.0, 0.4)
"""Factors of the right value that make further options if there are too few mistakes."""


@dataclass(frozen=True)
class ScienceTemplate:
    subject: str
    question: str
    numbers: Mapping[str, Sequence[float]]
    right: str
    wrong: tuple[str, ...]
    unit: str = ""

    def draw(self, rng: np.random.Generator) -> tuple[str, list[str]]:
        """Draw a question and its options, the right one first."""
        chosen = {name: values[int(rng.integers(len(values)))] for name, values in self.numbers.items()}
        question = self.question.format(**chosen)
        values = self._options(chosen, keyed(f"options: {question}"))
        return question, [f"{three_digits(value)} {self.unit}".rstrip() for value in values]

    def _options(self, chosen: Mapping[str, float], rng: np.random.Generator) -> list[float]:
        """Return the values of the options, the right one first. Which of the four is right by size is random."""
        right = _value_of(self.right, chosen)
        mistakes = [_value_of(candidate, chosen) / right for candidate in self.wrong]
        factors = [candidate for candidate in mistakes if 1 / MOST_APART < candidate < MOST_APART]
        factors = [*rng.permutation(factors).tolist(), *rng.permutation(_SPARE).tolist()]
        fours = ((1.0, a, b, a * b) for a, b in combinations(factors, 2))
        four = next(candidate for candidate in fours if all(_apart(*pair) for pair in combinations(candidate, 2)))
        at = int(rng.integers(OPTIONS))
        return [right, *(right * factor / four[at] for factor in four[:at] + four[at + 1 :])]


def keyed(text: str) -> np.random.Generator:
    """Return a random generator seeded by a text, so that the same question always gets the same draws."""
    digest = blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def _value_of(expression: str, numbers: Mapping[str, float]) -> float:
    """Return the value of an expression of these families. Never call it with other text: it uses `eval`."""
    expression = filled(expression, {name: str(value) for name, value in numbers.items()})
    return float(eval(expression, {"__builtins__": {}, **vars(math)}))


def three_digits(value: float) -> str:
    """Return a number as text with three significant digits, without an exponent if that is short."""
    return f"{float(f'{value:.3g}'):.10g}"


def _apart(a: float, b: float) -> bool:
    return abs(a - b) > LEAST_APART * max(abs(a), abs(b))


def _steps(first: float, last: float, step: float) -> tuple[float, ...]:
    """Return the decimals from `first` to `last`, rounded so that they print without rounding errors."""
    return tuple(round(first + step * at, 6) for at in range(round((last - first) / step) + 1))


FAMILIES = (
    ScienceTemplate(
        "mechanics", "A car at {v} m/s brakes at a constant {a} m/s². How far does it go until it stands?",
        {"v": range(8, 41), "a": _steps(2, 9, 0.5)}, "{v}**2 / (2*{a})",
        ("{v}**2 / {a}", "{v} / {a}", "{v}**2 * {a} / 2"), "m",
    ),
    ScienceTemplate(
        "mechanics", "A stone falls from rest for {h} m. With g = 9.81 m/s² and no drag, how long does it fall?",
        {"h": _steps(2, 120, 0.5)}, "sqrt(2*{h} / 9.81)",
        ("sqrt({h} / 9.81)", "2*{h} / 9.81", "sqrt(2*9.81*{h})"), "s",
    ),
    ScienceTemplate(
        "mechanics",
        "A ball is thrown at {v} m/s, {d} degrees above level ground. With g = 9.81 m/s², how far does it fly?",
        {"v": range(5, 45), "d": (15, 20, 25, 30, 35, 50, 55, 65, 70, 75)}, "{v}**2 * sin(2*radians({d})) / 9.81",
        ("{v}**2 * sin(radians({d})) / 9.81", "{v}**2 * sin(2*radians({d})) / (2*9.81)", "{v}**2 / 9.81"), "m",
    ),
    ScienceTemplate(
        "mechanics", "What is the kinetic energy of {m} kg at {v} km/h?",
        {"m": range(60, 2000, 20), "v": range(15, 131, 5)}, "{m} * ({v}/3.6)**2 / 2000",
        ("{m} * {v}**2 / 2000", "{m} * ({v}/3.6)**2 / 1000", "{m} * ({v}/3.6) / 2000"), "kJ",
    ),
    ScienceTemplate(
        "electricity",
        "Resistors of {a} ohm and {b} ohm are connected in parallel. What is their resistance together?",
        {"a": range(10, 200, 3), "b": range(11, 300, 7)}, "{a}*{b} / ({a} + {b})",
        ("{a} + {b}", "({a} + {b}) / 2", "1/{a} + 1/{b}"), "ohm",
    ),
    ScienceTemplate(
        "heat", "How much heat warms {m} kg of water by {t} K, at 4.186 kJ per kg and K?",
        {"m": _steps(0.5, 20, 0.5), "t": range(5, 76)}, "4.186 * {m} * {t}",
        ("{m} * {t} / 4.186", "4.186 * {t} / {m}", "4.186 * {m} * ({t} + 273.15)"), "kJ",
    ),
    ScienceTemplate(
        "optics", "A thin lens of focal length {f} cm stands {d} cm from an object. How far behind it is the image?",
        {"f": range(4, 20), "d": range(25, 90)}, "1 / (1/{f} - 1/{d})",
        ("1 / (1/{f} + 1/{d})", "{d} - {f}", "{d} * {f} / 10"), "cm",
    ),
    ScienceTemplate(
        "chemistry",
        "How many grams of CO2 come from burning {m} g of methane? Molar masses: CH4 16.04, CO2 44.01 g/mol.",
        {"m": _steps(1, 60, 0.5)}, "{m} / 16.04 * 44.01",
        ("{m}", "{m} / 44.01 * 16.04", "{m} / 16.04 * 2 * 44.01"), "g",
    ),
    ScienceTemplate(
        "chemistry",
        "Nitrogen and {m} g of hydrogen react completely to ammonia, N2 + 3 H2 -> 2 NH3. How many grams of ammonia "
        "form? Molar masses: H2 2.016, NH3 17.03 g/mol.",
        {"m": _steps(1, 40, 0.5)}, "{m} / 2.016 * 2/3 * 17.03",
        ("{m} / 2.016 * 17.03", "{m} / 2.016 * 3/2 * 17.03", "{m} * 17.03 / 3"), "g",
    ),
    ScienceTemplate(
        "chemistry", "To what volume must {v} mL of a {c} mol/L solution be diluted to give {e} mol/L?",
        {"v": range(5, 60, 5), "c": _steps(1, 6, 0.5), "e": _steps(0.1, 0.9, 0.1)}, "{v} * {c} / {e}",
        ("{v} * {c} / {e} - {v}", "{v} * {c} * {e}", "{v} * {e} / {c}"), "mL",
    ),
    ScienceTemplate(
        "chemistry", "What volume do {n} mol of an ideal gas take at {t} °C and {p} kPa? R = 8.314 J/(mol K).",
        {"n": _steps(0.5, 5, 0.25), "t": range(5, 95, 5), "p": range(80, 200, 10)},
        "{n} * 8.314 * ({t} + 273.15) / {p}",
        ("{n} * 8.314 * {t} / {p}", "{n} * 22.4", "{n} * ({t} + 273.15) / (8.314 * {p})"), "L",
    ),
    ScienceTemplate(
        "chemistry", "What is the pH of hydrochloric acid of {c} mmol/L, fully dissociated?",
        {"c": _steps(0.2, 60, 0.2)}, "3 - log10({c})",
        ("11 + log10({c})", "3 + log10({c})", "-log({c} / 1000)"),
    ),
    ScienceTemplate(
        "nuclear physics",
        "A sample holds {m} mg of an isotope with a half-life of {h} days. How much is left after {t} days?",
        {"m": range(20, 500, 10), "h": range(3, 30), "t": range(5, 60)}, "{m} * 0.5**({t}/{h})",
        ("{m} * exp(-{t}/{h})", "{m} * (1 - {t}/(2*{h}))", "{m} * {h}/{t}"), "mg",
    ),
    ScienceTemplate(
        "genetics",
        "Two parents are heterozygous in {n} unlinked genes, each with one dominant allele. How many of {k} offspring "
        "are expected to show all the dominant traits?",
        {"n": (2, 3, 4), "k": range(128, 4000, 32)}, "{k} * (3/4)**{n}",
        ("{k} * (1/4)**{n}", "{k} * (1/2)**{n}", "{k} * (1 - (1/4)**{n})"),
    ),
    ScienceTemplate(
        "genetics",
        "A recessive trait shows in {k} of 10000 people. In Hardy-Weinberg equilibrium, how many of 1000 people are "
        "carriers without the trait?",
        {"k": range(1, 900)}, "2000 * sqrt({k}/10000) * (1 - sqrt({k}/10000))",
        ("1000 * sqrt({k}/10000)", "{k} / 5", "1000 * (1 - sqrt({k}/10000))**2"),
    ),
    ScienceTemplate(
        "microbiology",
        "A culture of {n} thousand cells doubles every {d} minutes. How many are there after {t} minutes?",
        {"n": range(2, 60), "d": range(18, 50), "t": range(60, 241, 15)}, "{n} * 2**({t}/{d})",
        ("{n} * 2 * {t}/{d}", "{n} * exp({t}/{d})", "{n} * ({t}/{d})**2"), "thousand",
    ),
    ScienceTemplate(
        "astronomy", "A planet circles the Sun at {a} astronomical units. How long is its year?",
        {"a": _steps(0.3, 30, 0.1)}, "{a}**1.5",
        ("{a}**(2/3)", "{a}**2", "{a}**3"), "Earth years",
    ),
    ScienceTemplate(
        "astronomy", "How long does light take over {d} million km, at 299792 km/s?",
        {"d": range(20, 900)}, "{d} * 1000000 / 299792 / 60",
        ("{d} * 1000000 / 299792", "{d} * 1000 / 299792", "299792 / {d} / 60"), "minutes",
    ),
    ScienceTemplate(
        "units", "A wind of {v} km/h is how fast in metres per second?",
        {"v": _steps(10, 250, 0.5)}, "{v} / 3.6",
        ("{v} * 3.6", "{v} / 60", "{v} / 1.609"), "m/s",
    ),
    ScienceTemplate(
        "units", "A house used {e} kWh of heat. How much oil is that, at {q} MJ per litre?",
        {"e": range(200, 9000, 50), "q": _steps(33, 40, 0.5)}, "{e} * 3.6 / {q}",
        ("{e} / {q}", "{e} * 3.6 * {q} / 1000", "{e} / 3.6 / {q}"), "L",
    ),
)  # fmt: skip
