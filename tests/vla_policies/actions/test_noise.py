"""A slot's numbers follow from seed, decision and slot, in whatever company they are asked for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vla_policies.actions.noise import TORCH_NOISE, EpisodeDecision, EpisodeNoise, SlotNoise

CPU = torch.device("cpu")


def noise(slots: list[int], *, seed: int = 7, decision: tuple[int, int] = (3, 5)) -> SlotNoise:
    return SlotNoise(seed, decision, np.array(slots))


@pytest.mark.parametrize("slots", [[0, 1], [2, 3], [1, 3], [3]])
@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
def test_a_slot_gets_the_same_numbers_in_any_company(slots: list[int], shape: tuple[int, ...]):
    whole, part = noise([0, 1, 2, 3]), noise(slots)
    for _ in range(2):
        every = whole.uniform(4, *shape, device=CPU)
        assert torch.equal(part.uniform(len(slots), *shape, device=CPU), every[slots])
    assert torch.equal(part.normal(len(slots), *shape, device=CPU), whole.normal(4, *shape, device=CPU)[slots])


def test_seeds_decisions_calls_and_slots_all_matter():
    slots = noise([0, 1])
    drawn = [
        slots.uniform(2, 8, device=CPU),
        slots.uniform(2, 8, device=CPU),
        noise([0, 1], seed=8).uniform(2, 8, device=CPU),
        noise([0, 1], decision=(4, 5)).uniform(2, 8, device=CPU),
        noise([0, 1], decision=(3, 6)).uniform(2, 8, device=CPU),
    ]
    rows = torch.cat(drawn)
    assert len(torch.unique(rows)) == rows.numel()


def test_uniform_and_normal_have_their_moments():
    many = SlotNoise(0, (0, 0), np.arange(1000))
    uniform, normal = many.uniform(1000, 100, device=CPU), many.normal(1000, 100, device=CPU)
    # Standard errors of 1e5 draws: 0.0009 and 0.003.
    assert uniform.mean().item() == pytest.approx(0.5, abs=0.004)
    assert uniform.std().item() == pytest.approx(12**-0.5, abs=0.004)
    assert (uniform >= 0).all()
    assert (uniform < 1).all()
    assert normal.dtype == torch.float32
    assert normal.mean().item() == pytest.approx(0.0, abs=0.013)
    assert normal.std().item() == pytest.approx(1.0, abs=0.013)
    assert torch.isfinite(normal).all()


def test_without_slots_the_global_generator_is_used():
    torch.manual_seed(0)
    first = TORCH_NOISE.normal(2, 3, device=CPU)
    torch.manual_seed(0)
    assert torch.equal(first, torch.randn(2, 3))


def episodes(*decisions: tuple[int, int, int, int], seed: int = 7) -> EpisodeNoise:
    return EpisodeNoise(seed, [EpisodeDecision(*decision) for decision in decisions])


def test_an_episode_gets_the_same_numbers_in_any_company():
    whole = episodes((0, 3, 0, 5), (2, 1, 1, 0), (9, 49, 0, 12))
    alone = episodes((2, 1, 1, 0))
    for _ in range(2):
        assert torch.equal(alone.uniform(1, 3, 2, device=CPU)[0], whole.uniform(3, 3, 2, device=CPU)[1])
    assert torch.equal(alone.normal(1, 5, device=CPU)[0], whole.normal(3, 5, device=CPU)[1])


def test_seed_start_state_round_decision_and_call_all_matter():
    noise = episodes((0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1))
    drawn = [
        noise.uniform(5, 8, device=CPU),
        noise.uniform(5, 8, device=CPU),
        episodes((0, 0, 0, 0), seed=8).uniform(1, 8, device=CPU),
        # Training's numbers of the same seed.
        SlotNoise(7, (0, 0), np.arange(4)).uniform(4, 8, device=CPU),
    ]
    rows = torch.cat(drawn)
    assert len(torch.unique(rows)) == rows.numel()
