"""A policy's name, folder or published checkpoint, and the recipe that fits it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests import mock_checkpoints
from tests.zoo.cli.test_run_flags import resolve
from tests.zoo.stand_ins import toy_config
from vla_gym.errors import BadValue, UnknownName
from zoo.agents.recipe import find_policy, merge, over_recipe
from zoo.cli.run_flags import resolve_new_run
from zoo.config.run_config import RunConfig, to_plain
from zoo.train import parser


def test_a_policy_folder_names_its_family(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"config\.json"):
        find_policy(str(tmp_path), {})[0]
    mock_checkpoints.nano(tmp_path, "nanno")
    with pytest.raises(UnknownName, match="Did you mean 'nano'"):
        find_policy(str(tmp_path), {})[0]
    mock_checkpoints.nano(tmp_path, chunk=2, cameras=["image", "wrist_image"])
    assert (find_policy(str(tmp_path), {})[0].name, find_policy(str(tmp_path), {})[0].family) == (str(tmp_path), "nano")


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"family": "pi0"}, "is of family 'nano', got family='pi0'"),
        ({"unnorm_key": "x"}, "no action statistics"),
        ({"revision": "x"}, "revision 'x' is for Hub ids"),
    ],
)
def test_a_folder_of_this_package_has_nothing_to_choose(tmp_path: Path, choice: dict[str, str], message: str) -> None:
    mock_checkpoints.nano(tmp_path, chunk=2, cameras=["image", "wrist_image"])
    assert find_policy(str(tmp_path), {"family": "nano"})[0].family == "nano"
    with pytest.raises(BadValue, match=message):
        find_policy(str(tmp_path), choice)[0]


def test_the_environment_follows_a_checkpoints_conventions(tmp_path: Path) -> None:
    mock_checkpoints.nano(tmp_path, chunk=2, cameras=["image", "wrist_image"])
    config = resolve(f"--env Toy-Reach --policy {tmp_path}")
    assert config.env_options == {"chunk": 2, "wrist_camera": True}
    assert config.policy_kwargs == {}
    with pytest.raises(BadValue, match="decides 2 actions at once, got chunk=3"):
        resolve(f"--env Toy-Reach --policy {tmp_path} -params chunk:3")


@pytest.fixture
def published(golden_root: Path, tmp_path: Path) -> Path:
    """The files of an OpenVLA-OFT folder that are read before its weights, statistics of two data sets."""
    for file in (golden_root / "openvla_oft_tiny").glob("*.json"):
        shutil.copyfile(file, tmp_path / file.name)
    (tmp_path / "action_head--1_checkpoint.pt").touch()
    return tmp_path


def test_a_published_folder_brings_its_chunk_and_takes_the_recipes_adapters(published: Path) -> None:
    config = resolve(f"--env LIBERO-Spatial --policy {published}")
    assert config.entry == "LIBERO-Spatial/openvla-oft"
    assert config.env_options["chunk"] == 8
    assert config.policy_kwargs["backbone_kwargs"]["lora"] == {"rank": 32, "alpha": 32}


def test_a_published_folder_needs_a_key_where_the_suite_has_none(published: Path) -> None:
    with pytest.raises(BadValue, match="choose one with unnorm_key: libero_10_no_noops, libero_spatial_no_noops"):
        resolve(f"--env LIBERO-Object --policy {published}")


def test_a_folder_of_another_suite_says_what_of_the_recipe_it_goes_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = mock_checkpoints.openvla(tmp_path / "Openvla-oft-SFT-libero-spatial-traj1", ["libero_spatial_no_noops"])
    resolve(f"--env LIBERO-Spatial --policy {folder}")
    assert not caplog.messages
    resolve(f"--env LIBERO-Goal --policy {folder}")
    (said,) = caplog.messages
    assert "has no action statistics of libero_goal_no_noops, which the recipe's start weights have" in said
    assert "stop_token: false" in said


@pytest.mark.parametrize(("algo", "suite", "chunk"), [("ppo", "Spatial", 5), ("grpo", "Long", 10)])
def test_a_published_flow_folder_takes_chunk_and_sampler_of_the_recipe(
    golden_root: Path, algo: str, suite: str, chunk: int
) -> None:
    config = resolve(f"--algo {algo} --env LIBERO-{suite} --policy {golden_root / 'pi0_tiny'}")
    # The checkpoint predicts 50 actions at once; how many of them are carried out is the environment's.
    assert (config.chunk, config.env_options["wrist_camera"]) == (chunk, True)
    assert config.policy_kwargs["backbone_kwargs"]["scheme"] == "flow_sde"


def test_an_adapter_folder_keeps_its_own_size(published: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("adapter")
    adapter = {"peft_type": "LORA", "base_model_name_or_path": str(published)}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    config = resolve(f"--env LIBERO-Spatial --policy {folder}")
    assert config.entry == "LIBERO-Spatial/openvla-oft"
    assert "backbone_kwargs" not in config.policy_kwargs
    chosen = ["-params", "policy_kwargs:{unnorm_key: libero_10_no_noops}"]
    command = ["--env", "ManiSkill-Plate25", "--policy", str(folder), *chosen]
    config = resolve_new_run(parser().parse(command))
    assert config.policy_kwargs["backbone_kwargs"] == {"value_outputs": 8}
    # The package's own adapter says all of that itself.
    (folder / "vla_zoo.json").write_text("{}")
    assert "backbone_kwargs" not in resolve(f"--env LIBERO-Spatial --policy {folder}").policy_kwargs


def test_a_policy_sees_pictures_of_the_size_its_run_rendered(tmp_path: Path) -> None:
    mock_checkpoints.nano(tmp_path, chunk=2, cameras=["image", "wrist_image"])
    flags = f"--env Toy-Reach --policy {tmp_path}"
    recipes_own = resolve(flags).env_options.get("image_size")
    (tmp_path / "args.yml").write_text("{}")
    given = to_plain(toy_config(algo="sft", env_options={"image_size": 48, "num_workers": 1}))
    (tmp_path / "config.yml").write_text(yaml.safe_dump(given))
    assert recipes_own != 48
    assert resolve(flags).env_options["image_size"] == 48
    assert resolve(f"{flags} -params image_size:24").env_options["image_size"] == 24


def test_the_policy_of_a_run_folder_is_its_best(tmp_path: Path) -> None:
    (tmp_path / "args.yml").write_text("{}")
    (tmp_path / "config.yml").write_text("{}")
    (tmp_path / "best").mkdir()
    mock_checkpoints.nano(tmp_path / "best")
    assert resolve(f"--env Toy-Reach --policy {tmp_path}").policy == str(tmp_path / "best")


def test_fresh_weights_take_no_adapter_of_the_recipe() -> None:
    recipe = {"policy_kwargs": {"backbone_kwargs": {"lora": {"rank": 32}, "recompute": True}}}
    given = {"policy_kwargs": {"backbone_kwargs": {"size": "tiny"}}}
    fresh, own = find_policy("openvla-oft", given["policy_kwargs"])
    assert over_recipe(recipe, fresh, own, given)["policy_kwargs"]["backbone_kwargs"] == {
        "size": "tiny",
        "recompute": True,
    }


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
    assert "backbone_kwargs" not in config_of(f"--algo grpo --env LIBERO-130 --policy {other}").policy_kwargs
