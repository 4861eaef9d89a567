"""Tables of settings and recipes."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Literal

import pytest
from hyperparameter_pages import settings, settings_page, type_words

from vla_policies.actions.flow import FlowSettings
from vla_policies.nano.config import NanoConfig
from vla_policies.smolvla.config import Learning
from zoo.config.algorithm_configs import GRPOConfig, PPOConfig
from zoo.config.settings import Fraction, Range, Schedulable


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Annotated[int, Range(low=1)], "whole number, at least 1"),
        (Annotated[int, Range(low=1, high=1e6)], "whole number, 1 to 1000000"),
        (Fraction, "number, 0 to 1"),
        (Annotated[float, Range(above=0)] | None, "number, above 0 or null"),
        (Schedulable, "number or mapping"),
        (Literal["token", "chunk"], "token, chunk"),
        (tuple[float, float] | None, "2 x number or null"),
        (tuple[int, ...], "list of whole numbers"),
        (NanoConfig | None, "mapping or null"),
    ],
)
def test_types_in_words(annotation: object, words: str) -> None:
    assert type_words(annotation) == words


def test_a_setting_described_by_the_base_class_keeps_its_meaning_and_has_its_own_default() -> None:
    rows = {row[0]: row for row in settings(PPOConfig)}
    assert rows["`n_epochs`"][1].startswith("whole number, 1 to")
    assert rows["`n_epochs`"][2] == "`10`"
    assert rows["`n_epochs`"][3].startswith("Passes over a rollout")
    assert {row[0]: row for row in settings(GRPOConfig)}["`n_epochs`"][2] == "`1`"


def test_every_setting_has_a_row_with_a_meaning() -> None:
    page = settings_page()
    for config in (PPOConfig, GRPOConfig, NanoConfig, FlowSettings, Learning):
        assert {row[0] for row in settings(config) if not row[3]} == set()
        assert all(f"| `{field.name}` |" in page for field in fields(config))
