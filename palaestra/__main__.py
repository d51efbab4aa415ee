"""The command line as `python -m palaestra`, where its script is not on the path."""

from palaestra.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
