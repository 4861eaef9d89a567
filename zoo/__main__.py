"""`python -m zoo COMMAND ...`: the console script `vla-zoo` without installing it."""

from zoo.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
