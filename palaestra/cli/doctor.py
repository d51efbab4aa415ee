"""`palaestra doctor`: what works on this machine; `palaestra doctor MODEL`: what works with this model.

Everything only looks: nothing is installed, written or loaded. A check is a function that yields findings, `CHECKS`
names those of the machine. Left out: repairing, which the remedies tell how to do.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import tyro

from palaestra.cli import libraries, machine, sandbox_check
from palaestra.cli.finding import DoctorFinding, probe, say, show
from palaestra.cli.output import Reported, reporting
from palaestra.cli.train import parse
from palaestra.errors import UsageError
from palaestra.trainers.config.grpo_config import GRPOConfig

_MODEL_SECONDS = 300.0
"""How long reading a model may take; a tokenizer may have to come from the hub."""
_DRIVER = "; look at the GPU's driver (CUDA_VISIBLE_DEVICES= hides it), or pip install --force-reinstall torch"
# It ends by itself, even if we are killed: an alarm nobody handles.
_CHILD = """
import dataclasses, json, signal
signal.alarm({seconds})
from {module} import {name} as look
print(json.dumps([dataclasses.asdict(finding) for finding in look()]))
"""
Look = Callable[[], Iterator[DoctorFinding]]


@dataclass(frozen=True)
class Apart:
    """A check made in a process of its own, for a driver or a daemon may hang it or crash it."""

    look: Look
    seconds: float
    advice: str = ""

    def __call__(self) -> Iterator[DoctorFinding]:
        program = _CHILD.format(seconds=int(self.seconds) + 5, module=self.look.__module__, name=self.look.__name__)
        command, nothing = [sys.executable, "-P", "-c", program], subprocess.DEVNULL
        try:
            done = subprocess.run(command, stdin=nothing, capture_output=True, timeout=self.seconds, check=True)
            yield from (DoctorFinding(**found) for found in json.loads(done.stdout.splitlines()[-1]))
            return
        except subprocess.TimeoutExpired:
            how = f"did not end within {self.seconds:g} s"
        except subprocess.CalledProcessError as error:
            if error.returncode < 0:
                how = f"was killed by {signal.Signals(-error.returncode).name}"
            else:
                said = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
                how = f"ended with status {error.returncode}: {said}"
        raise ChildProcessError(f"the process that tried it {how}{self.advice}")


CHECKS: tuple[tuple[str, Look, float, bool], ...] = (
    ("libraries", libraries.library_findings, 10.0, True),
    ("torch", Apart(machine.torch_findings, 90.0, _DRIVER), 95.0, True),
    ("runs", machine.place_findings, 10.0, True),
    ("memory", machine.memory_findings, 10.0, False),
    ("process limits", machine.limit_findings, 10.0, False),
    (sandbox_check.LOCAL, Apart(sandbox_check.local_findings, 30.0), 35.0, False),
    (sandbox_check.DOCKER, Apart(sandbox_check.docker_findings, 15.0), 20.0, False),
    ("locale", machine.locale_findings, 10.0, False),
)
"""What each looks at, its deadline in seconds, and whether the basic path needs it to end well."""


@dataclass(frozen=True)
class DoctorOptions(Reported):
    """Say what is installed and what works here; with a model, whether it can be trained.

    With any options of `palaestra train` behind the model, also what memory that run needs, and whether it fits.
    """

    model: Annotated[str | None, tyro.conf.Positional] = None
    """A model's folder or hub name, or `tiny`; without it the machine is looked at."""
    gpu: float | None = None
    """Ask for an empty GPU of so many GB, in place of the device at hand."""


def run(arguments: Sequence[str]) -> int:
    """Print what was found; 1 when the basic path, or training this model, does not work."""
    options, remaining = tyro.cli(
        DoctorOptions, args=list(arguments), prog="palaestra doctor", return_unknown_args=True
    )
    config = described_run(options, remaining)
    with reporting(options.json) as figures:
        return _examine(options, config, figures)


def _examine(options: DoctorOptions, config: GRPOConfig | None, figures: dict[str, Any]) -> int:
    if options.model is None:
        good, bad = "the basic path works: palaestra demo, palaestra train", "the basic path does not work"
        findings_by_check = [probe(about, look, seconds, vital=vital) for about, look, seconds, vital in CHECKS]
        findings = [finding for check_findings in findings_by_check for finding in check_findings]
    else:
        from palaestra.agents.local_model import find_device
        from palaestra.cli.model_check import model_findings
        from palaestra.trainers.scale.available_memory import gpu_room, room_of

        name, room = options.model, None
        if config is not None:
            room = room_of(find_device(config.device)) if options.gpu is None else gpu_room(options.gpu)
        good, bad = (f"{words} with --model {name}" for words in ("can be trained", "not ready to train"))
        findings = probe("model", lambda: model_findings(name, config, room), _MODEL_SECONDS, vital=True)
    fatal = any(finding.fatal for finding in findings)
    verdict_text = verdict(findings, good, bad)
    figures |= {"ok": not fatal, "verdict": verdict_text, "findings": list(map(asdict, findings))}
    show(findings)
    say(verdict_text)
    return 1 if fatal else 0


def described_run(options: DoctorOptions, arguments: Sequence[str]) -> GRPOConfig | None:
    """The run whose memory is asked for, as `palaestra train` would understand it; None where none is."""
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
    return f"{good}; mind the warnings: {warnings}" if warnings else good
