"""The sum of a 7B's memory, against published counts and hand-worked products."""

from __future__ import annotations

from vla_policies.openvla.memory import CHUNK, budget, table
from vla_policies.openvla_oft.policy import BASE


def test_a_7b_with_adapters_fits_one_80_gb_gpu() -> None:
    assert BASE.chunk == CHUNK
    items = budget(micro_batch=8)
    size = {item.name.split(",")[0]: item.size for item in items}
    # 982 tensors of the published checkpoint, and r (in + out) of every adapted layer.
    assert size["weights"] == 2 * 7_541_237_184
    assert size["adapters of rank 32"] == 16 * 110_828_288
    # 4096 x 512 + 512, 512 x 128 + 128, 128 x 1.
    assert size["critic"] == 16 * (2_097_664 + 65_664 + 128)
    # 256 patches, 40 words, 56 slots and the stop token, 32 layers deep, bf16.
    assert size["inputs of the Llama layers"] == 32 * 8 * 353 * 4096 * 2
    # 23 blocks of 261 x 1024 and 26 of 256 x 1152: each tower's last block is not run.
    assert size["inputs of the image blocks"] == 8 * 2 * (23 * 261 * 1024 + 26 * 256 * 1152)
    assert sum(item.size for item in items) < 80e9
    assert len(table(items).splitlines()) == len(items) + 1


def test_what_a_layer_keeps_grows_with_the_batch_alone() -> None:
    small, large = (budget(size="tiny", rank=4, micro_batch=count) for count in (1, 4))
    sizes = [{item.name: item.size for item in items} for items in (small, large)]
    for name in (
        "inputs of the Llama layers",
        "inputs of the image blocks",
        "one Llama layer computed again",
    ):
        assert sizes[0][name] > 0
        # The tables of cosines and sines are the same for every row.
        assert 3.9 < sizes[1][name] / sizes[0][name] <= 4.0
    assert sizes[0]["weights, bf16, frozen"] == sizes[1]["weights, bf16, frozen"]
