"""The claims of the first round of the study, and the table of their results, with one correction for all claims.

Each claim is one contrast: a difference between two arms, paired by seed. Its p-value is that of Student's t test,
corrected by Holm's method over the contrasts of this table and all others of the appendix. Left out: settings of the
arms (`arms`, `reagent_arms`), the claims of later rounds (`later_claims`), and the text around the table.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
from parts import FIRST_ROUND, PARTS
from results import Results

from palaestra.trainers.evaluation.intervals import beta_share, student_quantile

Line = Mapping[str, Any]
Measure = Callable[[Line], float]
LEVEL = 0.05
"""Corrected p-value below which a claim is decided; otherwise it stays open."""
WORTH = 0.05
"""Smallest difference that would matter, for the number of seeds that an open claim needs."""
_TWO_SIDED_POWER = 1.96 + 0.84
"""Distance from 0, in standard errors, at which eight of ten studies find a difference."""


def area(line: Line) -> float:
    """Return the mean success of the points after the start: the area under the curve."""
    return float(np.mean([point["success"] for point in line["curve"][1:]]))


def tokens_to(line: Line, success: float) -> float:
    """Return the generated tokens at which the curve first reaches a success, between two points by interpolation; the
    run's last tokens if it never does.
    """
    points = line["curve"]
    for before, after in pairwise(points):
        if after["success"] >= success:
            rise = after["success"] - before["success"]
            share = max(0.0, (success - before["success"]) / rise) if rise > 0 else 0.0
            return float(before["tokens"] + share * (after["tokens"] - before["tokens"]))
    return float(points[-1]["tokens"])


def tokens_saved(line: Line) -> float:
    """Return the tokens to a success of .8 with the opposite sign, in thousands, so that fewer are better."""
    return -tokens_to(line, 0.8) / 1000


def _point(place: int, name: str) -> Measure:
    return lambda line: float(line["curve"][place][name])


def _second(line: Line) -> float:
    return next(float(control["success"]) for control in line["controls"].values())


def _zone(line: Line) -> float:
    return -float(line["figures"]["last"]["zone"])


@dataclass(frozen=True)
class Claim:
    """A claim that a difference is above 0: the measure of `arm`, less that of `against` with the same seed."""

    text: str
    comparison: str
    arm: str
    against: str
    measure: Measure = area
    base: Measure | None = None
    """Measure of `against`; None for the same measure."""
    of: str = ""
    """Name of the measure in the table; "" for the area under the curve of success."""
    worth: float = WORTH
    """Smallest difference that would matter."""
    replaces: tuple[str, ...] = ()
    """Texts of claims of earlier rounds that this one asks again. A claim with the same text is always replaced."""

    def differences(self, results: Results) -> list[float]:
        """Return the difference of each seed that both arms have."""
        runs, others = results.of(self.comparison, self.arm), results.of(self.comparison, self.against)
        base = self.base or self.measure
        return [self.measure(runs[seed]) - base(others[seed]) for seed in runs if seed in others]


CLAIMS = (
    Claim("Real trajectories are a better start than stitched ones", "origin", "real", "stitched"),
    Claim("Imitation is a better start than none", "origin", "stitched", "no SFT"),
    Claim("VSPO learns more than GRPO", "vspo", "vspo", "grpo"),
    Claim("VSPO at twice the rate learns more than GRPO at twice the rate", "vspo", "vspo, lr 2e-3", "grpo, lr 2e-3"),
    Claim("VSPO's choice of groups is better than a random one", "vspo", "vspo", "random refill"),
    Claim("Damping of VSPO's copies helps", "damping", "damped", "undamped"),
    Claim("Dropping dead groups is enough", "vspo", "left out", "grpo"),
    Claim("DAPO's resampling learns more than GRPO", "vspo", "dapo", "grpo"),
    Claim("DAPO with as many optimizer steps learns more than GRPO", "vspo", "dapo, 12 steps", "grpo"),
    Claim("Tasks drawn by a posterior teach more", "vspo", "posterior", "grpo"),
    Claim("Curated tasks teach more, the cost of curation included", "curated", "curated", "unfiltered"),
    Claim(
        "Curated tasks teach more, where curation is free",
        "curated", "curated, its tokens not counted", "unfiltered",
    ),
    Claim("PRS beats a binary reward where hardly a call is served", "prs-starved", "prs", "binary"),
    Claim("PRS beats a binary reward where most calls cannot be read", "prs-format", "prs", "binary"),
    Claim("PRS beats a binary reward where the right choice is unknown", "prs-choice", "prs", "binary"),
    Claim("SCR as printed learns more than TCR", "sequence", "SCR as printed", "TCR"),
    Claim("SCR with bounds 33 times as wide learns more than TCR", "sequence", "SCR, bounds x 33", "TCR"),
    Claim("TCR learns more than T", "sequence", "TCR", "T"),
    Claim("An upper bound of .28 is better than .20", "epsilon-high", "0.28", "0.20"),
    Claim("An upper bound of .315 is better than .28", "epsilon-high", "0.315", "0.28"),
    Claim("The overlong penalty shortens episodes", "overlong", "penalty", "without", _zone, of="share too long, less"),
    Claim("The overlong penalty does not cost success", "overlong", "penalty", "without"),
    Claim("A KL penalty of .2 helps hot steps", "kl", "0.2", "none"),
    Claim("Training on two kinds of questions transfers better to a third", "diverse", "diverse", "single"),
    Claim(
        "GRPO lowers the error of a judge that was imitated", "judge", "grpo", "grpo",
        _point(0, "error"), _point(-1, "error"), "error, less",
    ),
    Claim(
        "A second attempt uses its critique (Reagent-C)", "reagent", "C", "C",
        _second, _point(0, "success"), "success of second attempts less first",
    ),
    Claim("Reagent-R learns more than no judge", "reagent", "R", "none"),
    Claim("Reagent-U learns more than no judge", "reagent", "U", "none"),
    *(
        Claim(
            f"{which} need fewer tokens to .8, {where}", name, arm, "plain", tokens_saved,
            of="thousand tokens, less", worth=1.0,
        )
        for name, where in (("tree-two-hop", "two hops"), ("tree-trail", "trail"))
        for arm, which in (("tree-grpo", "Trees (Tree-GRPO)"), ("arpo", "Branches where entropy rose (ARPO)"))
    ),
    Claim("What a critique says matters to Reagent-U", "reagent", "U", "U, told the outcome alone"),
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """What the runs say of a claim."""

    claim: Claim
    values: Sequence[float]
    """Its differences by seed."""
    p: float | None
    """Its corrected p-value; None with too few runs, above 1 if seeds are missing."""

    @property
    def verdict(self) -> str:
        """Return "for", "against", or "open"."""
        if self.p is None or self.p >= LEVEL:
            return "open"
        return "for" if np.mean(self.values) > 0 else "against"

    @property
    def needed(self) -> str:
        """Return the number of seeds that an open claim needs to find a difference of its `worth`, or a note that its
        interval excludes such a difference.
        """
        if self.verdict != "open" or self.p is None:
            return ""
        values, worth = self.values, self.claim.worth
        if np.mean(values) + half_width(values) < worth:
            return f"none: below {worth}"
        return str(max(len(values) + 1, ceil((_TWO_SIDED_POWER * np.std(values, ddof=1) / worth) ** 2)))

    def row(self) -> str:
        """Return the row of the table."""
        claim, values = self.claim, self.values
        arms = claim.arm if claim.arm == claim.against else f"{claim.arm} - {claim.against}"
        contrast = f"`{claim.comparison}`: {claim.of or arms}"
        if self.p is None:
            return f"| {claim.text} | {contrast} | not run |  |  | open |  |"
        verdict = self.verdict if self.verdict == "open" else f"**{self.verdict}**"
        effect = f"{np.mean(values):+.3f} ± {half_width(values):.3f}"
        cells = (claim.text, contrast, effect, str(len(values)), _shown(self.p), verdict, self.needed)
        return f"| {' | '.join(cells)} |"


def first_round(results: Results) -> tuple[list[Answer], int]:
    """Return the answers to the claims of the first round, and the number of contrasts of the correction."""
    differences = {claim: claim.differences(results) for claim in CLAIMS}
    tested = {claim: values for claim, values in differences.items() if len(values) > 1}
    named = {(claim.comparison, frozenset((claim.arm, claim.against))) for claim in tested if claim.measure is area}
    for other in _other_contrasts():
        if (other.comparison, frozenset((other.arm, other.against))) not in named:
            values = other.differences(results)
            tested |= {other: values} if len(values) > 1 else {}
    corrected = dict(zip(tested, holm([student_p(values) for values in tested.values()]), strict=True))
    return [Answer(claim, values, corrected.get(claim)) for claim, values in differences.items()], len(tested)


def table(answers: Sequence[Answer]) -> str:
    """Return a table of claims."""
    columns = ["claim", "contrast", "effect", "seeds", "p", "verdict", "seeds it needs"]
    return "\n".join([f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *(answer.row() for answer in answers)])


def student_p(values: Sequence[float]) -> float:
    """Return the two-sided p-value of Student's test that the mean of these differences is 0."""
    mean, spread = float(np.mean(values)), float(np.std(values, ddof=1)) / len(values) ** 0.5
    if spread == 0.0:
        return 1.0 if mean == 0.0 else 0.0
    freedom = len(values) - 1
    return beta_share(freedom / (freedom + (mean / spread) ** 2), freedom / 2, 0.5)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's corrected p-values, in the order of the given ones."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(np.argsort(p_values)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


def half_width(values: Sequence[float]) -> float:
    """Return half of the width of the 95 % interval of the mean, by Student's t."""
    return float(student_quantile(len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5)


def _other_contrasts() -> Iterator[Claim]:
    """Yield the differences that the appendix shows of the first round: each arm less the arm that it is compared
    with.
    """
    for part in FIRST_ROUND:
        for name, comparison in PARTS[part].items():
            for arm in comparison.arms:
                if arm != comparison.against:
                    yield Claim("", name, arm, comparison.against)


def _shown(p: float) -> str:
    if p > 1:  # Seeds are missing.
        return "not all seeds"
    return "< .001" if p < 0.001 else f"{p:.3f}".removeprefix("0")
