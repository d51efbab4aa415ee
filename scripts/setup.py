"""Make `.venv` and install palaestra with some of its extras into it, pinned by constraints.txt: `make setup`.

What is always there is what the first hour needs. `make setup EXTRAS="code search"` installs more extras of
pyproject.toml (`dev` is all of them), and what was once installed stays: extras add up, and follow their versions.

Standard library only, and syntax that an old Python can still read, so that it can say it is too old.
Which torch: one that python3 already has is kept (a GPU machine brings its own); otherwise a CPU build,
which is a tenth of the size. To choose yourself, give pip's arguments, or `keep` to leave torch alone:

    PALAESTRA_TORCH="torch==2.13.0" make setup
    PALAESTRA_TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cu130" make setup
    PALAESTRA_TORCH=keep make setup
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "palaestra-setup"
CONSTRAINTS = ROOT / "constraints.txt"
FIRST_HOUR = ("train", "plot")
OLDEST_PYTHON = (3, 11)
OLDEST_TORCH = (2, 9)
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_SECONDS = 20
VENV_REMEDY = "on Debian and Ubuntu: apt-get install python3-venv"


def main():
    use_a_new_enough_python()
    wanted_torch = os.environ.get("PALAESTRA_TORCH", "").strip()
    wanted_extras = {*FIRST_HOUR, *re.split(r"[\s,]+", " ".join(sys.argv[1:]).strip())} - {""}
    done = STAMP.read_text().split("\n") if STAMP.is_file() and PYTHON.exists() else []
    print_of, torch, extras = (*done, "", "", "")[:3]
    extras = set(extras.split())
    if print_of == fingerprint() and wanted_torch in ("", "keep", torch) and wanted_extras <= extras:
        say(".venv is up to date")
        return
    require_known(wanted_extras)
    make_venv()
    STAMP.unlink(missing_ok=True)
    pip("install", *constrained("setuptools"), doing="the build tool")
    install_torch(wanted_torch)
    extras = sorted(wanted_extras | extras)
    install_palaestra(extras)
    STAMP.write_text("\n".join((fingerprint(), wanted_torch or torch, " ".join(extras))))
    say("done; `make demo` shows what it is for, `make help` the rest")


def require_known(extras):
    """Stop if pyproject.toml has no such extra; pip would only warn."""
    section = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    known = re.findall(r"^([\w-]+) = \[", section, re.MULTILINE)
    unknown = sorted(extras - set(known))
    if unknown:
        stop("there is no extra named " + ", ".join(unknown), "the extras are " + ", ".join(known))


def use_a_new_enough_python():
    """Go on under another python3.x of this machine when the one that runs this is too old."""
    if sys.version_info[:2] >= OLDEST_PYTHON:
        return
    for minor in (13, 12, 11):
        found = shutil.which(f"python3.{minor}")
        # Asked, not believed: version managers put names on the path that only print an error.
        if found and run(found, "-c", "pass", quiet=True) == 0:
            os.execv(found, [found, *sys.argv])
    stop(
        "python3 is {}.{}; palaestra needs 3.11 or newer".format(*sys.version_info[:2]),
        "install one (Debian, Ubuntu: apt-get install python3 python3-venv), or: make setup PYTHON=/path/to/python",
    )


def fingerprint():
    """Changes with everything that decides what is installed, and with the place: an editable install names it."""
    state = hashlib.sha256(str(ROOT).encode())
    for path in (ROOT / "pyproject.toml", CONSTRAINTS, Path(__file__)):
        state.update(path.read_bytes())
    return state.hexdigest()


def make_venv():
    """Create `.venv`; one that exists and runs is kept."""
    if PYTHON.exists() and run(PYTHON, "-m", "pip", "--version", quiet=True) == 0:
        return
    if not (has_module("venv") and has_module("ensurepip")):
        stop(f"{sys.executable} cannot make virtual environments: it has no venv or ensurepip module", VENV_REMEDY)
    shares_torch = outer_torch() is not None
    say(f"making .venv from {sys.executable} ({sys.version.split()[0]})")
    options = ["--clear", "--system-site-packages"] if shares_torch else ["--clear"]
    if run(sys.executable, "-m", "venv", *options, VENV) != 0:
        stop("the virtual environment could not be made (see above)", VENV_REMEDY)
    if shares_torch and sys.prefix != sys.base_prefix:
        # python3 is itself a virtual environment; what the new one shares is the Python below both, so add this one's.
        (target,) = VENV.glob("lib/python3*/site-packages")
        shared = [path for path in sys.path if path.endswith("site-packages")]
        (target / "outer_site.pth").write_text("\n".join(shared) + "\n")


def outer_torch():
    """The version of the torch that python3 brings, if that is new enough to keep."""
    import importlib.metadata  # here, because an old Python has no such module

    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    if tuple(int(part) for part in version.split(".")[:2]) >= OLDEST_TORCH:
        return version
    say(f"python3 has torch {version}, too old to keep")
    return None


def venv_torch():
    """The version of the torch that `.venv` sees, or "" without one."""
    code = "import importlib.metadata as m\ntry: print(m.version('torch'))\nexcept m.PackageNotFoundError: pass"
    return subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def install_torch(wanted):
    """Bring torch in, without its dependencies: those come with palaestra's, under the constraints."""
    present = venv_torch()
    if wanted == "keep":
        if not present:
            stop("PALAESTRA_TORCH=keep, but there is no torch to keep", "unset it, or give a requirement for pip")
        say(f"keeping torch {present}")
        return
    if wanted:
        pip("install", "--no-deps", *shlex.split(wanted), doing=wanted)
        return
    if present:
        say(f"keeping torch {present}")
        return
    torch = "torch==" + pins()["torch"]
    if pip("install", "--no-deps", f"{torch}+cpu", doing=f"{torch}+cpu", may_fail=True):
        return
    if answers(CPU_INDEX):
        source = ("--index-url", CPU_INDEX)
        if pip("install", "--no-deps", torch, *source, doing=f"{torch} from {CPU_INDEX}", may_fail=True):
            return
    pip("install", "--no-deps", torch, doing=f"{torch} as the package index has it (gigabytes, with CUDA, on Linux)")


def install_palaestra(extras):
    """The editable install with these extras. Whatever torch is there stays, and so may the versions it asks for."""
    torch = venv_torch()
    rules = VENV / "constraints.txt"
    if torch.split("+")[0] == pins()["torch"]:
        rules.write_text(CONSTRAINTS.read_text())
    else:
        free = {"torch", *torch_requirements()}
        lines = [f"{name}=={version}\n" for name, version in pins().items() if normal(name) not in free]
        rules.write_text("".join(lines) + f"torch==={torch}\n")
    # Not isolated: the build uses the pinned setuptools and needs no second download.
    what = f"palaestra[{','.join(extras)}]"
    pip("install", "--no-build-isolation", "-c", rules, "-e", f".{what[9:]}", doing=f"{what} and what it needs")


def torch_requirements():
    """The names that the torch in `.venv` depends on."""
    code = "import importlib.metadata as m; print('\\n'.join(m.requires('torch') or []))"
    lines = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout.split("\n")
    return {normal(re.match(r"[\w.-]*", line).group()) for line in lines}


def pins():
    """constraints.txt as {name: version}."""
    lines = [line.split("#")[0].strip() for line in CONSTRAINTS.read_text().splitlines()]
    return dict(line.split("==") for line in lines if line)


def constrained(*names):
    return [f"{name}=={pins()[name]}" for name in names]


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def has_module(name):
    return run(sys.executable, "-c", f"import {name}", quiet=True) == 0


def answers(url):
    """Whether a server answers soon; in a process of its own, because looking up a name knows no deadline."""
    code = f"import urllib.request; urllib.request.urlopen({url + '/torch/'!r}, timeout={PROBE_SECONDS}).close()"
    try:
        return run(sys.executable, "-c", code, quiet=True, timeout=PROBE_SECONDS) == 0
    except subprocess.TimeoutExpired:
        return False


def pip(*arguments, doing, may_fail=False):
    """Run pip in `.venv`; on failure say what to do, unless the caller has another way."""
    say(f"installing {doing}")
    options = ("--disable-pip-version-check", "--retries", "10", "--timeout", "60")
    # Most modules are never imported. Python compiles the others when they are, if it may write what it compiled.
    later = () if sys.dont_write_bytecode else ("--no-compile",)
    command = [PYTHON, "-m", "pip", *options, arguments[0], "-qq", *later, *arguments[1:]]
    if may_fail:
        done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or ["pip said nothing"]
            say(f"not so: {said[-1]}")
        return done.returncode == 0
    if run(*command) != 0:
        shown = " ".join(shlex.quote(str(part)) for part in command)
        remedy = f"check the network and pip's index, then again: make setup\n  the command: {shown}"
        stop(f"pip could not install {doing} (see above)", remedy)
    return True


def run(*command, quiet=False, timeout=None):
    words = [str(part) for part in command]
    sink = subprocess.DEVNULL if quiet else None
    return subprocess.run(words, cwd=ROOT, stdout=sink, stderr=sink, timeout=timeout).returncode


def say(text):
    print(f"setup: {text}", flush=True)


def stop(problem, remedy):
    sys.exit(f"setup: {problem}\nsetup: {remedy}")


if __name__ == "__main__":
    main()
