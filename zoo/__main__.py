"""`python -m zoo COMMAND ...`: the console script `vla-zoo` without installing it."""

from zoo.cli.main import main

raise SystemExit(main())
