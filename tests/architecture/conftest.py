"""`import_graph` of `scripts/` and `rooms` of this folder must be importable here."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "scripts"), str(Path(__file__).parent)]
