"""What a run measures before it begins."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vla_policies import VLAPolicy
from zoo.training.setup import splitting_pays


@pytest.mark.parametrize(
    ("seconds", "pays"), [(lambda num: 0.004, False), (lambda num: 0.001 * num, True)], ids=["launches", "arithmetic"]
)
def test_environments_are_split_where_half_of_them_decide_faster(
    seconds: Callable[[int], float], pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = VLAPolicy.from_pretrained("nano", backbone_kwargs={"size": "tiny"}, device="cpu")
    assert isinstance(splitting_pays(policy, 2), bool)  # its own observations can be decided on

    def predict(obs: dict[str, np.ndarray], *_: Any) -> None:
        time.sleep(seconds(len(obs["state"])))

    monkeypatch.setattr(policy, "predict_with_noise", predict)
    assert splitting_pays(policy, 8) == pays
