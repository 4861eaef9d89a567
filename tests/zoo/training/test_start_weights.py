"""Start weights: named, sized by the Hub's own listing, fetched when a run starts, and checked by their headers."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from tests import mock_checkpoints
from tests.zoo.hub.test_upload import hub
from tests.zoo.loopback_hub import LoopbackHub, Repo
from vla_gym.errors import BadValue
from vla_policies.resolver import PolicyRef
from zoo import train
from zoo.cli.run_flags import open_new_run
from zoo.config.run_config import RunConfig
from zoo.training.start_weights import check_fit, start_lines

__all__ = ["hub"]

KEY = "libero_130_no_noops_trajall"
HUB_ID = "RLinf/RLinf-OpenVLAOFT-LIBERO-130-Base-Lora"
RUN = ["--algo", "grpo", "--env", "LIBERO-130", "--policy", "openvla-oft", "--seed", "0"]


def new_run(*params: str, run: list[str] = RUN) -> tuple[RunConfig, PolicyRef]:
    return open_new_run(train.parser().parse([*run, *(["-params", *params] if params else [])]))


@pytest.fixture
def published(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> LoopbackHub:
    """A Hub with a small OpenVLA-OFT under the published id, and an empty cache."""
    folder = mock_checkpoints.openvla(Path("repository"), [KEY], size="tiny")
    files = {path.name: path.read_bytes() for path in folder.iterdir()} | {"checkpoints/old.safetensors": b"x" * 99}
    hub.repos[HUB_ID] = Repo(private=False, commits={"a" * 40: files}, main="a" * 40)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    return hub


def test_a_dry_run_lists_what_it_would_fetch_and_fetches_nothing(published: LoopbackHub) -> None:
    start, fits = start_lines(*new_run())
    size = sum(len(data) for name, data in published.repos[HUB_ID].files.items() if "/" not in name)
    assert start == f"start        {HUB_ID}: not cached, a download from {published.url} {size / 1e9:,.3g} GB"
    assert fits == "fits         not known before the weights are here"
    assert all("/resolve/" not in request for request in published.requests)


def test_what_was_fetched_is_here_and_checked(published: LoopbackHub) -> None:
    config, policy = new_run()
    check_fit(config, policy.fetched())
    assert any("/resolve/" in request for request in published.requests)
    assert not any("checkpoints" in request for request in published.requests)
    published.requests.clear()
    start, fits = start_lines(*new_run())
    assert f"{HUB_ID}: here, in " in start
    assert fits.startswith("fits         yes, by the tensors' names and shapes")
    assert not any("/resolve/" in request for request in published.requests)


def test_without_a_network_a_dry_run_does_not_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody listens
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    assert "of unknown size" in start_lines(*new_run())[0]
    assert not waits


def test_a_local_folder_stands_in_place_of_the_id(tmp_path: Path) -> None:
    folder = mock_checkpoints.openvla(tmp_path / "sft", [KEY])
    config, policy = new_run(f"policy:{{checkpoint: {folder}}}")
    assert (config.policy, config.policy_kwargs["unnorm_key"]) == (str(folder), KEY)
    assert config.policy_kwargs["backbone_kwargs"]["stop_token"] is False
    assert start_lines(config, policy)[1].startswith("fits         yes")


def test_weights_that_do_not_fit_the_recipe_are_refused_by_the_dry_run(tmp_path: Path) -> None:
    folder = mock_checkpoints.openvla(tmp_path / "sft", [KEY])
    (shard,) = (path for path in folder.glob("model-*") if "00001" in path.name)
    shapes = {**mock_checkpoints.openvla_shapes()}
    names = list(shapes)[0::3]
    mock_checkpoints.write_sparse(shard, {name: shapes[name] for name in names[1:]})
    with pytest.raises(BadValue, match=r"does not fit its config\.json: missing"):
        start_lines(*new_run(f"policy:{{checkpoint: {folder}}}"))
    with pytest.raises(BadValue, match="neither a folder here nor a Hub id"):
        new_run("policy:{checkpoint: ./nowhere}")


def test_a_run_opens_its_start_folder_once(cwd: Path) -> None:
    run = ["--env", "Toy-Reach", "--num-envs", "2", "-n", "8", "--eval-episodes", "0", "--device", "cpu", "--seed", "0"]
    run += ["-params", "n_steps:2", "batch_size:4", "num_workers:0"]
    train.run([*run, "policy_kwargs:{backbone_kwargs: {size: tiny}}"])
    (start,) = Path("logs/ppo/Toy-Reach_1/checkpoints").iterdir()
    settings = {str(start.resolve() / name) for name in ("config.json", "manifest.json")}
    opened: list[str] = []
    watching = True

    def watch(event: str, args: Any) -> None:
        if watching and event == "open" and os.path.realpath(str(args[0])) in settings:
            opened.append(str(args[0]))

    sys.addaudithook(watch)
    train.run([*run, "--policy", str(start)])
    watching = False
    assert sorted(os.path.basename(path) for path in opened) == ["config.json", "manifest.json"]
