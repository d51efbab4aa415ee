"""What a long-running stage tells whoever watches it. Stages are generators of Progress; nobody passes callbacks."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of a stage."""

    stage: str
    step: int
    total: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    """Something worth a line of its own: a restart, a skipped update."""
