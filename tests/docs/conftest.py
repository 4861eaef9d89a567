"""The modules that write the site's pages must be importable here."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "docs" / "_ext"))
