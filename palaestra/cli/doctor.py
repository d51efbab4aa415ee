"""`palaestra doctor`: what works on this machine; `palaestra doctor MODEL`: what works with this model.

Everything only looks: nothing is installed, written or loaded. Left out: repairing, which the remedies tell how to do.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import tyro

from palaestra.cli.finding import Finding, probe, say, show
from palaestra.cli.libraries import BASIC_EXTRA, findable, library_findings
from palaestra.cli.machine import (
    TORCH_SECONDS,
    limit_findings,
    memory_findings,
    place_findings,
    terminal_findings,
    torch_findings,
)
from palaestra.cli.sandbox_check import DOCKER, DOCKER_SECONDS, LOCAL, LOCAL_SECONDS, docker_findings, local_findings
from palaestra.errors import MissingExtra
from palaestra.trainers.config import GRPOConfig, config_from, tiny_config

_MODEL_SECONDS = 300.0
"""How long reading a model may take; a tokenizer may have to come from the hub."""


@dataclass(frozen=True)
class Options:
    """Say what is installed and what works here; with a model, whether it can be trained and what memory that needs."""

    model: Annotated[str | None, tyro.conf.Positional] = None
    """A model's folder or hub name, or `tiny`; without it the machine is looked at."""
    recipe: str | None = None
    """Add up the memory of a run with this recipe: grpo-tcr or grpo-t."""
    slots: int | None = None
    """Of that run: episodes played at once."""
    num_prompts: int | None = None
    """Of that run: tasks a step."""
    num_generations: int | None = None
    """Of that run: episodes of each task."""
    num_mini_batches: int | None = None
    """Of that run: optimizer steps a batch."""
    max_episode_tokens: int | None = None
    """Of that run: longest row."""
    max_completion_length: int | None = None
    """Of that run: longest response, which decides the longest row where max_episode_tokens does not."""
    micro_batch_tokens: int | None = None
    """Of that run: padded tokens in one forward and backward pass."""
    beta: float | None = None
    """Of that run: KL weight; above 0 it keeps a reference model."""
    device: str | None = None
    """Of that run: `cpu`, `cuda`, or `auto`."""
    json: bool = False
    """Print one JSON object."""


def run(arguments: Sequence[str]) -> int:
    """Print what was found; 1 when the basic path, or training this model, does not work."""
    options = tyro.cli(Options, args=list(arguments), prog="palaestra doctor")
    config = described_run(options)
    if options.model is None:
        findings = machine()
        answer = _answer(findings)
    else:
        if not (findable("torch") and findable("transformers")):
            raise MissingExtra("torch or transformers", BASIC_EXTRA, "looking at a model")
        from palaestra.agents.local_model import find_device
        from palaestra.cli.model_check import model_findings, verdict

        name = options.model
        if config is not None:
            find_device(config.device)
        findings = probe("model", lambda: model_findings(name, config), _MODEL_SECONDS, vital=True)
        answer = verdict(name, findings)
    fatal = any(finding.fatal for finding in findings)
    if options.json:
        shown = {"ok": not fatal, "verdict": answer, "findings": [asdict(finding) for finding in findings]}
        print(json.dumps(shown, indent=2))
    else:
        show(findings)
        say(answer)
    return 1 if fatal else 0


def machine() -> list[Finding]:
    """All findings about this machine, each check under a deadline of its own."""
    return [
        *probe("libraries", library_findings, 10.0, vital=True),
        *probe("torch", torch_findings, TORCH_SECONDS + 5, vital=True),
        *probe("runs", lambda: place_findings(Path("runs")), vital=True),
        *probe("memory", memory_findings),
        *probe("process limits", limit_findings),
        *probe(LOCAL, local_findings, LOCAL_SECONDS + 2),
        *probe(DOCKER, docker_findings, DOCKER_SECONDS + 2),
        *probe("terminal", terminal_findings),
    ]


def described_run(options: Options) -> GRPOConfig | None:
    """The run whose memory is asked for, with the defaults that `palaestra train` would take; None where none is."""
    names = {field.name for field in fields(Options)} & {field.name for field in fields(GRPOConfig)} - {"model"}
    given: dict[str, Any] = {name: getattr(options, name) for name in sorted(names)}
    given = {name: value for name, value in given.items() if value is not None}
    if not given or options.model is None:
        return None
    if options.model == "tiny":
        return tiny_config("any", **given)
    return config_from({"env_id": "any", "model": options.model, **given})


def _answer(findings: Sequence[Finding]) -> str:
    fatal = [finding for finding in findings if finding.fatal]
    if not fatal:
        return "the basic path works: palaestra demo, palaestra train"
    return f"the basic path does not work: {', '.join(dict.fromkeys(finding.about for finding in fatal))}"
