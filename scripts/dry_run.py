"""Look at everything that a full-scale script needs, and start nothing: `sh full_scale.sh --dry WORDS`.

The script runs with a program in place of `palaestra` that writes its words down. Then each command's options are read
as the command reads them, and its files, servers, models and sandbox are looked for. Exit status 1 where something is
missing. Left out: hours, and whether the machine is large enough.
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
from itertools import pairwise
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import tyro

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
SECONDS = 5.0


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
    for url in sorted(set(re.findall(r"http[^\s\"]+", text))):
        if url.startswith(NOT_SET):
            yield f"{url.removeprefix(NOT_SET)} is not set"
        elif not answers(url):
            yield f"nothing answers at {url}"
    served = "--base-url" in arguments
    for option, value in pairwise(arguments):
        if option in ("--model", "--against") and not served and not value.startswith(str(place)) and not known(value):
            yield f"no model {value}: neither a folder nor in the hub's cache nor on the hub"
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
def known(model: str) -> bool:
    """Return whether a model is a folder, in the hub's cache or on the hub."""
    from huggingface_hub import try_to_load_from_cache

    if (Path(model) / "config.json").is_file() or isinstance(try_to_load_from_cache(model, "config.json"), str):
        return True
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        urlopen(f"{hub}/{model}/resolve/main/config.json", timeout=SECONDS).close()
    except (URLError, OSError):
        return False
    return True


def looked_at(script: Path, words: Sequence[str], data: Path) -> list[tuple[list[str], list[str]]]:
    """Return each command of a script, with what is wrong or missing."""
    with tempfile.TemporaryDirectory() as folder:
        place, here = Path(folder).resolve(), Path.cwd()
        found = commands(script.resolve(), words, place, os.environ)
        os.chdir(place)  # Options look for the files that the script has made.
        try:
            return [
                ([name, *arguments], [*filter(None, [refused(name, arguments)]), *missing(arguments, place, data)])
                for name, *arguments in found
            ]
        finally:
            os.chdir(here)


def main() -> int:
    """Print each command, what is missing for it, and the free room on the disk."""
    script, *words = sys.argv[1:]
    found = looked_at(Path(script), words, Path(os.environ.get("DATA", "data")).resolve())
    for command, problems in found:
        shown = " ".join(word if len(word) < 40 else json.dumps(word[:36] + "...") for word in command[:6])
        print(f"{'--' if problems else 'ok'} palaestra {shown}{' ...' * (len(command) > 6)}")
        for problem in problems:
            print(f"     {problem}")
    for line in re.findall(r"(?m)^# Needs: .*$", Path(script).read_text(encoding="utf-8")):
        print(line.removeprefix("# "))
    print(f"{shutil.disk_usage('.').free / 2**30:,.0f} GiB are free on this disk")
    wrong = sum(bool(problems) for _, problems in found)
    print(f"{wrong} of {len(found)} commands lack something; nothing was started")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
