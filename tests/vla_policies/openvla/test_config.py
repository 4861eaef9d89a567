from __future__ import annotations

from typing import Any

import pytest

from vla_gym.errors import BadValue, UnknownName
from vla_policies.checkpoint_io.json_records import from_json
from vla_policies.openvla.config import Settings, check_options, stored_dtype


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": "L1"}, "no head of options 'L1'. Known: l1, tokens. Did you mean 'l1'?"),
        (
            {"bounds": "minmax"},
            "no bounds of options 'minmax'. Known: min_max, q01_q99. Did you mean 'min_max'?",
        ),
        ({"recompute": "false"}, "recompute of options must be true or false, got 'false'"),
        ({"lora": True}, "lora of options must be a mapping or null, got True"),
        ({"lora": {"rank": 4, "targets": ["q_proj"]}}, None),
    ],
)
def test_settings_are_checked(options: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert from_json(Settings, options, "options").lora == options["lora"]
        return
    with pytest.raises((BadValue, UnknownName)) as caught:
        from_json(Settings, options, "options")
    assert str(caught.value) == message


@pytest.mark.parametrize("gib", [-1, float("nan")])
def test_kept_features_are_checked_before_anything_is_built(gib: float) -> None:
    with pytest.raises(BadValue, match="cache_features must be GiB >= 0"):
        from_json(Settings, {"cache_features": gib}, "options")


@pytest.mark.parametrize("name", ["head", "use_state", "stop_token"])
def test_what_openvla_does_not_read_is_no_setting_of_it(name: str) -> None:
    with pytest.raises(UnknownName, match=f"no setting in backbone_kwargs of openvla '{name}'"):
        check_options({name: False}, "openvla")
    check_options({name: False}, "openvla-oft")


def test_transformers_4_and_5_name_the_type_of_the_weights_differently() -> None:
    for official, stored in (
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({}, "float32"),
    ):
        assert stored_dtype(official) == stored
