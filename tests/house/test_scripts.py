"""What the scripts count is zero: circles of imports, classes of one name, public names that name nothing."""

import subprocess
import sys

from sources import ROOT


def test_house_finds_no_circle() -> None:
    require_success("house.py")


def test_plain_finds_no_class_clash_and_no_empty_public_name() -> None:
    require_success("plain.py", "--list")


def require_success(script: str, *options: str) -> None:
    """Run a script with --strict on this checkout; fail with its output if its exit status is not 0."""
    command = [sys.executable, ROOT / "scripts" / script, ROOT, "--strict", *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
