import torch

from vla_policies.autocasting import as_written, autocast_type


def test_products_keep_their_types_inside() -> None:
    x = torch.ones(2, 2)
    assert autocast_type(x) is None
    with as_written(x):
        assert (x @ x).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert autocast_type(x) == (x @ x).dtype == torch.bfloat16
        with as_written(x):
            assert autocast_type(x) is None
            assert (x @ x).dtype == torch.float32
        assert (x @ x).dtype == torch.bfloat16


def test_tensors_without_memory_have_no_autocast() -> None:
    x = torch.ones(2, 2, device="meta")
    assert autocast_type(x) is None
    with as_written(x):
        assert (x @ x).shape == (2, 2)
