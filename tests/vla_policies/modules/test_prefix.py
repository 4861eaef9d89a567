import torch

from vla_policies.modules.gemma import GemmaLayer, GemmaShape, make_norm
from vla_policies.modules.prefix import join_prefixes, masked_mean, run_prefix, split_prefix


def test_masked_mean_by_hand() -> None:
    x = torch.tensor([[[2.0], [4.0], [100.0]]])
    assert masked_mean(x, torch.tensor([[True, True, False]])).tolist() == [[3.0]]


def test_rows_apart_and_together_again_are_the_prefix() -> None:
    torch.manual_seed(0)
    shape = GemmaShape(width=8, mlp_dim=16, depth=2, num_heads=2, head_dim=4)
    layers = [GemmaLayer(shape, adaptive=False) for _ in range(2)]
    mask_BL = torch.tensor([[True, True, True], [True, False, False]])
    whole = run_prefix(
        layers,
        make_norm(8, adaptive=False),
        torch.randn(2, 3, 8),
        mask_BL,
        head_dim=4,
        recompute=False,
        with_hidden=True,
    )
    again = join_prefixes(split_prefix(whole))
    assert torch.equal(again.mask_BL, mask_BL)
    assert whole.hidden_BLW is not None
    assert again.hidden_BLW is not None
    assert torch.equal(again.hidden_BLW[mask_BL], whole.hidden_BLW[mask_BL])
    for one, other in zip(again.layers, whole.layers, strict=True):
        assert torch.equal(one.key_BCLF.transpose(1, 2)[mask_BL], other.key_BCLF.transpose(1, 2)[mask_BL])
        assert (one.value_BCLF[1, :, 1:] == 0).all()
