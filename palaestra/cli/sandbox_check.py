"""Where agents' programs can run on this machine: each sandbox is opened, or its engine asked, and says itself.

Left out: sandboxes on other machines, and whether what a guard stops is really stopped, which `make prove` tries with
hostile programs.
"""

from collections.abc import Iterator
from dataclasses import asdict

from palaestra.cli.finding import DoctorFinding
from palaestra.errors import Broken, MissingExtra, PalaestraError, SandboxUnavailable

LOCAL, DOCKER = "local sandbox", "docker sandbox"
_PROGRAM_SECONDS = 20.0


def local_findings() -> Iterator[DoctorFinding]:
    """What the local sandbox enforces here, and in its own words what is weaker, or why it cannot be had."""
    from palaestra.envs.sandboxes import open_sandbox

    try:
        with open_sandbox("local") as sandbox:
            ran = sandbox.run_once("print(6 * 7)", timeout=_PROGRAM_SECONDS)
            guards = asdict(sandbox.capabilities())
    except (SandboxUnavailable, Broken) as error:
        yield _refusal(LOCAL, error)
        return
    if ran.stdout != "42\n":
        yield DoctorFinding(
            LOCAL, f"it opens, but runs no program: {ran.limit_hit or ran.stderr.strip()[-300:]}", "broken"
        )
        return
    notes, _ = guards.pop("notes"), guards.pop("backend")
    there = ", ".join(name if value is True else f"{name} {value}" for name, value in guards.items() if value)
    absent = ", ".join(name for name, value in guards.items() if not value)
    text = f"runs programs; guards: {there}" + (f"; without {absent}" if absent else "")
    yield DoctorFinding(LOCAL, text, "warning" if notes else "ok")
    for note in notes:
        yield DoctorFinding(f"{LOCAL}, weaker", note, "warning")


def docker_findings() -> Iterator[DoctorFinding]:
    """Yield findings on the container engine: whether it answers, and which of our images it has."""
    from palaestra.envs.sandboxes.docker import images
    from palaestra.envs.sandboxes.docker.connection import DockerConnection

    try:
        engine = DockerConnection(None)
    except (SandboxUnavailable, MissingExtra) as error:
        yield _refusal(DOCKER, error)
        return
    name, runtimes = "Podman" if engine.is_podman else "Docker", ", ".join(sorted(engine.info.get("Runtimes") or ()))
    yield DoctorFinding(DOCKER, f"{name} {engine.info.get('ServerVersion')} answers; runtimes: {runtimes or 'its own'}")
    with engine.client() as api:
        for image in images.PURPOSES:
            try:
                images.check(api, image)
                yield DoctorFinding(f"docker image {image}", "is there")
            except SandboxUnavailable as error:
                yield _refusal(f"docker image {image}", error)


def _refusal(about: str, error: PalaestraError) -> DoctorFinding:
    """What a backend raised: the first line says what is missing, each other one what would bring it."""
    missing, *remedies = str(error).splitlines()
    return DoctorFinding(
        about, missing.partition("': ")[2] or missing, "missing", "; or ".join(map(str.strip, remedies))
    )
