"""The command line: `palaestra COMMAND`. Each command is a module with `run(arguments)`, imported when it is called.

This module does what all commands need: after an error, Ctrl-C, a closed pipe or a full disk a command ends without a
traceback, and characters that the terminal lacks are escaped. Left out: what a command does.
"""

import errno
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Mapping, Sequence
from io import TextIOWrapper

from palaestra.errors import PalaestraError, unknown_name
from palaestra.loading import load

# Two torch threads on a shared machine wait for each other and run several times slower than one.
# Set before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

SERVICES = {
    "sandbox": "run the programs of agents that play on other machines",
    "search": "answer searches of an index, as Search-R1's retriever does",
    "mcp": "offer an environment to MCP clients",
    "vllm": "run vLLM servers for the model that a run trains",
    "rrm": "run a judge (reward model) as an OpenAI-compatible server",
}
GROUPS = {
    "environments": {
        "list": "show the registered environments",
        "check": "test an environment against the contract, hostile input and cheats",
        "play": "step an environment by hand, turn by turn",
    },
    "agents": {
        "eval": "measure an agent on held-out tasks, or two agents against each other",
        "eval-set": "measure several models in several environments, with one report",
        "doctor": "what is installed, what a model's template does, what memory it needs",
        "plan": "forecast a training step on 1 to 512 GPUs, and its price, before one is rented",
        "convert": "make a model folder of a GGUF file",
    },
    "training": {
        "demo": "cold-start the tiny agent, train it, and compare it with control runs",
        "train": "train an agent in an environment with GRPO",
        "recipes": "show the presets of the algorithm, each value with its source",
        "sft": "imitate recorded episodes",
        "sweep": "train a grid of settings over several seeds and compare the results",
    },
    "looking": {
        "view": "look at a run: curves, groups, episodes, tokens",
        "analyse": "runs and files of episodes in figures, side by side, with intervals over seeds",
        "audit": "check the records of a run: masks, groups, advantages, rewards",
        "replay": "run recorded episodes again without their tools, and prove them identical",
        "rescore": "compute another reward over recorded episodes",
        "export": "write recorded episodes in the form of another project",
        "import": "make episodes of other projects' dialogues and evaluations",
    },
    "data": {
        "collect": "let a teacher play and keep its best episodes",
        "curate": "let a model play, and keep the tasks that it solves now and then",
        "judge": "label recorded episodes with a teacher's verdicts, for a reward model to learn from",
        "data": "look at a file of tasks, or find the row that is wrong",
        "pool": "make one file of training tasks of several, without duplicates, tests and ambiguity",
        "index": "make an index of a corpus that agents search, or ask one by hand",
    },
    "serving": {f"serve {name}": text for name, text in SERVICES.items()},
}
"""Commands and their descriptions, by group, as `palaestra --help` shows them."""
COMMANDS = tuple(dict.fromkeys(name.partition(" ")[0] for group in GROUPS.values() for name in group))
HELP = ("--help", "-h", "help")
_MODULES = {"list": "palaestra.cli.listing", "import": "palaestra.cli.importing", "eval-set": "palaestra.cli.eval_set"}
"""Modules of commands whose own name would hide Python's list, or is no name in Python."""
_EXTRAS = {
    "torch": "train",
    "transformers": "train",
    "tokenizers": "train",
    "safetensors": "train",
    "jinja2": "train",
    "matplotlib": "plot",
    "httpx": "endpoint",
    "pyarrow": "data",
    "starlette": "serve",
    "uvicorn": "serve",
    "tantivy": "search",
    "selectolax": "search",
    "faiss": "dense",
    "wandb": "wandb",
    "trackio": "trackio",
    "tensorboard": "tensorboard",
}
"""Name of the extra that installs each optional library."""
_FULL = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
}
"""What helps where nothing more can be written, by the number of the error."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0 done, 1 a check failed, 2 a wrong request, 130 interrupted."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _replace_unknown_letters()
    try:
        try:
            status = _run(arguments)
        finally:  # Flush while an error can still be reported; `--help` ends in a SystemExit.
            sys.stdout.flush()
    except BrokenPipeError:  # The reader of our output has ended, as `head` does.
        _discard_output()
        return 1
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _discard_output()
        place = f" to {error.filename}" if error.filename else ""
        advice = f"{_FULL[error.errno]}, and run the same command again"
        print(f"palaestra: nothing more can be written{place}: {error.strerror}; {advice}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print("\ninterrupted", file=sys.stderr)
        return 128 + getattr(stop, "number", signal.SIGINT)  # A run's `Interrupted` has the number of its signal.
    return status


def _run(arguments: list[str]) -> int:
    name, remaining = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if name in HELP:
        print(usage("palaestra COMMAND", GROUPS, "'palaestra --version' shows the version."))
        return 0
    if name in ("-V", "--version"):
        from palaestra import __version__

        print(f"palaestra {__version__}")
        return 0
    if name not in COMMANDS:
        print(f"palaestra: {unknown_name('command', name, COMMANDS)}", file=sys.stderr)
        return 2
    from palaestra.cli.blame import blaming

    try:
        with blaming():
            try:
                status: int = load(_MODULES.get(name, f"palaestra.cli.{name}")).run(remaining)
            except ModuleNotFoundError as error:
                extra = _EXTRAS.get((error.name or "").partition(".")[0])
                if extra is None:
                    raise
                print(f"palaestra {name} needs {error.name}: pip install 'palaestra[{extra}]'", file=sys.stderr)
                return 2
    except PalaestraError as error:
        from palaestra.cli.output import say_error

        say_error(f"palaestra {name}: {error}")
        return 2
    return status


def usage(command: str, groups: Mapping[str, Mapping[str, str]], more: str = "") -> str:
    """Return the help of a command whose next word is the name of an entry in these groups, as wide as the terminal."""
    columns = shutil.get_terminal_size().columns
    widest = max(len(name) for entries in groups.values() for name in entries)
    indent = " " * (widest + 4)
    lines: list[str] = []
    for heading, entries in groups.items():
        lines += [f"{heading}:"] if heading else []
        lines += [
            textwrap.fill(f"  {name:<{widest}}  {text}", max(columns, len(indent) + 20), subsequent_indent=indent)
            for name, text in entries.items()
        ]
    closing = f"'{command} --help' shows its options with their defaults. {more}".rstrip()
    return "\n".join([f"usage: {command} [options]", "", *lines, "", textwrap.fill(closing, max(columns, 20))])


def _replace_unknown_letters() -> None:
    """Write characters that the terminal's encoding lacks as escapes; replace a closed stream by the null device."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (it lives as long as we do)
        elif mode == "w" and isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Discard buffered output, since Python would try to write it again at exit, and fail again."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # An output that is no file, as under a test.
        return
