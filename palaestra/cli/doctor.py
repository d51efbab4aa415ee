"""`palaestra doctor`: report what works on this machine; `palaestra doctor MODEL`: report what works with this model.

The checks only look: they install nothing, write nothing and load no model. A check is a function that yields findings;
`CHECKS` lists the checks of the machine. Left out: repairs, which the findings describe as remedies.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import tyro

from palaestra.cli import libraries, machine
from palaestra.cli.finding import DoctorFinding, reason, say, show
from palaestra.cli.output import Reported, reporting
from palaestra.cli.train import parse
from palaestra.errors import UsageError
from palaestra.trainers.config.grpo_config import GRPOConfig

_DRIVER = "; look at the GPU's driver (CUDA_VISIBLE_DEVICES= hides it), or pip install --force-reinstall torch"
# The child ends by itself, even if its parent is killed: no handler stops this alarm.
_CHILD = """
import dataclasses, json, signal
signal.alarm({seconds})
from {module} import {name} as check
print(json.dumps([dataclasses.asdict(finding) for finding in check()]))
"""
Check = Callable[[], Iterable[DoctorFinding]]


@dataclass(frozen=True)
class InChild:
    """A check that runs in its own process, because a driver or a daemon may hang or crash it."""

    check: Check
    timeout: float
    """Maximum seconds of the check."""
    advice: str = ""
    """Text after the reason why the process failed."""

    def __call__(self) -> Iterator[DoctorFinding]:
        program = _CHILD.format(seconds=int(self.timeout) + 5, module=self.check.__module__, name=self.check.__name__)
        command, nothing = [sys.executable, "-P", "-c", program], subprocess.DEVNULL
        try:
            done = subprocess.run(command, stdin=nothing, capture_output=True, timeout=self.timeout, check=True)
            yield from (DoctorFinding(**fields) for fields in json.loads(done.stdout.splitlines()[-1]))
            return
        except subprocess.TimeoutExpired:
            failure = f"did not end within {self.timeout:g} s"
        except subprocess.CalledProcessError as error:
            if error.returncode < 0:
                failure = f"was killed by {signal.Signals(-error.returncode).name}"
            else:
                last_line = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
                failure = f"ended with status {error.returncode}: {last_line}"
        raise ChildProcessError(f"the process that tried it {failure}{self.advice}")


CHECKS: tuple[tuple[str, Check, bool], ...] = (
    ("libraries", libraries.library_findings, True),
    ("torch", InChild(machine.torch_findings, 90.0, _DRIVER), True),
    ("runs", InChild(machine.place_findings, 30.0), True),
    ("memory", machine.memory_findings, False),
    ("process limits", machine.limit_findings, False),
    (machine.LOCAL, InChild(machine.local_sandbox_findings, 30.0), False),
    (machine.DOCKER, InChild(machine.docker_findings, 15.0), False),
)
"""Topic of each check, the check, and whether the basic path needs it to pass."""


def probe(about: str, check: Check, *, vital: bool = False) -> list[DoctorFinding]:
    """Run a check and return its findings. If it fails, the failure is a finding, and the other checks still run."""
    findings: list[DoctorFinding] = []
    try:
        findings.extend(check())
    except (Exception, SystemExit) as error:  # A check may raise any error on an unusual machine.
        text = f"could not be checked: {reason(error)}"
        findings.append(DoctorFinding(about, text, "broken" if vital else "warning", vital=vital))
    return findings


@dataclass(frozen=True)
class DoctorOptions(Reported):
    """Report what is installed and works here; with a model, also whether it can be trained.

    With options of `palaestra train` after the model, also report how much memory that run needs, and whether it fits.
    """

    model: Annotated[str | None, tyro.conf.Positional] = None
    """Folder or hub name of a model, or `tiny`; without a model the machine is checked."""
    gpu: float | None = None
    """Assume an empty GPU with this many GB, instead of the device of this machine."""


def run(arguments: Sequence[str]) -> int:
    """Print the findings. Return 1 if the basic path, or training this model, does not work."""
    options, remaining = tyro.cli(
        DoctorOptions, args=list(arguments), prog="palaestra doctor", return_unknown_args=True
    )
    config = described_run(options, remaining)
    with reporting(options.json) as figures:
        return _examine(options, config, figures)


def _examine(options: DoctorOptions, config: GRPOConfig | None, figures: dict[str, Any]) -> int:
    if options.model is None:
        good, bad = "the basic path works: palaestra demo, palaestra train", "the basic path does not work"
        findings = [finding for about, check, vital in CHECKS for finding in probe(about, check, vital=vital)]
    else:
        from palaestra.agents.local_model import find_device
        from palaestra.cli.model_check import model_findings
        from palaestra.trainers.scale.available_memory import gpu_room, room_of

        name, room = options.model, None
        if config is not None:
            room = room_of(find_device(config.device)) if options.gpu is None else gpu_room(options.gpu)
        good, bad = (f"{words} with --model {name}" for words in ("can be trained", "not ready to train"))
        findings = probe("model", lambda: model_findings(name, config, room), vital=True)
    fatal = any(finding.fatal for finding in findings)
    verdict_text = verdict(findings, good, bad)
    figures |= {"ok": not fatal, "verdict": verdict_text, "findings": list(map(asdict, findings))}
    show(findings)
    say(verdict_text)
    return 1 if fatal else 0


def described_run(options: DoctorOptions, arguments: Sequence[str]) -> GRPOConfig | None:
    """Return the config of the run that the options describe, as `palaestra train` reads them; None without a run."""
    if options.model is None and (arguments or options.gpu):
        raise UsageError(f"{[*arguments, '--gpu'][0]!r} describes a run: name its model first, palaestra doctor MODEL")
    if options.gpu is not None and options.gpu <= 0:
        raise UsageError(f"--gpu is {options.gpu:g}; expected the GPU's size in GB, such as 80")
    if options.model is None or not (arguments or options.gpu):
        return None
    return parse(["two-hop", "--model", options.model, *arguments], "palaestra doctor").config


def verdict(findings: Sequence[DoctorFinding], good: str, bad: str) -> str:
    """Return the verdict on all findings in one sentence."""
    if fatal := [finding for finding in findings if finding.fatal]:
        more = f" (and {len(fatal) - 1} more)" if len(fatal) > 1 else ""
        remedy = f"; {fatal[0].remedy}" if fatal[0].remedy else ""
        return f"{bad}: {fatal[0].about}: {fatal[0].text}{more}{remedy}"
    warnings = ", ".join(dict.fromkeys(finding.about for finding in findings if finding.state == "warning"))
    return f"{good}; note the warnings: {warnings}" if warnings else good
