from __future__ import annotations

import torch

from vla_policies.modules.activation_checkpointing import checkpoint_fn, store_activations, store_inputs


def test_blocks_are_run_again_only_where_gradients_are_wanted() -> None:
    assert checkpoint_fn(recompute=True) is store_inputs
    assert checkpoint_fn(recompute=False) is store_activations
    with torch.no_grad():
        assert checkpoint_fn(recompute=True) is store_activations


def test_stored_inputs_give_the_same_gradient_and_a_second_run() -> None:
    runs = []

    def block(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        return x.sin().exp()

    gradients = []
    for run in (store_activations, store_inputs):
        x = torch.tensor([0.3, 2.0], requires_grad=True)
        run(block, x).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(gradients[0], gradients[1])
    assert len(runs) == 3
