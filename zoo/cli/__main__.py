"""`python -m zoo.cli COMMAND ...`: the console script without installing it."""

from zoo.cli.main import main

raise SystemExit(main())
