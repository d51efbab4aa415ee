"""Look at everything that a full-scale script needs, and start nothing: `sh full_scale.sh --dry WORDS`.

The script runs with a program in place of `palaestra` that writes its words down. Then each command's options are read
as the command reads them, and its files, servers with their models, models and sandbox are looked for. What it takes is
told: hours by the number of cards, and room on the disk (`dry_needs`). Nothing is fetched but the config of a model
that only the hub has. Exit status 1 where something is missing. Left out: whether this machine has the cards.
"""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import tyro
from dry_needs import SECONDS, Ledger, lacking, servers, values

RECORDER = """#!/bin/sh
printf '%s\\037' "$@" >> "$SAID"
echo >> "$SAID"
while [ $# -gt 1 ]; do
    case $1 in --out) : >> "$2" ;; esac
    shift
done
"""
"""A word ends in the character 31, a command in a line; what is written next is there for the script to read."""
NOT_SET = "http://not-set.invalid/"
OPTIONS = {"serve_rrm": "ServeRRMOptions"}


def commands(script: Path, words: Sequence[str], place: Path, environment: Mapping[str, str]) -> list[list[str]]:
    """Return the words of each palaestra command of a script. Each of its data files, in `place`, holds its own
    name, so that what the script makes of them names them too.
    """
    text, said = script.read_text(encoding="utf-8"), place / "said"
    for folder in ("data", "run"):
        (place / folder).mkdir()
    for name in re.findall(r"\$DATA/([\w.-]+\.jsonl)", text):
        (place / "data" / name).write_text(f"{name}\n", encoding="utf-8")
    recorder = place / "palaestra"
    recorder.write_text(RECORDER, encoding="utf-8")
    recorder.chmod(0o755)
    servers = {name: NOT_SET + name for name in re.findall(r"\$(\w+_URL)", text)}
    own = {"DATA": str(place / "data"), "RUN": str(place / "run"), "SAID": str(said)}
    path = {"PATH": f"{place}:{environment.get('PATH', '')}"}
    subprocess.run(["sh", str(script), *words], cwd=place, env={**servers, **environment, **own, **path}, check=True)
    return [line.split("\x1f")[:-1] for line in said.read_text(encoding="utf-8").split("\n")[:-1]]


def refused(name: str, arguments: Sequence[str]) -> str:
    """Return why a command does not take its options; "" if it does."""
    if name == "serve":
        name, arguments = f"serve_{arguments[0]}", arguments[1:]
    said = io.StringIO()
    try:
        module = import_module(f"palaestra.cli.{name}")
        with redirect_stdout(said), redirect_stderr(said):
            if name == "train":
                module.parse(arguments, "palaestra train")
            elif name == "sft":
                module.parse(arguments)
            else:
                tyro.cli(getattr(module, OPTIONS.get(name, f"{name.title()}Options")), args=list(arguments))
    except (Exception, SystemExit) as error:  # Whatever is wrong with one command, the others are looked at too.
        return " ".join(f"{said.getvalue() or error}".split())
    return ""


def missing(arguments: Sequence[str], place: Path, data: Path) -> Iterator[str]:
    """Yield what a command needs and what is not there."""
    text = " ".join(arguments)
    names = set(re.findall(rf"{re.escape(str(place / 'data'))}/([\w.-]+)", text))
    for made in re.findall(rf"{re.escape(str(place / 'run'))}/[\w./-]+\.jsonl", text):
        names |= set(Path(made).read_text(encoding="utf-8").split()) if Path(made).is_file() else set()
    for name in sorted(names):
        if not (data / name).exists():
            yield f"no file {data / name}"
    for url, model in sorted(set(servers(arguments)), key=str):
        if url.startswith(NOT_SET):
            yield f"{url.removeprefix(NOT_SET).removesuffix('/v1')} is not set"
        elif model is None and not answers(url):
            yield f"nothing answers at {url}"
        elif model is not None and (lack := lacking(url, model)):
            yield lack
    if "--base-url" not in arguments:
        for name in (*values(arguments, "--model")[:1], *values(arguments, "--against")[:1]):
            if not name.startswith(str(place)) and config_of(name) is None:
                yield f"no model {name}: neither a folder nor in the hub's cache nor on the hub"
    if '"backend":"docker"' in text and shutil.which("docker") is None:
        yield "no program docker"


@cache
def answers(url: str) -> bool:
    """Return whether a server answers, whatever it says."""
    try:
        urlopen(url, timeout=SECONDS).close()
    except HTTPError:
        return True
    except (URLError, OSError):
        return False
    return True


@cache
def config_of(model: str) -> Any:
    """Return the config of a model that is a folder, in the hub's cache or on the hub; None if it is nowhere."""
    from huggingface_hub import try_to_load_from_cache
    from transformers import AutoConfig

    path = Path(model) / "config.json"
    cached = str(path) if path.is_file() else try_to_load_from_cache(model, "config.json")
    try:
        if isinstance(cached, str):
            found = json.loads(Path(cached).read_text(encoding="utf-8"))
        else:
            hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
            with urlopen(f"{hub}/{model}/resolve/main/config.json", timeout=SECONDS) as page:
                found = json.load(page)
        return AutoConfig.for_model(found.pop("model_type"), **found)
    except (OSError, ValueError, KeyError):  # URLError is an OSError.
        return None


def looked_at(
    script: Path, words: Sequence[str], data: Path, ledger: Ledger | None = None
) -> list[tuple[list[str], list[str], list[str]]]:
    """Return each command of a script, with what is wrong or missing, and with what it takes if there is a ledger."""
    with tempfile.TemporaryDirectory() as folder:
        place, here = Path(folder).resolve(), Path.cwd()
        found = commands(script.resolve(), words, place, os.environ)
        os.chdir(place)  # Options look for the files that the script has made.
        try:
            return [_looked_at(command, place, data, ledger) for command in found]
        finally:
            os.chdir(here)


def _looked_at(
    command: list[str], place: Path, data: Path, ledger: Ledger | None
) -> tuple[list[str], list[str], list[str]]:
    name, *arguments = command
    if wrong := refused(name, arguments):
        return command, [wrong, *missing(arguments, place, data)], []
    return command, [*missing(arguments, place, data)], [] if ledger is None else [*ledger.add(command)]


def main() -> int:
    """Print each command, what is missing for it, what it takes, and the free room on the disk."""
    script, *words = sys.argv[1:]
    ledger = Ledger(config_of)
    found = looked_at(Path(script), words, Path(os.environ.get("DATA", "data")).resolve(), ledger)
    for command, problems, needs in found:
        words = [re.sub(r"^/\S*/(run|data)(?=/)", lambda found: f"${found[1].upper()}", word) for word in command[:6]]
        shown = " ".join(word if len(word) < 40 else json.dumps(word[:36] + "...") for word in words)
        print(f"{'--' if problems else 'ok'} palaestra {shown}{' ...' * (len(command) > 6)}")
        for text in (*problems, *needs):
            print(f"     {text}")
    for line in re.findall(r"(?m)^# Needs: .*$", Path(script).read_text(encoding="utf-8")):
        print(line.removeprefix("# "))
    for line in ledger.told():
        print(line)
    print(f"{shutil.disk_usage('.').free / 1e9:,.0f} GB are free on this disk")
    wrong = sum(bool(problems) for _, problems, _ in found)
    print(f"{wrong} of {len(found)} commands lack something; nothing was started")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
