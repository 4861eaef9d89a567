"""The suite's things beside the published pack."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from vla_gym.adapters.plate25.catalogue import OBJECTS, PLATES, TABLES


def test_the_catalogue_is_the_pack_s_own(sample: Path) -> None:
    for kind, things in (("carrot", OBJECTS), ("plate", PLATES)):
        db = json.loads((sample / "carrot" / f"more_{kind}" / "model_db.json").read_text(encoding="utf-8"))
        assert list(db) == [thing.folder for thing in things]
        for thing in things:
            entry = db[thing.folder]
            assert (entry["name"], entry["density"]) == (thing.name, thing.density)
            assert (entry["bbox"]["min"], entry["bbox"]["max"]) == (list(thing.low), list(thing.high))
            assert entry["scales"] == [1.0]
    db = json.loads((sample / "carrot" / "more_table" / "model_db.json").read_text(encoding="utf-8"))
    rows = [(name, entry["texture"], entry["mix"]) for name, entry in db.items()]
    assert rows == [dataclasses.astuple(table) for table in TABLES]
