"""Set up a Chromium for `make test-browser` and `make pictures`, and print its path as the last line.

Standard library only. A browser that is there is taken: the one that CHROMIUM names, or chromium or google-chrome on
the path. Otherwise Debian's own is installed with apt-get, as root or with sudo. Playwright drives it; its own download
of a browser is never used.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

PLAYWRIGHT = "1.65.2"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 900
UPDATES = 4


def main():
    """Print the path of a Chromium that starts; everything else goes to standard error."""
    browser = find() or install()
    said = run(browser, "--version")
    if said is None:
        stop(f"{browser} does not start", "name another with CHROMIUM=/path/to/chromium")
    say(said.strip())
    need_playwright()
    print(browser)


def find():
    """The path of a browser on this machine, or None."""
    named = os.environ.get("CHROMIUM", "").strip()
    if named:
        found = shutil.which(named)
        if found is None:
            stop(f"CHROMIUM is {named!r}, which is no program", "unset it, or give the path of a Chromium or Chrome")
        return found
    return next(filter(None, map(shutil.which, NAMES)), None)


def install():
    """Debian's chromium, by apt-get."""
    remedy = "install Chromium or Chrome yourself, or name one with CHROMIUM=/path"
    if shutil.which("apt-get") is None:
        stop("there is no Chromium, and no apt-get to install one with", remedy)
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if as_root and shutil.which("sudo") is None:
        stop("there is no Chromium, and installing one needs root or sudo", remedy)
    say("installing chromium with apt-get")
    patient = ["-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3"]
    quiet = [*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-y", "-qq", *patient]
    # Another apt-get may hold the lock of the lists, for which no time-out of its own holds.
    if not any(run(*quiet, "update") is not None or time.sleep(15) for _ in range(UPDATES)):
        stop("apt-get update failed", remedy)
    if run(*quiet, "install", "--no-install-recommends", "chromium") is None:
        stop("apt-get install failed", remedy)
    found = find()
    if found is None:
        stop("apt-get installed chromium, but none is on the path", remedy)
    return found


def need_playwright():
    """The library, pinned; only the one that runs this is asked."""
    try:
        if importlib.metadata.version("playwright") == PLAYWRIGHT:
            return
    except importlib.metadata.PackageNotFoundError:
        pass
    say(f"installing playwright {PLAYWRIGHT}")
    environment = {**os.environ, "PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD": "1"}
    constraints = Path(sys.prefix) / "constraints.txt"
    held = ["-c", str(constraints)] if constraints.is_file() else []
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *held]
    words += ["--retries", "10", "--timeout", "60"]
    if run(*words, f"playwright=={PLAYWRIGHT}", env=environment) is None:
        stop("pip could not install playwright", "is the package index reachable?")


def run(*words, env=None):
    """What a command prints, or None if it fails; its complaints go to standard error."""
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=False, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        say(str(error))
        return None
    return done.stdout if done.returncode == 0 else None


def say(text):
    print(f"chromium: {text}", file=sys.stderr, flush=True)


def stop(found, remedy):
    say(f"{found}\n  {remedy}")
    raise SystemExit(2)


if __name__ == "__main__":
    main()
