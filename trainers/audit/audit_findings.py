"""Findings of an audit: the failed check, the place, the problem, and the likely cause.

Each check yields `AuditFinding`s. Training halts at the first one; an audit of a finished run counts all. Left out: the
checks (`tokens`, `groups`, `advantage_checks`), and their callers (`learn.online_audit`, `run.offline_audit`).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from palaestra.episode import Episode
from palaestra.errors import TrainingHalted

CAUSES = {
    "token mask": "the mask was shifted, or tokens that nobody sampled (prompts, tool results) were marked as sampled",
    "turn ends": "a turn's end was left out of the loss or stands there twice, or a cut turn was taken for a whole one",
    "turn texts": "sampled ids were changed, lost or moved between the engine and the record, or their text was",
    "prompts": "a prompt was cut to a limit, or the chat template is another one",
    "row lengths": "play was given other limits than the run's config has",
    "versions": "the engine did not take the newest weights, or play ran farther ahead than max_staleness",
    "groups": "group numbers were mixed up, or groups were keyed by something else than their Start",
    "members": "an episode without a reward was made a sample, or one with a reward was left out of its group",
    "terms": "the recipe's shaping changed, or a term was added twice",
    "critic": "a pass through the model, or the critic's weights, are no numbers; a lower learning_rate or "
    "critic_learning_rate may help, from an earlier checkpoint",
    "advantages": "the advantage is another one than the recipe says: its sign, its baseline, its deviation or what a "
    "copy counts",
    "token weights": "the loss is divided by something else than the tokens that are learned from",
    "correction": "engine and learner have drifted so far apart that the correction rejects every token",
    "gradients": "the loss does not reach the weights: a mask of zeros, or a detached log-prob",
    "log-prob gap": "engine and trainer do not run the same weights, temperature, template or arithmetic",
    "starts": "a sampler went back to groups that were played before: its state was lost when the run went on",
    "metrics": "metrics.jsonl or the episodes were edited, or are of another run",
    "rewards": "the environment, its data or its grader changed since, or a reward depends on more than the attempt",
}
"""Likely cause of a finding, by the name of the check."""


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One violation of a check."""

    check: str
    place: str
    """Episode, group, row or step of the violation."""
    details: str

    def __str__(self) -> str:
        return f"{self.check}: {self.place}: {self.details}; likely {CAUSES[self.check]}"


def require(findings: Iterable[AuditFinding]) -> None:
    """Raise `TrainingHalted` with the first finding, if there is one."""
    for finding in findings:
        raise TrainingHalted(str(finding))


def place_of(episode: Episode, row: int | None = None, token: int | None = None) -> str:
    """Return a text that names an episode, and a row and a token in it unless they are None."""
    start = episode.start
    seat = "" if start.seat is None else f", seat {start.seat}"
    where = "" if row is None else f", row {row}" + ("" if token is None else f", token {token}")
    return f"episode of group {start.group}, seed {start.seed}, task {start.task}{seat}{where}"
