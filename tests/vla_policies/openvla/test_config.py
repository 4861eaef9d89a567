from __future__ import annotations

import pytest

from vla_gym.errors import UnknownName
from vla_policies.openvla.config import check_options, stored_dtype


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
