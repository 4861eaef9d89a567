"""FSDP2 on two processes makes the update one process makes, and what it saves opens on any number of them."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import yaml
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy

import zoo.train
from benchmarks.on_paper import sharded_bytes
from tests.zoo.distributed.fake_group import count
from tests.zoo.distributed.sharded_pass import compare_all
from tests.zoo.forks import as_ranks, code_of, forked
from tests.zoo.launching import CONFIGS, TOY, finish, first_checkpoint, only_run, same_tensors, start, train, updates
from vla_gym.errors import BadValue
from vla_gym.reading import file_sha256
from vla_policies import VLAPolicy
from vla_policies.checkpoint_io.manifest import read_manifest
from vla_policies.checkpoint_io.weights import write_safetensors
from zoo.distributed.fsdp import (
    check_learnable,
    learning_copy,
    num_replicas,
    offloaded_state,
    shard,
    sharding_settings,
    sync_weights,
)
from zoo.distributed.process_group import ProcessGroup
from zoo.files import put_folder
from zoo.runs.folder import RunFolder
from zoo.training import sharded_checkpoint
from zoo.training.checkpoint import load_moments, optimizer_tensors, write_checkpoint

FSDP = "one_node_fsdp2.yaml"
RUN = (*TOY, "--policy", "openvla-oft", "--seed", "1", "-n", "60", "--save-freq", "30", "--eval-episodes", "0")
PARAMS = ("num_envs:4", "n_steps:2", "batch_size:4", "n_epochs:2", "learning_rate:1e-4", "micro_batch_size:1")
POLICY = "policy_kwargs:{backbone_kwargs: {size: tiny}}"


def train_in(
    folder: Path, processes: int, *params: str, policy: str = POLICY, config: str = FSDP, precision: str = "no"
) -> Path:
    arguments = [*RUN, "-f", str(folder), "-params", *PARAMS, policy, *params]
    train(processes, arguments, config=config, precision=precision)
    return only_run(folder)


def same_updates(first: list[dict[str, float]], second: list[dict[str, float]]) -> None:
    """To 1e-4, but for explained variances, which divide by next to nothing here."""
    for left, right in zip(first, second, strict=True):
        for key in (key for key in left if "explained" not in key):
            assert left[key] == pytest.approx(right[key], rel=1e-4, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("resumed", [(1,), pytest.param((2, 4), marks=pytest.mark.thorough)])
def test_two_ranks_with_parts_make_the_update_of_one_with_all(resumed: tuple[int, ...], tmp_path: Path) -> None:
    """The parts are those of the real launcher; elsewhere forks are told what it tells."""
    alone = train_in(tmp_path / "alone", 1)
    finish(start(2, [*RUN, "-f", str(tmp_path / "parted"), "-params", *PARAMS, POLICY], config=FSDP))
    parted = only_run(tmp_path / "parted")
    same_updates(updates(alone), updates(parted))
    whole, sharded = first_checkpoint(alone), first_checkpoint(parted)
    assert whole.name == sharded.name
    for file in ("model.safetensors", "optimizer.safetensors"):
        same_tensors(whole, sharded, file, 1e-4)
    for processes in resumed:
        folder = tmp_path / str(processes)
        train(processes, ["-i", str(sharded), "-f", str(folder)], config=FSDP)
        same_updates(updates(only_run(folder)), updates(alone)[1:])
    VLAPolicy.from_pretrained(sharded, device="cpu").save_pretrained(tmp_path / "exported")
    same_tensors(tmp_path / "exported", sharded, "model.safetensors", 1e-9)
    assert not list((tmp_path / "exported").glob("optimizer*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallelism", "placement", "resumed"),
    [
        ((2, 2), "all", ()),
        pytest.param(None, "all", (2, 1), marks=pytest.mark.thorough),
        pytest.param(None, "env=0,rollout=1,actor=2-3", (), marks=pytest.mark.thorough),
    ],
)
def test_replicas_of_shards_and_the_ranks_that_learn_make_the_update_of_one(
    parallelism: tuple[int, int] | None, placement: str, resumed: tuple[int, ...], tmp_path: Path
) -> None:
    config = yaml.safe_load((CONFIGS / "two_nodes_fsdp2.yaml").read_text())
    for name in ("main_process_ip", "main_process_port", "rdzv_backend"):
        del config[name]
    config["num_machines"] = 1
    sizes = config.pop("parallelism_config")
    if parallelism is not None:
        names = ("parallelism_config_dp_replicate_size", "parallelism_config_dp_shard_size")
        assert sizes.keys() == set(names)
        config["parallelism_config"] = dict(zip(names, parallelism, strict=True))
    (tmp_path / "launch.yaml").write_text(yaml.safe_dump(config))
    arguments = [*RUN, "--placement", placement, "-f", str(tmp_path / "four"), "-params", *PARAMS, POLICY]
    train(4, arguments, config=str(tmp_path / "launch.yaml"))
    alone, four = train_in(tmp_path / "alone", 1), only_run(tmp_path / "four")
    same_updates(updates(alone), updates(four))
    for file in ("model.safetensors", "optimizer.safetensors"):
        same_tensors(first_checkpoint(alone), first_checkpoint(four), file, 1e-4)
    for processes in resumed:
        folder = tmp_path / str(processes)
        train(processes, ["-i", str(first_checkpoint(four)), "-f", str(folder)], config=FSDP)
        same_updates(updates(only_run(folder)), updates(alone)[1:])


@pytest.mark.parametrize("kind", ["fsdp", "hsdp"])
def test_a_minibatch_gathers_its_weights_once_and_sums_its_gradients_once(kind: str, tmp_path: Path) -> None:
    out, said = tmp_path / "found.json", tmp_path / "said"
    assert code_of(forked(lambda: count(kind, out), said)) == 0, said.read_text()
    # Four blocks of 256 x 256 + 256 numbers; gathered in bfloat16, summed in float32. Each of sixteen ranks, or of
    # eight in each replica, is left with its part.
    numbers = 4 * (256 * 256 + 256)
    parts = 16 if kind == "fsdp" else 8
    found = json.loads(out.read_text())
    gathered, reduced, averaged = (
        found.pop(name, [0, 0]) for name in ("allgather_base", "reduce_scatter_base", "allreduce")
    )
    assert not found
    assert gathered == [4, 2 * numbers]
    assert reduced == [4, 4 * numbers // parts]
    assert averaged == ([0, 0] if kind == "fsdp" else [4, 4 * numbers // parts])
    # In rings: of what is gathered all but the own part, of sums a part to each of the others, of averages both ways.
    sent = gathered[1] * (parts - 1) / parts + reduced[1] * (parts - 1) + averaged[1] * 2 * (1 / 2)
    assert sent == sharded_bytes(numbers, parts, 16 // parts)


@pytest.mark.parametrize("sizes", [{"dp_replicate_size": 2, "dp_shard_size": 4}, {"dp_shard_size": 8, "tp_size": 2}])
def test_a_parallelism_that_is_not_all_processes_is_refused(sizes: dict[str, int]) -> None:
    names = {f"PARALLELISM_CONFIG_{name.upper()}": str(size) for name, size in sizes.items()}
    environment = {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", "WORLD_SIZE": "16", **names}
    with pytest.raises(BadValue, match="parallelism_config"):
        num_replicas(environment)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("config", [FSDP, "cpu.yaml"])
def test_a_critic_warms_up_alone_on_two_ranks_as_on_one(config: str, tmp_path: Path) -> None:
    """Most parameters have no gradient then, and no rank may wait for it."""
    alone, two = (
        train_in(tmp_path / str(processes), processes, "critic_warmup_updates:1", config=config) for processes in (1, 2)
    )
    same_updates(updates(alone), updates(two))


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("config", [FSDP, "cpu.yaml"])
def test_in_mixed_precision_ratios_begin_at_one(config: str, tmp_path: Path) -> None:
    # A chunk's log-probability is a sum of many, which 16 bits would round by some per cent.
    rows = updates(train_in(tmp_path, 2, "logprob_level:chunk", config=config, precision="bf16"))
    assert len(rows) >= 2
    assert all(row["train/actor/ratio_first_gap"] == 0.0 for row in rows)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_policy_that_acts_in_bfloat16_goes_on_from_its_float32_masters(tmp_path: Path) -> None:
    less = "policy_kwargs:{backbone_kwargs: {size: tiny, dtype: bfloat16}}"
    whole_run = train_in(tmp_path / "whole", 2, policy=less, precision="bf16")
    early = first_checkpoint(whole_run)
    train(2, ["-i", str(early), "-f", str(tmp_path / "on")], config=FSDP, precision="bf16")
    resumed = only_run(tmp_path / "on")
    same_updates(updates(whole_run)[1:], updates(resumed))
    last = max((whole_run / "checkpoints").iterdir(), key=lambda path: int(path.name.removeprefix("step_")))
    assert last != early
    same_tensors(last, resumed / "checkpoints" / last.name, "optimizer.safetensors", 1e-6)


def test_what_is_trained_in_sixteen_bits_is_refused_unless_masters_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = nn.Linear(2, 1).to(torch.bfloat16)
    for name in ("ACCELERATE_USE_FSDP", "ACCELERATE_MIXED_PRECISION", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BadValue, match="weights that are trained must be float32"):
        check_learnable(policy)
    for name, value in (("ACCELERATE_USE_FSDP", "true"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(BadValue, match="float32"):
        check_learnable(policy)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    check_learnable(policy)
    monkeypatch.delenv("ACCELERATE_USE_FSDP")
    check_learnable(policy.requires_grad_(False))
    check_learnable(nn.Linear(2, 1))


@pytest.mark.parametrize(
    ("family", "options"), [("pi0", {}), ("openvla-oft", {"lora": {"rank": 2, "targets": ["q_proj"]}})]
)
def test_kept_features_are_refused_where_ranks_encode_together(
    family: str, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACCELERATE_USE_FSDP", raising=False)
    options = {"size": "tiny", "cache_features": 1.0, **options}
    policy = VLAPolicy.from_pretrained(family, backbone_kwargs=options, device="cpu")
    check_learnable(policy)
    for name, value in (("ACCELERATE_USE_FSDP", "true"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    for opened in (policy, policy.backbone):
        with pytest.raises(BadValue, match="kept features do not go with FSDP2"):
            check_learnable(opened)


def linear(dtype: torch.dtype) -> nn.Linear:
    """A policy of one trained weight that learns and one that has no gradient."""
    policy = nn.Linear(2, 1).to(dtype)
    policy.optimizer = torch.optim.AdamW(policy.parameters(), lr=0.1)
    return policy


def load(policy: nn.Linear, tensors: dict[str, torch.Tensor], folder: Path) -> None:
    save_file(tensors, folder / "optimizer.safetensors")
    load_moments(policy.optimizer, folder, policy.optimizer.state_dict())


@pytest.fixture
def saved() -> dict[str, torch.Tensor]:
    """Of a bfloat16 policy after a step of its weight alone, with what only float32 can say."""
    policy = linear(torch.bfloat16)
    policy.weight.sum().backward()
    policy.optimizer.step()
    tensors = optimizer_tensors(policy)
    torch.testing.assert_close(tensors["0.master"], policy.weight.detach().float())
    assert sorted(tensors) == ["0.exp_avg", "0.exp_avg_sq", "0.master", "0.step", "1.master"]
    return {**tensors, "0.exp_avg": torch.tensor([[1.0001, 2.0]]), "0.master": torch.tensor([[3.0001, 4.0]])}


def test_moments_and_masters_of_sixteen_bit_weights_keep_their_precision(
    saved: dict[str, torch.Tensor], alone: DeviceMesh, tmp_path: Path
) -> None:
    acting = linear(torch.bfloat16)
    learning = learning_copy(acting)
    shard(learning, learning.optimizer, alone, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    load(learning, saved, tmp_path)
    assert torch.equal(learning.optimizer.state[learning.weight]["exp_avg"].full_tensor(), saved["0.exp_avg"])
    assert torch.equal(learning.weight.detach().full_tensor(), saved["0.master"])
    assert acting.weight.dtype == torch.bfloat16
    # What had no gradient has a master and no moments.
    assert learning.bias not in learning.optimizer.state
    assert torch.equal(optimizer_tensors(acting)["0.master"].full_tensor(), saved["0.master"])


def test_a_float32_policy_goes_on_from_masters_and_keeps_none(saved: dict[str, torch.Tensor], tmp_path: Path) -> None:
    policy = linear(torch.float32)
    load(policy, saved, tmp_path)
    assert torch.equal(policy.weight.detach(), saved["0.master"])
    assert not [name for name in optimizer_tensors(policy) if "master" in name]


def test_moments_that_were_saved_in_sixteen_bits_can_be_stepped_on(
    saved: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    policy = linear(torch.float32)
    load(policy, {**saved, "0.exp_avg": saved["0.exp_avg"].bfloat16()}, tmp_path)
    policy.weight.sum().backward()
    policy.optimizer.step()
    # 0.9 x 1 + 0.1 x 1, and 0.9 x 2 + 0.1.
    assert policy.optimizer.state[policy.weight]["exp_avg"].tolist() == [pytest.approx([1.0, 1.9])]


def stepped(device: str) -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Linear(64, 64).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    net(torch.ones(1, 64, device=device)).sum().backward()
    optimizer.step()
    return net, optimizer


def test_an_update_after_a_rest_is_the_same() -> None:
    (net, optimizer), (other, unrested) = stepped("cpu"), stepped("cpu")
    with offloaded_state(optimizer):
        assert all(parameter.grad is None for parameter in net.parameters())
    for network, its in ((net, optimizer), (other, unrested)):
        its.zero_grad()
        network(torch.ones(1, 64)).square().sum().backward()
        its.step()
    assert torch.equal(net.weight, other.weight)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_gpu_has_the_memory_while_it_rests() -> None:
    net, optimizer = stepped("cuda")
    held = torch.cuda.memory_allocated()
    with offloaded_state(optimizer):
        # Gradients and two moments of 64 x 64 + 64 float32 numbers.
        assert held - torch.cuda.memory_allocated() >= 3 * 4 * (64 * 64 + 64)
    assert all(values["exp_avg"].is_cuda for values in optimizer.state.values())
    assert next(net.parameters()).is_cuda


def test_settings_come_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FSDP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FSDP_VERSION", "2")
    assert sharding_settings("no")["mp_policy"].param_dtype is None
    assert "offload_policy" not in sharding_settings("no")
    precision = sharding_settings("bf16")["mp_policy"]
    assert (precision.param_dtype, precision.reduce_dtype) == (torch.bfloat16, torch.float32)
    assert (precision.output_dtype, precision.cast_forward_inputs) == (None, False)
    monkeypatch.setenv("FSDP_OFFLOAD_PARAMS", "true")
    assert "offload_policy" in sharding_settings("no")
    monkeypatch.setenv("FSDP_ACTIVATION_CHECKPOINTING", "true")
    with pytest.raises(BadValue, match="recompute: true"):
        sharding_settings("no")
    monkeypatch.setenv("FSDP_VERSION", "1")
    with pytest.raises(BadValue, match="fsdp_version: 2"):
        sharding_settings("no")


@pytest.mark.processes
@pytest.mark.parametrize(
    "families",
    [
        ("nano", "openvla-oft", "pi0"),
        pytest.param(
            ("nano-flow", "openvla", "openvla, recompute", "openvla-oft, recompute", "pi05", "smolvla"),
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_family_sharded_by_blocks_computes_what_it_does_whole(families: tuple[str, ...], tmp_path: Path) -> None:
    as_ranks(2, lambda: compare_all(families, tmp_path / "found.json"))
    found = json.loads((tmp_path / "found.json").read_text())
    assert found.keys() == set(families)
    for family, numbers in found.items():
        assert numbers["units"] > 1, family
        assert numbers["largest"] < numbers["all"], family
        assert numbers["loss"] < 1e-6, family
        assert numbers["gradient"] < 1e-6, family


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[DeviceMesh]:
    """A mesh of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_the_learning_policy_hands_its_trained_weights_over(alone: DeviceMesh) -> None:
    acting = nn.Linear(2, 1)
    acting.bias.requires_grad_(False)
    acting.optimizer = torch.optim.SGD([acting.weight], lr=1.0)
    known = {"momentum_buffer": torch.zeros(1, 2)}
    acting.optimizer.state[acting.weight] = known
    learning = learning_copy(acting)
    assert acting.optimizer is learning.optimizer
    assert dict(learning.optimizer.state) == {learning.weight: known}
    # No second policy in memory, until sharding makes parts of it.
    assert learning.weight.data_ptr() == acting.weight.data_ptr()
    shard(learning, learning.optimizer, alone, mp_policy=MixedPrecisionPolicy())
    before = acting.weight.detach().clone()
    learning(torch.ones(1, 2)).sum().backward()
    learning.optimizer.step()
    assert torch.equal(acting.weight, before)
    sync_weights(learning, acting)
    torch.testing.assert_close(acting.weight.detach(), before - 1.0)


class Saved(nn.Linear):
    """A policy that can be saved."""

    def save_trained(self, folder: Path) -> None:
        write_safetensors(folder / "model.safetensors", self.state_dict())


@pytest.fixture
def policies(alone: DeviceMesh) -> tuple[nn.Linear, nn.Linear]:
    """One that acts, and the sharded one that learns, after a step."""
    acting = Saved(2, 1)
    acting.optimizer = torch.optim.AdamW(acting.parameters(), lr=0.1)
    learning = learning_copy(acting)
    shard(learning, learning.optimizer, alone, mp_policy=MixedPrecisionPolicy())
    step(learning)
    return acting, learning


def step(policy: nn.Linear) -> None:
    policy(torch.ones(1, 2)).sum().backward()
    policy.optimizer.step()


# Of torch's own exchange of objects.
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_training_goes_on_while_a_checkpoint_is_written(
    policies: tuple[nn.Linear, nn.Linear], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (acting, learning), disk = policies, threading.Event()

    def slow(partial: Path, folder: Path) -> None:
        assert disk.wait(timeout=20)
        put_folder(partial, folder)

    monkeypatch.setattr(sharded_checkpoint, "put_folder", slow)
    saving = write_checkpoint(tmp_path / "checkpoints" / "step_1", acting, ProcessGroup(), "PPO", {})
    step(learning)
    # What has no name yet is no checkpoint.
    assert list((tmp_path / "checkpoints").iterdir())
    assert not RunFolder(tmp_path).saved_steps()
    disk.set()
    folder = saving.wait()
    files = {"model.safetensors", "optimizer-00001-of-00001.safetensors", "training_state.json"}
    assert read_manifest(folder).files == {name: file_sha256(folder / name) for name in files}
    # The mean of one gradient of ones at 0.9 of its weight, as it was before the second step.
    assert load_file(folder / "optimizer-00001-of-00001.safetensors")["0.exp_avg"].tolist() == [
        pytest.approx([0.1, 0.1])
    ]


def test_a_disk_that_is_full_ends_the_run_and_leaves_no_checkpoint(
    policies: tuple[nn.Linear, nn.Linear], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sharded_checkpoint, "save_file", full)
    saving = write_checkpoint(tmp_path / "step_1", policies[0], ProcessGroup(), "PPO", {})
    with pytest.raises(OSError, match="No space left") as caught:
        saving.wait()
    assert caught.value.filename == str(tmp_path / "step_1")
    deadline = time.monotonic() + 20
    while list(tmp_path.glob(".step_1*")):
        assert time.monotonic() < deadline
    assert not saving.folder.exists()


def killed_at_the_second_save(asked: Sequence[str]) -> int:
    """`zoo.train` whose first rank dies when its second checkpoint has all but its name, and training went on."""
    put, saved = sharded_checkpoint.put_folder, 0

    def die_at_the_second(partial: Path, folder: Path) -> None:
        nonlocal saved
        saved += 1
        if saved == 1:
            put(partial, folder)
            return
        metrics = folder.parents[1] / "metrics.jsonl"
        before, deadline = metrics.read_text().count("\n"), time.monotonic() + 60
        while metrics.read_text().count("\n") == before and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)

    sharded_checkpoint.put_folder = die_at_the_second
    return zoo.train.run(asked)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_rank_killed_while_it_saves_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    more = ("-n", "200", "-f", str(tmp_path), "-params", *PARAMS, POLICY)
    with pytest.raises(AssertionError):
        train(2, [*RUN, *more], config=FSDP, run=killed_at_the_second_save)
    run = only_run(tmp_path)
    done, (saved,) = updates(run), RunFolder(run).saved_steps()
    assert len(list((run / "checkpoints").iterdir())) == 2
    assert done[-1]["step"] > done[1]["step"] > saved == done[0]["step"]
    train(1, ["-i", str(run)])
    same_updates(updates(run)[: len(done)], done)
    assert all(step.name.startswith("step_") for step in (run / "checkpoints").iterdir())
