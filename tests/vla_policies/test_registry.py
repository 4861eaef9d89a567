import pytest

import vla_policies
from vla_policies.registry import FAMILIES, family_class


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_loads_and_knows_its_name(family: str) -> None:
    assert family_class(family).family == family


def test_public_names_are_what_they_say() -> None:
    for name in vla_policies.__all__:
        assert getattr(vla_policies, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'VLAPolicies'"):
        vla_policies.VLAPolicies  # noqa: B018
