from __future__ import annotations

from typing import Any

import pytest

from vla_gym.errors import BadValue, UnknownName
from vla_policies.checkpoint_io.json_records import from_json
from vla_policies.openvla.config import Settings


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
