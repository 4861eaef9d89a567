"""The pretended GPU finds planted faults, and policies on it compute what they compute on the CPU, within budgets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import emulated_cases
import planted_faults
import pytest
from emulated_cases import FAMILIES, LORA, TINY, VARIANTS, Costs, Learnt, Recorded

pytestmark = [pytest.mark.emulated, pytest.mark.processes]
Run = Callable[..., Any]

BUDGETS = {
    # Launches of: act, evaluate; 3 to 15 % above what was counted when they were written.
    "nano": (135, 130),
    "nano-flow": (660, 250),
    "openvla": (1150, 490),
    "openvla-oft": (395, 395),
    "pi0": (1000, 450),
    "pi05": (920, 350),
    "smolvla": (1030, 475),
}
"""Two layers deep, two observations; tokens' adapters of rank 4 (OpenVLA), two cameras and four steps (pi0)."""


@pytest.mark.parametrize("fault", planted_faults.REFUSED)
def test_what_cuda_refuses_is_refused(on_device: Run, fault: str) -> None:
    assert on_device(planted_faults.refusal, fault)


@pytest.mark.parametrize("fault", planted_faults.WAITED_FOR)
def test_a_wait_is_found_at_its_place(on_device: Run, fault: str) -> None:
    waits, uploads = on_device(planted_faults.found, fault)
    (place,) = waits
    assert "planted_faults.py:" in place
    assert (waits.total(), uploads) == (1, 0)


@pytest.mark.parametrize(("fault", "uploads"), [(name, one[0]) for name, one in planted_faults.UPLOADED.items()])
def test_uploads_are_counted_and_waited_for_unless_pinned(on_device: Run, fault: str, uploads: int) -> None:
    waits, counted = on_device(planted_faults.found, fault)
    assert counted == uploads
    assert waits.total() == (0 if "pinned" in fault else uploads)


def test_launches_are_those_of_cudas_kernels(on_device: Run) -> None:
    # Views cost nothing; grouped heads with a mask have no fused kernel.
    assert on_device(planted_faults.kernels) == {"mm": 1, "rms_norm": 1, "attention": 1, "math_attention": 9}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_policy_computes_as_on_the_cpu_and_waits_once(on_device: Run, name: str) -> None:
    family, options = VARIANTS[name]
    costs: Costs = on_device(emulated_cases.costs, family, options, one_length=name in FAMILIES)
    assert costs.gap <= 5e-6
    assert costs.ratio_gap == 0.0
    assert costs.restored
    # Decisions come back in one piece; scoring and the step ask for nothing.
    waits = [costs.act["waits"], costs.evaluate["waits"], costs.update["waits"]]
    assert waits == [1, 0, 0], costs.waits
    if name in BUDGETS:
        assert costs.act["launches"] <= BUDGETS[name][0]
        assert costs.evaluate["launches"] <= BUDGETS[name][1]


RECORDED = [("nano", False), ("openvla-oft", False), ("pi0", True)]
OTHERS = [("pi05", True), ("openvla-oft without adapters", False), *((name, False) for name in FAMILIES)]


@pytest.mark.parametrize(
    ("name", "keep"),
    [*RECORDED, *(pytest.param(*one, marks=pytest.mark.thorough) for one in OTHERS if one not in RECORDED)],
)
def test_decisions_are_recorded_once_and_played(on_device: Run, name: str, keep: bool) -> None:
    family, options = VARIANTS[name]
    found: Recorded = on_device(emulated_cases.recorded, family, options, keep=keep)
    assert found.gap <= 1e-5
    assert (found.uploads, found.waits, found.drawn) == (0, 0, [])
    assert found.same_trace
    # An update in place is seen by what was recorded; weights that lie elsewhere are recorded again.
    once = 2 if keep else 1
    assert found.recordings == [once, once, 3 * once]


def test_kept_features_go_to_main_memory_and_come_back(on_device: Run) -> None:
    read, made, devices = on_device(emulated_cases.evicted_rows)
    assert read == [[97.0], [98.0], [99.0], [100.0]]
    assert made == [[0, 1], [0, 1], [], [0], [0]]  # "e" pushes "c" out, which pushes "a" away
    assert devices == {"emulated"}


@pytest.mark.parametrize("family", ["openvla", "openvla-oft"])
def test_adapters_are_not_cast_at_every_decision(on_device: Run, family: str) -> None:
    options = {**TINY, "lora": LORA, "dtype": "bfloat16"}
    costs: Costs = on_device(emulated_cases.costs, family, options, cpu=False)
    # Preprocessing, sampling and heads; not two for each adapter in each of OpenVLA's eight passes.
    assert costs.act["casts"] <= 80
    assert costs.ratio_gap == 0.0


@pytest.mark.parametrize(
    ("family", "options", "settings"),
    [
        ("nano", FAMILIES["nano"], {"micro_batch_size": 4}),
        ("nano-flow", FAMILIES["nano-flow"], {}),
        ("openvla-oft", {**TINY, "lora": LORA}, {"kl_coef": 0.1}),
    ],
)
def test_an_update_waits_once_for_each_step(
    on_device: Run, family: str, options: dict[str, Any], settings: dict[str, Any]
) -> None:
    learnt: Learnt = on_device(emulated_cases.learn, family, options, settings)
    assert learnt.waits_per_step == 1.0, learnt.waits
    assert learnt.waits_per_decision == 1.0, learnt.waits
    assert learnt.gap <= 1e-5


@pytest.mark.parametrize(
    ("family", "options"),
    [("nano", FAMILIES["nano"]), ("openvla-oft", {**TINY, "lora": LORA}), ("pi0", FAMILIES["pi0"])],
)
def test_a_step_of_fine_tuning_waits_for_its_loss_and_its_gradient_alone(
    on_device: Run, family: str, options: dict[str, Any]
) -> None:
    waits, gap = on_device(emulated_cases.imitate, family, options)
    # For the norm twice: whether to step, and to be logged.
    assert len(waits) == 3, waits
    assert gap <= 1e-5


@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("qc", {"learning_starts": 8, "batch_size": 8, "updates_per_decision": 0.2, "imitate": "better_half"}),
        pytest.param(
            *("recap", {"batch_size": 8, "updates": 2, "value_updates": 2, "guidance": 2.0}), marks=pytest.mark.thorough
        ),
        pytest.param(
            *("dsrl", {"learning_starts": 8, "batch_size": 8, "updates_per_decision": 0.2}), marks=pytest.mark.thorough
        ),
    ],
)
def test_a_replay_is_learned_as_on_the_cpu(on_device: Run, algo: str, settings: dict[str, Any]) -> None:
    assert on_device(emulated_cases.learn_from_replay, algo, settings) <= 1e-3


@pytest.mark.parametrize("scheme", [None, "int8"])
def test_merged_weights_take_no_memory_of_the_device(on_device: Run, scheme: str | None) -> None:
    assert on_device(emulated_cases.merged_gap, scheme) <= 1e-6
