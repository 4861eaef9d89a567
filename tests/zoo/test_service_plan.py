"""What `zoo.serve` serves: runs, checkpoints and families, with the environment whose conventions hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import mock_checkpoints
from vla_gym.errors import BadValue, VLAZooError
from zoo import serve
from zoo.serving.declaration import ServicePlan

AGENT = "agents/ppo/MetaWorld-window-close"


def plan(*argv: str) -> ServicePlan:
    return serve.plan_service(serve.parser().parse(list(argv)))


def test_a_run_brings_its_environment() -> None:
    served = plan("-i", AGENT)
    assert (served.name, served.policy.family, served.env) == (AGENT, "nano", "MetaWorld/window-close")
    assert served.env_options["chunk"] == 8
    assert not {"num_workers", "group_size", "reward"} & set(served.env_options)
    assert Path(served.policy.name).is_dir()
    assert plan("-i", AGENT, "--env", "metaworld/Window-Open").env == "MetaWorld/window-open"


def test_a_checkpoint_alone_has_no_environment_unless_told(tmp_path: Path) -> None:
    from zoo.runs.lookup import local_or_shipped

    folder = tmp_path / "policy"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(local_or_shipped(AGENT).resolve() / name)
    alone = plan("-i", str(folder))
    assert (alone.env, alone.env_options) == (None, {})
    told = plan("-i", str(folder), "--env", "MetaWorld/window-close")
    assert told.env_options["chunk"] == 8


def test_a_family_takes_the_recipe() -> None:
    served = plan("--policy", "nano", "--env", "Toy-Reach")
    assert (served.policy.name, served.policy.family) == ("nano", "nano")
    assert "chunk" in served.env_options


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "give either -i"),
        (["-i", AGENT, "--policy", "nano"], "give either -i"),
        (["-i", "logs/none"], "logs/none"),
        (["--policy", "nanno"], "nano"),
        (["-i", AGENT, "--unnorm-key", "x"], "unnorm_key"),
    ],
)
def test_what_cannot_be_served_is_one_line(argv: list[str], said: str) -> None:
    with pytest.raises(VLAZooError, match=said):
        plan(*argv)


def test_a_run_that_is_damaged_is_not_taken_for_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text("env: [")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadValue, match="config"):
        plan("-i", str(tmp_path))


def test_a_published_checkpoint_is_served_with_the_head_it_was_trained_with(golden_root: Path) -> None:
    folder, key = str(golden_root / "openvla_oft_tiny"), ["--unnorm-key", "libero_spatial_no_noops"]
    served = plan("--policy", folder, *key)
    assert served.policy_kwargs == {"unnorm_key": "libero_spatial_no_noops"}
    with pytest.raises(BadValue, match=r"regression head .* no distribution to sample from; .*head: tokens"):
        plan("--policy", folder, *key, "--stochastic")
    tokens = plan(
        "--policy", folder, *key, "--stochastic", "-params", "policy_kwargs:{backbone_kwargs: {head: tokens}}"
    )
    assert tokens.policy_kwargs["backbone_kwargs"] == {"head": "tokens"}
    with pytest.raises(BadValue, match="-params image_size: a policy that is served takes policy_kwargs only"):
        plan("--policy", folder, *key, "-params", "image_size:64")


@pytest.mark.parametrize("suite", ["spatial", "goal"])
def test_a_family_is_served_with_the_weights_of_the_environments_recipe(suite: str) -> None:
    served = plan("--policy", "openvla-oft", "--env", f"LIBERO-{suite.title()}")
    assert served.policy.name == f"Haozhan72/Openvla-oft-SFT-libero-{suite}-traj1"
    assert served.policy_kwargs["unnorm_key"] == f"libero_{suite}_no_noops"


def test_a_checkpoint_that_is_read_as_its_makers_do_is_not_under_rlinfs_protocol(tmp_path: Path) -> None:
    folder = mock_checkpoints.openvla(tmp_path / "Openvla-oft-SFT-libero10-traj1", ["libero_10_no_noops"])
    served = plan("--policy", str(folder), "--env", "LIBERO-Long")
    assert "protocol" not in served.env_options
    assert served.env_options["chunk"] == 8
