"""A recipe's settings and a policy's: deep merges, one chunk, the numbers that an environment takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import mock_checkpoints
from vla_gym.errors import BadValue
from zoo.cli.recipe import merge
from zoo.cli.run_flags import resolve_new_run
from zoo.config.run_config import RunConfig
from zoo.train import parser


def config_of(flags: str, *params: str) -> RunConfig:
    return resolve_new_run(parser().parse([*flags.split(), "--seed", "0", *(["-params", *params] if params else [])]))


def test_the_users_keys_stand_beside_the_recipes_at_any_depth() -> None:
    below = {"policy_kwargs": {"temperature": 1.0, "backbone_kwargs": {"lora": {"rank": 32, "alpha": 32}, "size": "x"}}}
    above = {"policy_kwargs": {"backbone_kwargs": {"lora": {"rank": 8}}}, "chunk": 4}
    assert merge(below, above) == {
        "policy_kwargs": {"temperature": 1.0, "backbone_kwargs": {"lora": {"rank": 8, "alpha": 32}, "size": "x"}},
        "chunk": 4,
    }
    assert merge(
        {"learning_rate": {"schedule": "linear", "start": 1.0}}, {"learning_rate": {"schedule": "constant"}}
    ) == {"learning_rate": {"schedule": "constant"}}


def test_a_setting_of_the_network_leaves_the_recipes_others() -> None:
    config = config_of(
        "--algo ppo --env ManiSkill-Plate25 --policy openvla", "policy_kwargs:{backbone_kwargs: {recompute: false}}"
    )
    assert config.policy_kwargs["backbone_kwargs"] == {"lora": {"rank": 32, "alpha": 32}, "recompute": False}


@pytest.fixture
def bridge(tmp_path: Path) -> Path:
    """A checkpoint whose data set's name means chunks of 5."""
    return mock_checkpoints.openvla(tmp_path / "openvla-oft-bridge", ["bridge_orig"])


@pytest.mark.parametrize("algo", ["ppo", "grpo"])
def test_the_recipes_chunk_wins_over_the_data_sets(bridge: Path, algo: str) -> None:
    config = config_of(f"--algo {algo} --env ManiSkill-Plate25 --policy {bridge}")
    assert config.chunk == 8
    assert config.policy_kwargs["backbone_kwargs"]["chunk"] == 8
    assert config_of(f"--env ManiSkill-Plate25 --policy {bridge}", "chunk:5").chunk == 5
    chosen = config_of(f"--env ManiSkill-Plate25 --policy {bridge}", "policy_kwargs:{backbone_kwargs: {chunk: 5}}")
    assert (chosen.chunk, chosen.policy_kwargs["backbone_kwargs"]["chunk"]) == (5, 5)
    with pytest.raises(BadValue, match="chunk=4 and backbone_kwargs chunk: 5 disagree"):
        config_of(
            f"--env ManiSkill-Plate25 --policy {bridge}", "chunk:4", "policy_kwargs:{backbone_kwargs: {chunk: 5}}"
        )


def test_a_network_of_one_chunk_refuses_another(tmp_path: Path) -> None:
    folder = mock_checkpoints.openvla(tmp_path / "openvla-7b-warmup", ["bridge_orig"])
    assert config_of(f"--env ManiSkill-Plate25 --policy {folder}").chunk == 1
    with pytest.raises(BadValue, match="decides 1 actions at once, got chunk=8"):
        config_of(f"--env ManiSkill-Plate25 --policy {folder}", "chunk:8")


@pytest.mark.parametrize("key", ["meta_world_strict", "my_own_mt50"])
def test_seven_numbers_start_on_meta_world(tmp_path: Path, key: str) -> None:
    folder = mock_checkpoints.openvla(tmp_path / "openvla-oft-mt50", [key])
    config = config_of(f"--algo grpo --env MetaWorld-MT50 --policy {folder}")
    assert config.policy_kwargs["backbone_kwargs"]["action_dims"] == [0, 1, 2, 6]
    assert config.chunk == 1
    # PPO has no recipe that says which four of the seven numbers are meant.
    with pytest.raises(BadValue, match="action_dim=7, the environment has action_dim=4"):
        config_of(f"--algo ppo --env MetaWorld-MT50 --policy {folder}")


def test_a_checkpoint_of_other_data_is_read_as_its_makers_do(tmp_path: Path) -> None:
    key = "libero_130_no_noops_trajall"
    mine = mock_checkpoints.openvla(tmp_path / "my-openvla-oft", [key])
    options = config_of(f"--algo grpo --env LIBERO-130 --policy {mine}").policy_kwargs["backbone_kwargs"]
    assert options["stop_token"] is False
    other = mock_checkpoints.openvla(tmp_path / "an-openvla-oft", ["libero_90"])
    options = config_of(f"--algo grpo --env LIBERO-130 --policy {other}").policy_kwargs["backbone_kwargs"]
    assert "stop_token" not in options
