"""Published recipes against their source files, and against folders of their start weights' keys and layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import mock_checkpoints
from vla_policies.resolver import PolicyRef
from zoo.cli.run_flags import open_new_run
from zoo.config.memory_plan import policy_footprint
from zoo.config.run_config import RunConfig
from zoo.evaluation.published import ANY_SUITE, published_rows
from zoo.plan import fit_lines
from zoo.train import parser
from zoo.training.run_plan import RunPlan, memory_lines
from zoo.training.start_weights import start_lines


def run_of(recipe: str, *params: str) -> RunConfig:
    """The run of "ppo LIBERO-Long pi0" under the family's bare name."""
    return opened(recipe, *params)[0]


def opened(recipe: str, *params: str) -> tuple[RunConfig, PolicyRef]:
    """The run, and the policy it starts from."""
    algo, env, policy = recipe.split()
    flags = ["--algo", algo, "--env", env, "--policy", policy, "--seed", "0"]
    return open_new_run(parser().parse([*flags, *(["-params", *params] if params else [])]))


def value(config: RunConfig, name: str) -> Any:
    """A setting by its name, a part of the policy's or of its network's among them."""
    kwargs = config.policy_kwargs
    for place in (config.algo_kwargs, config.env_options, kwargs, kwargs.get("backbone_kwargs", {})):
        if name in place:
            return place[name]
    return getattr(config, name)


# Settings of RLinf's own files at a3816b59.
ROWS = {
    "ppo ManiSkill-Plate25 pi05": {"logprob_level": "chunk", "n_epochs": 5, "prompt_state": "none"},
    "grpo LIBERO-Spatial pi05": {"n_epochs": 1, "num_steps": 3, "noise_level": 0.5},
    "grpo LIBERO-Long pi05": {"n_epochs": 4, "num_steps": 4, "noise_level": 0.5, "max_grad_norm": 1.0},
    "grpo LIBERO-Long pi0": {"max_grad_norm": 2.0, "n_epochs": 2, "chunk": 10},
    "ppo LIBERO-Long openvla-oft": {
        "center_crop": False,
        "stop_token": False,
        "camera_resize": "bicubic",
        "reward_scale": 5.0,
        "bootstrap_termination": True,
        "optimizer_kwargs": {"eps": 1.0e-8, "weight_decay": 0.01},
    },
    "grpo LIBERO-130 openvla-oft": {"center_crop": False, "stop_token": False, "camera_resize": "bicubic"},
    "ppo LIBERO-Spatial pi0": {"delta_dims": 6, "horizon": 50},
    "ppo LIBERO-Long pi05": {"prompt_state": "none", "horizon": 10, "max_grad_norm": 1.0, "n_epochs": 4},
    "ppo MetaWorld-MT50 pi05": {"prompt_state": "none", "horizon": 5, "value_hidden": [512, 256, 128]},
    "ppo ManiSkill-Plate25 openvla-oft": {"chunk": 8, "unnorm_key": "bridge_orig"},
    "grpo MetaWorld-MT50 openvla-oft": {"chunk": 1, "unnorm_key": "meta_world_strict", "action_dims": [0, 1, 2, 6]},
}


@pytest.mark.parametrize("recipe", ROWS)
def test_settings_are_those_of_the_published_files(recipe: str) -> None:
    config = run_of(recipe)
    assert {name: value(config, name) for name in ROWS[recipe]} == ROWS[recipe]


@pytest.mark.parametrize("name", [name for name, row in published_rows().items() if row.recipe])
def test_a_recipe_trains_by_the_rules_that_its_row_is_measured_by(name: str) -> None:
    row = published_rows()[name]
    assert row.recipe is not None
    env = row.envs[0] if row.recipe.env == ANY_SUITE else row.recipe.env
    config = run_of(f"{row.recipe.algo} {env} {row.recipe.policy}")
    # Meta-World's episodes have 100 steps in training and 160 in the published evaluation.
    rules = "rlinf" if env.startswith("MetaWorld") else row.protocol.env_kwargs["protocol"]
    assert config.env_options["protocol"] == rules
    # Where episodes end alone, their masked rest is in minibatches there.
    whole_episodes = row.recipe.algo == "grpo" or "rounds_per_update" in config.algo_kwargs
    assert bool(config.algo_kwargs.get("masked_minibatches")) == whole_episodes


HORIZONS = {"LIBERO-Spatial": 240, "LIBERO-Object": 240, "LIBERO-Goal": 320, "LIBERO-Long": 480}


@pytest.mark.parametrize("policy", ["pi0", "pi05"])
@pytest.mark.parametrize(
    "suite", ["LIBERO-Long", *(pytest.param(one, marks=pytest.mark.thorough) for one in list(HORIZONS)[:3])]
)
def test_the_sixteen_liberos_of_pi0_are_of_their_published_size(suite: str, policy: str) -> None:
    chunk = 10 if suite == "LIBERO-Long" else 5
    for algo in ("ppo", "grpo"):
        config = run_of(f"{algo} {suite} {policy}")
        assert config.entry == f"{suite}/{policy}"
        assert (config.num_envs, config.chunk) == (64, chunk)
        assert (config.algo_kwargs["batch_size"], config.algo_kwargs["micro_batch_size"]) == (2048, 128)
        if algo == "ppo":
            assert config.algo_kwargs["rounds_per_update"] == 8
        else:
            assert (config.algo_kwargs["rollouts_per_update"], config.group_size) == (8, 8)
        assert config.env_options["protocol"] == "rlinf-pi"
        assert config.n_timesteps == 1000 * 64 * 8 * HORIZONS[suite]


# Hub ids as RLinf's documentation gives them for each recipe.
STARTS = {
    "ppo ManiSkill-Plate25 openvla": "gen-robot/openvla-7b-rlvla-warmup",
    "ppo ManiSkill-Plate25 openvla-oft": "RLinf/RLinf-OpenVLAOFT-ManiSkill-Base-Lora",
    "grpo LIBERO-130 openvla-oft": "RLinf/RLinf-OpenVLAOFT-LIBERO-130-Base-Lora",
    "ppo MetaWorld-MT50 pi0": "RLinf/RLinf-Pi0-MetaWorld-SFT",
    "ppo MetaWorld-MT50 pi05": "RLinf/RLinf-Pi05-MetaWorld-SFT",
    "grpo MetaWorld-MT50 openvla-oft": "RLinf/RLinf-OpenVLAOFT-MetaWorld-SFT",
    "ppo ManiSkill-Plate25 pi0": "RLinf/RLinf-Pi0-ManiSkill-25Main-SFT",
    "ppo ManiSkill-Plate25 pi05": "RLinf/RLinf-Pi05-ManiSkill-25Main-SFT",
    "grpo LIBERO-Long openvla-oft": "Haozhan72/Openvla-oft-SFT-libero10-traj1",
    "ppo LIBERO-130 openvla-oft": "RLinf/RLinf-OpenVLAOFT-LIBERO-130-Base-Lora",
    "ppo LIBERO-Spatial pi0": "RLinf/RLinf-Pi0-LIBERO-Spatial-Object-Goal-SFT",
    "grpo LIBERO-Long pi0": "RLinf/RLinf-Pi0-LIBERO-Long-SFT",
    "ppo LIBERO-Goal pi05": "RLinf/RLinf-Pi05-LIBERO-SFT",
}


@pytest.mark.parametrize("recipe", STARTS)
def test_a_bare_family_name_means_the_recipes_start_weights(recipe: str) -> None:
    assert run_of(recipe).policy == STARTS[recipe]


def test_ml45_starts_from_nothing_that_has_seen_its_test_tasks() -> None:
    assert run_of("ppo MetaWorld-ML45 pi0").policy == "pi0"


def start_folder(recipe: str, root: Path) -> dict[str, str]:
    """A folder (and an adapter's model) with the real keys, names, shapes and layout of the recipe's start weights."""
    _, env, policy = recipe.split()
    if policy in ("pi0", "pi05"):
        data_set = run_of(recipe).policy_kwargs["unnorm_key"]
        dims = {"MetaWorld-MT50": (4, 4), "ManiSkill-Plate25": (8, 7)}.get(env, (8, 7))
        made = mock_checkpoints.rlinf_pi0(root, data_set, pi05=policy == "pi05", dims=dims[0], actions=dims[1])
        return {"checkpoint": str(made)}
    if recipe == "ppo ManiSkill-Plate25 openvla-oft":
        # The model's own fine-tune was on LIBERO; BridgeData's statistics come from OpenVLA-7B.
        base = mock_checkpoints.openvla(root / "base", ["libero_10_no_noops"], in_config=["bridge_orig"])
        adapter = mock_checkpoints.openvla_adapter(root / "lora", base="/mnt/public/model/Openvla-oft-SFT")
        return {"checkpoint": str(adapter), "base": str(base)}
    key = run_of(recipe).policy_kwargs["unnorm_key"]
    return {"checkpoint": str(mock_checkpoints.openvla(root, [key], in_config=["fractal20220817_data"]))}


@pytest.mark.parametrize(
    "recipe",
    [
        *("ppo ManiSkill-Plate25 openvla-oft", "grpo LIBERO-130 openvla-oft", "ppo LIBERO-Long pi05"),
        *(pytest.param(recipe, marks=pytest.mark.thorough) for recipe in ["ppo LIBERO-Long pi0", *list(STARTS)[3:6]]),
    ],
)
def test_each_recipe_fits_a_folder_of_its_start_weights_layout(recipe: str, tmp_path: Path) -> None:
    """The dry run builds the policy on the meta device from the folder's header."""
    place = start_folder(recipe, tmp_path / "start")
    config, policy = opened(recipe, "policy:{" + ", ".join(f"{name}: {path}" for name, path in place.items()) + "}")
    *parts, fits = start_lines(config, policy)
    assert fits.startswith("fits         yes"), fits
    assert place["checkpoint"] in parts[0]
    whole = run_of(recipe)
    assert config.chunk == whole.chunk
    assert config.algo_kwargs == whole.algo_kwargs
    reading = ("stop_token", "camera_resize", "center_crop", "delta_dims", "prompt_state", "horizon", "action_dims")
    options, wanted = (run.policy_kwargs.get("backbone_kwargs", {}) for run in (config, whole))
    assert {name: options.get(name) for name in reading} == {name: wanted.get(name) for name in reading}
    if "recompute" in wanted:
        assert options["recompute"] == wanted["recompute"]


ADAPTER_NUMBERS = 113_000_000
"""More than LoRA 32 beside every layer of OpenVLA-7B and the critic have; all weights are 7.5 billion."""


def trained_numbers(config: RunConfig) -> int:
    counted = policy_footprint(config)
    assert counted is not None
    return counted.num_trained


@pytest.mark.parametrize("algo", ["ppo", pytest.param("grpo", marks=pytest.mark.thorough)])
def test_a_recipe_that_starts_from_an_adapter_is_planned_with_it(algo: str, tmp_path: Path) -> None:
    recipe = f"{algo} ManiSkill-Plate25 openvla-oft"
    assert trained_numbers(run_of(recipe)) < ADAPTER_NUMBERS
    place = start_folder("ppo ManiSkill-Plate25 openvla-oft", tmp_path)
    here = run_of(recipe, "policy:{" + ", ".join(f"{name}: {path}" for name, path in place.items()) + "}")
    # The mock adapter is beside two kinds of layers only.
    assert 0 < trained_numbers(here) < ADAPTER_NUMBERS


def test_a_plan_does_not_fetch_an_adapters_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vla_policies.resolver.fetch", lambda *args, **kwargs: pytest.fail("fetched"))
    folder = start_folder("ppo ManiSkill-Plate25 openvla-oft", tmp_path)["checkpoint"]
    config, policy = opened("ppo ManiSkill-Plate25 openvla-oft", f"policy:{{checkpoint: {folder}}}")
    assert trained_numbers(config) < ADAPTER_NUMBERS
    adapter, model, fits = start_lines(config, policy)
    assert folder in adapter
    assert "RLinf/RLinf-OpenVLAOFT-ManiSkill-Base-Main: not cached" in model
    assert fits.endswith("not known before the weights are here")


def test_a_whole_model_in_place_of_a_recipes_adapter_takes_the_recipes_adapter(tmp_path: Path) -> None:
    folder = mock_checkpoints.openvla(tmp_path / "merged", ["bridge_orig"])
    config, policy = opened("ppo ManiSkill-Plate25 openvla-oft", f"policy:{{checkpoint: {folder}}}")
    assert config.policy_kwargs["backbone_kwargs"]["lora"] == {"rank": 32, "alpha": 32}
    start, _ = start_lines(config, policy)
    assert str(folder) in start


def test_what_is_not_known_is_not_said_to_fit() -> None:
    unknown = replace(run_of("ppo LIBERO-Spatial openvla-oft"), policy="org/model", policy_kwargs={})
    plan = RunPlan.resolve(unknown, 1)
    assert list(fit_lines(plan, "device", 80)) == [
        "fits         device: not known, weights of 'org/model' are not counted"
    ]
    assert "weights of 'org/model' are not counted" in memory_lines(plan, passes=True)[0]
