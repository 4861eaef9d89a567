"""One process answers itself; several, which tell each other, are started in `test_launched.py`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from tests.zoo.launching import free_port
from vla_gym.errors import BadValue
from zoo.distributed.process_group import ProcessGroup, backends, check_device, join, launched_processes


def test_moments_are_mean_and_unbiased_deviation():
    assert ProcessGroup().moments(torch.tensor([1.0, 2.0, 3.0])) == pytest.approx((2.0, 1.0))
    assert ProcessGroup().moments(torch.tensor([5.0])) == (5.0, 0.0)
    assert ProcessGroup().moments(torch.zeros(0)) == (0.0, 0.0)


def test_moments_of_equal_numbers_have_no_spread():
    mean, std = ProcessGroup().moments(torch.full((1000,), 0.1))
    assert mean == pytest.approx(0.1)
    assert std == pytest.approx(0.0, abs=1e-12)


def test_one_rank_hears_itself():
    process_group = ProcessGroup()
    assert process_group.is_first
    assert process_group.all_reduce_sum(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    assert process_group.any(flag=True)
    assert not process_group.any(flag=False)
    assert process_group.all_gather_object({"a": [1]}) == [{"a": [1]}]
    assert process_group.broadcast_object("b") == "b"
    assert process_group.all_gather(torch.ones(2, 3)).shape == (2, 3)
    assert not process_group.has_flag("anything")


def test_the_given_tensor_is_left_alone():
    values = torch.ones(2, dtype=torch.float64)
    assert ProcessGroup().all_reduce_sum(values) is not values


def test_a_launcher_that_starts_one_process_for_many_is_found_out():
    assert launched_processes({}) == 1
    assert launched_processes({"WORLD_SIZE": "4"}) == 4
    assert launched_processes({"ACCELERATE_USE_CPU": "True"}) == 1
    with pytest.raises(BadValue, match="starts one process, whatever --num_processes"):
        launched_processes({"ACCELERATE_USE_CPU": "True", "MASTER_ADDR": "127.0.0.1"})
    with pytest.raises(BadValue, match="DeepSpeed is not supported"):
        launched_processes({"ACCELERATE_USE_DEEPSPEED": "true", "WORLD_SIZE": "2"})


def test_accumulation_by_accelerate_is_refused() -> None:
    assert launched_processes({"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1", "WORLD_SIZE": "2"}) == 2
    for size in ({}, {"WORLD_SIZE": "2"}):
        with pytest.raises(BadValue, match="gradient_accumulation_steps 4 of accelerate is not supported"):
            launched_processes({"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4", **size})


def test_eight_bits_are_refused() -> None:
    with pytest.raises(BadValue, match=r"fp8 of accelerate is not supported\. Allowed: no, bf16, fp16"):
        launched_processes({"ACCELERATE_MIXED_PRECISION": "fp8"})


def test_no_two_groups_of_a_process_share_a_flag() -> None:
    names = [group.new_flag() for group in (ProcessGroup(), ProcessGroup()) for _ in range(2)]
    assert len(set(names)) == 4


def test_cpu_and_auto_are_always_here() -> None:
    assert check_device("cpu") == torch.device("cpu")
    assert check_device("auto").type in ("cpu", "cuda")


@pytest.mark.parametrize(("device", "precision"), [("cpu", "highest"), ("cuda:1", "high"), ("auto", "high")])
def test_a_run_on_cuda_multiplies_in_tf32_and_one_on_a_cpu_does_not(
    monkeypatch: pytest.MonkeyPatch, device: str, precision: str
) -> None:
    set_to = ["highest"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", set_to.append)
    check_device(device)
    assert set_to == ["highest"]
    join(device)
    assert set_to[-1] == precision


@pytest.mark.parametrize(("device", "present"), [("cuda:1", [torch.device("cuda", 1)]), ("cuda", []), ("cpu", [])])
def test_the_gpu_that_was_asked_for_is_the_present_one(
    monkeypatch: pytest.MonkeyPatch, device: str, present: list[torch.device]
) -> None:
    """Pinned memory, generators and libraries' kernels are of the present device, else the first one."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda precision: None)
    check_device(device)
    assert chosen == []
    join(device)
    assert chosen == present


@pytest.mark.parametrize(
    ("name", "message"), [("gpu", "no device 'gpu'"), ("meta", "not supported"), ("cuda:77", "is not here")]
)
def test_a_device_that_is_not_here_is_named(name: str, message: str) -> None:
    with pytest.raises(BadValue, match=message):
        check_device(name)


@pytest.mark.parametrize(
    ("device", "wanted"),
    [("cuda", ["cpu", "cuda"]), ("cpu", ["cpu"])],
)
def test_each_device_has_its_backend_and_a_cpu_machine_no_nccl(device: str, wanted: list[str]) -> None:
    found = dist.distributed_c10d.BackendConfig(backends(device)).get_device_backend_map()
    assert [found[name] for name in wanted] == ["gloo", "nccl"][: len(wanted)]
    # Gloo's part meets under the name of the first device: on every machine the same.
    assert next(iter(found)) == "cpu"
    assert "nccl" not in found.values() or device == "cuda"


SILENT_RANK = """
import sys
from datetime import timedelta
import torch, torch.distributed as dist
from zoo.distributed.process_group import lost_ranks
dist.init_process_group("gloo", timeout=timedelta(seconds=2))
dist.barrier()
if dist.get_rank() == 1:
    sys.stdin.read()
with lost_ranks():
    dist.all_reduce(torch.zeros(1))
"""


@pytest.mark.processes
def test_a_rank_that_does_not_answer_is_not_said_to_have_ended() -> None:
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    first, second = (
        subprocess.Popen(
            [sys.executable, "-c", SILENT_RANK],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **meeting, "RANK": str(rank)},
        )
        for rank in range(2)
    )
    _, said = first.communicate(timeout=120)
    second.communicate(timeout=120)
    assert first.returncode == 1
    assert "LostRank: another process of the run has not answered in time: it hangs or is stopped" in said
