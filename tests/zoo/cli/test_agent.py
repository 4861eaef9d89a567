"""Which policy acts, of a run or by name, in which environment, and how: flags and `-params`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests import mock_checkpoints
from tests.zoo.test_enjoy import begun
from vla_gym.errors import BadValue, UnknownName, VLAZooError
from vla_policies.model_folder import Request
from vla_policies.resolver import PolicyRef, open_folder
from zoo import enjoy, evaluate
from zoo import train as train_command
from zoo.agents.agent import Agent
from zoo.cli.agent import plan_rollout, unplayed_split
from zoo.cli.main import guarded, main
from zoo.cli.run_flags import open_new_run, resolve_new_run
from zoo.config.run_config import env_conventions

TOY = ["--env", "Toy-Reach", "--policy", "nano"]
PI_LIBERO = "physical-intelligence/libero"


def planned(*argv: str, episodes: int | None = 1, **how: Any) -> Agent:
    return plan_rollout(evaluate.parser().parse([*argv]), episodes=episodes, **how)


# How it acts ----------------------------------------------------------------------------------------------


def test_a_temperature_means_sampled_actions() -> None:
    plan = planned(*TOY, "--temperature", "1.6", "--top-k", "50", "--rounds", "2", "--num-envs", "8", episodes=3)
    assert (plan.protocol.sample, plan.protocol.temperature, plan.protocol.top_k) == (True, 1.6, 50)
    assert plan.policy_kwargs == {"temperature": 1.6, "top_k": 50}
    # Two rounds of three start states.
    assert plan.num_envs == len(plan.episodes) == 6
    assert not planned(*TOY).protocol.sample


def test_params_say_how_the_policy_samples_and_what_it_sees() -> None:
    params = ["image_size:32", "state:false", "policy_kwargs:{temperature: 0.4, backbone_kwargs: {size: tiny}}"]
    plan = planned(*TOY, "-params", *params)
    assert plan.policy_kwargs == {"temperature": 0.4, "backbone_kwargs": {"size": "tiny"}}
    assert (plan.env_options["image_size"], plan.env_options["state"]) == (32, False)
    assert not plan.protocol.sample


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["--temperature", "1", "--deterministic"], "--deterministic"),
        (["--rounds", "2"], "--rounds 2"),
        (["-params", "policy_kwargs:{temprature: 1}"], "'temperature'"),
        (["-params", "policy_kwargs:{value_lr: 1.0e-3}"], "value_lr"),
        (["-params", "chunks:3"], "'chunk'"),
        (["-params", "protocol:lerobot"], "env_kwargs:{protocol"),
        (["-params", "group_size:8"], "'group_size'"),
        (["-params", "policy_kwargs:{temperature: 1.0}", "--temperature", "2"], "leave one out"),
        (["-params", "policy_kwargs:{unnorm_key: a}"], "unnorm_key='a'"),
        (["--policy", "nano-flow", "--temperature", "1"], "temperature"),
        (["--policy", "nano-flow", "-params", "policy_kwargs:{greedy: mean}"], "greedy"),
        (["--policy", "nano-flow", "--rounds", "2"], "eval_noise"),
    ],
)
def test_what_cannot_be_asked(argv: list[str], names: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(evaluate.run, [*TOY, *argv]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert names in line


@pytest.mark.parametrize(
    "noise", [["--stochastic"], ["-params", "policy_kwargs:{backbone_kwargs: {eval_noise: random}}"]]
)
def test_rounds_of_a_flow_policy(noise: list[str]) -> None:
    argv = ["--env", "Toy-Reach", "--policy", "nano-flow", "--rounds", "2", *noise]
    assert planned(*argv).protocol.rounds == 2


def test_a_published_flow_checkpoint_begins_every_decision_at_fresh_noise(
    tmp_path: Path, golden_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """lerobot/pi0_base's layout: no statistics, so that it fits any robot."""
    asked = ["--env", "Toy-Reach", "--policy", str(golden_root / "pi0_tiny"), "--eval-episodes", "3", "--device", "cpu"]
    asked += ["-params", "chunk:4", "policy_kwargs:{backbone_kwargs: {num_steps: 2}}", "--rounds", "2"]
    plays = []
    for num_envs in ("1", "4"):
        file = tmp_path / f"{num_envs}.json"
        assert evaluate.run([*asked, "--num-envs", num_envs, "-o", str(file)]) == 0
        episodes = json.loads(file.read_text())["episodes"]
        plays.append([(e["start_state"], e["length"], round(e["total_reward"], 4)) for e in episodes])
    assert plays[0] == plays[1]
    assert plays[0][::2] != plays[0][1::2]
    out = capsys.readouterr().out
    assert "actions in 2 denoising steps from fresh noise" in out
    assert "deterministic" not in out
    fixed = [*asked[:-3], "policy_kwargs:{backbone_kwargs: {num_steps: 2, eval_noise: fixed}}"]
    assert evaluate.run([*fixed, "-o", str(tmp_path / "fixed.json")]) == 0
    assert "from fixed noise" in capsys.readouterr().out


# Checkpoints, as their makers play them -------------------------------------------------------------------


def lerobot_folder(folder: Path, golden: Path, **settings: Any) -> Path:
    """lerobot's layout, with statistics, and other settings than the golden folder's."""
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(golden / "model.safetensors")
    config = json.loads((golden / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))
    names = ("mean", "std", "q01", "q99")
    numbers = {f"{part}.{name}": torch.ones(8) for part in ("observation.state", "action") for name in names}
    save_file(numbers, folder / "policy_preprocessor_step_2_normalizer_processor.safetensors")
    return folder


def openpi(folder: Path, golden: Path) -> Path:
    return mock_checkpoints.openpi_pi0(folder, PI_LIBERO, pi05=True, horizon=10)


def rlinf(folder: Path, golden: Path) -> Path:
    return mock_checkpoints.rlinf_pi0(folder, PI_LIBERO, pi05=False)


def plate25(folder: Path, golden: Path) -> Path:
    return mock_checkpoints.rlinf_pi0(folder, "physical-intelligence/maniskill", pi05=False)


def lerobot_pi05(folder: Path, golden: Path) -> Path:
    return lerobot_folder(folder, golden / "pi05_tiny", n_action_steps=3)


def smolvla(folder: Path, golden: Path) -> Path:
    return golden / "smolvla_tiny" / "checkpoint"


@pytest.mark.parametrize(
    ("make", "env", "as_published", "options", "backbone"),
    [
        # examples/libero/main.py: 220 to 520 steps, 10 waits, 5 actions of a decision; RLinf's recipe has others.
        (openpi, "LIBERO-Spatial", False, {"chunk": 5, "protocol": "openvla-oft", "image_size": 256}, {}),
        (openpi, "LIBERO-Long", True, {"chunk": 10}, {}),
        (rlinf, "LIBERO-Long", False, {"chunk": 10, "protocol": "rlinf-pi"}, {"num_steps": 4}),
        # RLinf passes 640 x 480 to openpi's transforms, which leave black above and below.
        (plate25, "ManiSkill-Plate25-Carrot", False, {"aspect": "kept"}, {}),
        (lerobot_pi05, "MetaWorld-MT50", False, {"chunk": 3, "protocol": "lerobot"}, {}),
        (smolvla, "LIBERO-Spatial", False, {"chunk": 6, "protocol": "lerobot"}, {}),
    ],
)
def test_a_checkpoint_is_played_as_its_makers_do(
    tmp_path: Path,
    golden_root: Path,
    make: Callable[[Path, Path], Path],
    env: str,
    as_published: bool,
    options: Mapping[str, Any],
    backbone: Mapping[str, Any],
) -> None:
    flags = ["--env", env, "--policy", str(make(tmp_path / "policy", golden_root))]
    plan = planned(*flags, as_published=as_published)
    assert {name: plan.env_options[name] for name in options} == options
    found = plan.policy_kwargs.get("backbone_kwargs", {})
    assert {name: found[name] for name in backbone} == backbone
    if "protocol" not in options:
        return
    asked = planned(*flags, "-params", "chunk:4", "policy_kwargs:{backbone_kwargs: {num_steps: 7}}")
    assert (asked.env_options["chunk"], asked.policy_kwargs["backbone_kwargs"]["num_steps"]) == (4, 7)


@pytest.mark.parametrize(("as_published", "as_rlinf"), [(False, False), (True, True)])
def test_a_checkpoint_is_read_as_its_makers_do_outside_of_rlinfs_protocol(
    tmp_path: Path, as_published: bool, as_rlinf: bool
) -> None:
    """The recipe starts from SimpleVLA-RL's checkpoint and reads it as RLinf's program does."""
    folder = mock_checkpoints.openvla(tmp_path / "Openvla-oft-SFT-libero-spatial-traj1", ["libero_spatial_no_noops"])
    plan = planned("--env", "LIBERO-Spatial", "--policy", str(folder), as_published=as_published)
    assert plan.policy_kwargs["unnorm_key"] == "libero_spatial_no_noops"
    assert isinstance(plan.policy, PolicyRef)
    settings = plan.policy.options["settings"]
    assert (settings["stop_token"], settings["center_crop"]) == (not as_rlinf, not as_rlinf)
    assert settings["camera_resize"] == ("bicubic" if as_rlinf else "jpeg_lanczos3")
    if not as_published:
        assert "protocol" not in plan.env_options  # RLinf's recipe of the long suite has one


def test_a_recipes_own_weights_of_rlinf_act_with_its_denoising_steps() -> None:
    """The same whether they are cached or not."""
    assert planned("--env", "LIBERO-Object", "--policy", "pi05").policy_kwargs["backbone_kwargs"]["num_steps"] == 5


@pytest.mark.parametrize("trains", [False, True])
def test_a_recipe_does_not_change_the_horizon_that_a_conversion_states(tmp_path: Path, trains: bool) -> None:
    """RLinf's recipe says 50, which RLinf's own files do not."""
    folder = mock_checkpoints.openpi_pi0(tmp_path / "pi", PI_LIBERO, horizon=10)
    flags = ["--env", "LIBERO-Spatial", "--policy", str(folder)]
    if trains:
        kwargs = resolve_new_run(train_command.parser().parse([*flags, "--algo", "ppo"])).policy_kwargs
    else:
        kwargs = dict(planned(*flags).policy_kwargs)
    request = Request(unnorm_key=kwargs["unnorm_key"], options=kwargs["backbone_kwargs"])
    assert open_folder(folder, request).header.model["network"]["horizon"] == 10


# Its environment ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--stochastic", "--seed", "2"], "results_stochastic_seed-2"),
        (["--stochastic"], "results_stochastic"),
        (["--seed", "2"], "results"),  # deterministic actions draw nothing
        (["-params", "instructions:{reach_red: touch it}"], "results_instructions"),
    ],
)
def test_what_departs_from_the_run_stands_in_the_name(tmp_path: Path, flags: list[str], name: str) -> None:
    run = begun(tmp_path, "ppo", at=1.0)
    mock_checkpoints.nano(run.best)
    assert planned("-i", str(run.path), *flags).named("results") == name


def test_an_evaluation_under_other_words(tmp_path: Path) -> None:
    words, out = tmp_path / "words.yml", tmp_path / "results.json"
    words.write_text("reach_red: touch the block as red as a tomato\n")
    argv = [*TOY, "--eval-episodes", "3", "--device", "cpu", "--instructions", str(words), "-o", str(out)]
    assert evaluate.run(argv) == 0
    record = json.loads(out.read_text())
    assert ", own words for 1 task, split train" in record["summary"]
    protocol = record["protocol"]
    assert protocol["own_instructions"] == {"reach_red": "reach the red block"}
    assert protocol["tasks"][0]["instruction"] == "touch the block as red as a tomato"


def test_the_benchmark_s_own_options_go_over_the_recipe_s() -> None:
    argv = ["--env", "LIBERO-Object", "--policy", "nano", "--split", "test", "-params"]
    drawn = planned(*argv, "env_kwargs:{sampled_starts: 7}", episodes=None)
    assert (drawn.env_options["sampled_starts"], len(drawn.start_states)) == (7, 10 * 7)
    assert len(planned(*argv, "env_kwargs:{sampled_starts: 0}", episodes=None).start_states) == 10 * 50
    for wrong in ("env_kwargs:{sampled_start: 7}", "env_kwargs:{sampled_starts: -7}"):
        with pytest.raises(VLAZooError, match=r"sampled_starts|-7"):
            planned(*argv, wrong)


@pytest.mark.parametrize(
    ("env", "options", "split"),
    [
        ("Toy-Reach", {}, "test"),
        ("MetaWorld/reach", {"sampled_starts": 500}, "test"),
        ("ManiSkill/PushCube", {}, "test"),
        ("LIBERO-Object", {"sampled_starts": 7}, "test"),
        ("LIBERO-Object", {}, "train"),  # published start states, the same in every split
        ("ManiSkill-Plate25", {}, "train"),  # the test split has other objects
        ("ManiSkill-Plate25-Carrot", {}, "train"),  # a run has one split
        ("Toy-Reach", {"split": "validation"}, "validation"),
    ],
)
def test_a_run_is_evaluated_on_start_states_it_was_not_trained_on(
    env: str, options: dict[str, Any], split: str
) -> None:
    assert unplayed_split(env, {"split": "train", **options}) == split


@pytest.mark.sim
def test_only_evaluations_leave_the_run_s_split(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("metaworld")

    def split(*flags: str, unplayed: bool = True) -> str | None:
        plan = planned("-i", "agents/ppo/MetaWorld-window-open", *flags, unplayed=unplayed)
        assert plan.departures == (("train",) if "train" in flags else ())
        assert plan.output_folder is None  # nothing is written beside a shipped agent, even in a checkout
        return plan.protocol.split

    assert split() == "test"
    assert split("--split", "train") == "train"
    assert split(unplayed=False) in (None, "train")


@pytest.mark.parametrize("command", ["evaluate", "train", "plan"])
def test_a_flow_checkpoint_of_another_robot_is_refused_with_what_to_do(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """LIBERO's 8 numbers of state and 7 of action; Meta-World has 4 and 4."""
    folder = mock_checkpoints.openpi_pi0(tmp_path, PI_LIBERO, horizon=50)
    flags = ["--env", "MetaWorld/reach", "--policy", str(folder)]
    assert main([command, *flags, *(["--dry-run"] if command == "train" else [])]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "statistics have 8 dims, 4 are needed: it was trained on another robot" in line
    assert "vla-zoo sft" in line
    # What the line proposes opens: without statistics, and without actions relative to the state.
    options = "policy_kwargs:{backbone_kwargs: {use_statistics: false}}"
    config, policy = open_new_run(train_command.parser().parse([*flags, "--seed", "0", "-params", options]))
    model = policy.fitted(env_conventions(config.benchmark, config.env_options), None).header.model["preprocessing"]
    assert (model["state"], model["action"], model["delta_dims"]) == (None, None, 0)


@pytest.mark.parametrize(
    ("lengths", "says"),
    [
        ({"state_dim": 3}, "made for state_dim=3, the environment has state_dim=2"),
        ({"action_dim": 7}, "made for action_dim=7, the environment has action_dim=2"),
        ({}, ""),
    ],
)
def test_a_policy_for_other_states_or_actions_is_refused_before_simulators_start(
    lengths: dict[str, int], says: str, tmp_path: Path
) -> None:
    flags = ["--env", "Toy-Reach", "--policy", str(mock_checkpoints.nano(tmp_path, chunk=4, **lengths))]
    if not says:
        assert planned(*flags).num_envs == 1
        return
    with pytest.raises(BadValue, match=f"^the policy was {says}$"):
        planned(*flags)


@pytest.mark.sim
def test_an_agent_that_learned_from_sampled_starts_goes_to_a_suite_without_them() -> None:
    pytest.importorskip("libero")
    asked = ["-i", "agents/sft/LIBERO-Spatial", "--env", "LIBERO-Spatial-PRO-lan"]
    plan = planned(*asked, episodes=10)
    assert "sampled_starts" not in plan.env_options
    assert plan.env_options["render_quality"] == "fast"
    with pytest.raises(UnknownName, match="sampled_starts"):
        planned(*asked, "-params", "env_kwargs:{sampled_starts: 5}", episodes=10)


@pytest.mark.parametrize(("steps", "episodes"), [(1, 1), (12, 1), (13, 2), (10**9, 150)])
def test_simulator_steps_stand_for_episodes_of_the_horizon(steps: int, episodes: int) -> None:
    args = enjoy.parser().parse([*TOY, "-n", str(steps)])
    assert len(plan_rollout(args, episodes=args.episodes, n_timesteps=args.n_timesteps).start_states) == episodes
