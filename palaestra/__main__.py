"""Run the command line as `python -m palaestra`, if the script `palaestra` is not on the path."""

from palaestra.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
