"""Make an environment with vLLM's CPU build for `make test-vllm`, and print the path of its Python as the last line.

Quick when it is there: .venv-vllm. PALAESTRA_VLLM, if it is set, names a Python that has vLLM already.
"""

import os
import sys
from pathlib import Path

from palaestra.agents.engines.vllm.environment import PINS, environment
from palaestra.errors import UsageError

FOLDER = Path(__file__).resolve().parent.parent / ".venv-vllm"


def main():
    """Print the path; everything else goes to standard error."""
    named = os.environ.get("PALAESTRA_VLLM", "").strip()
    if named:
        print(named)
        return
    print(f"vllm: {' and '.join(PINS['cpu'])} in {FOLDER.name}; making it takes minutes", file=sys.stderr, flush=True)
    try:
        print(environment(FOLDER, "cpu"))
    except UsageError as error:
        sys.exit(f"vllm: {error}")


if __name__ == "__main__":
    main()
