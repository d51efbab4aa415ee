"""`python -m palaestra`: the command line, for when its script is not on the path."""

from palaestra.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
