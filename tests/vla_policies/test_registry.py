import pytest

import vla_policies


def test_public_names_are_what_they_say() -> None:
    for name in vla_policies.__all__:
        assert getattr(vla_policies, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'VLAPolicies'"):
        vla_policies.VLAPolicies  # noqa: B018
