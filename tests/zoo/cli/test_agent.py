"""Which policy acts, of a run or by name, and in which environment."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests import mock_checkpoints
from tests.zoo.test_enjoy import begun
from vla_gym import list_envs
from vla_gym.errors import BadValue, UnknownName
from vla_policies.model_folder import Request
from vla_policies.resolver import open_folder
from zoo import enjoy, evaluate, record_video
from zoo import train as train_command
from zoo.cli.agent import plan_rollout, unplayed_split
from zoo.cli.main import guarded
from zoo.cli.run_flags import resolve_new_run
from zoo.config.gym_packages import import_gym_packages

EVALUATE = ["--env", "Toy-Reach", "--policy", "nano", "--eval-episodes", "3", "--device", "cpu"]


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


def test_an_evaluation_under_other_words(tmp_path: Path) -> None:
    words = tmp_path / "words.yml"
    words.write_text("reach_red: touch the block as red as a tomato\n")
    out = tmp_path / "results.json"
    assert evaluate.run([*EVALUATE, "--instructions", str(words), "-o", str(out)]) == 0
    record = json.loads(out.read_text())
    assert ", own words for 1 task, split train" in record["summary"]
    protocol = record["protocol"]
    assert protocol["own_instructions"] == {"reach_red": "reach the red block"}
    assert protocol["tasks"][0]["instruction"] == "touch the block as red as a tomato"


def test_other_words_in_params_are_a_departure_from_the_run(tmp_path: Path) -> None:
    run = begun(tmp_path, "ppo", at=1.0)
    mock_checkpoints.nano(run.best)
    args = evaluate.parser().parse(["-i", str(run.path), "-params", "instructions:{reach_red: touch it}"])
    assert plan_rollout(args, episodes=1).named("results") == "results_instructions"


@pytest.mark.parametrize(("as_published", "as_rlinf"), [(False, False), (True, True)])
def test_a_checkpoint_is_read_as_its_makers_do_outside_of_rlinfs_protocol(
    tmp_path: Path, as_published: bool, as_rlinf: bool
) -> None:
    """The recipe starts from SimpleVLA-RL's checkpoint and reads it as RLinf's program does."""
    folder = mock_checkpoints.openvla(tmp_path / "Openvla-oft-SFT-libero-spatial-traj1", ["libero_spatial_no_noops"])
    args = evaluate.parser().parse(["--env", "LIBERO-Spatial", "--policy", str(folder)])
    plan = plan_rollout(args, episodes=1, as_published=as_published)
    assert plan.policy_kwargs["unnorm_key"] == "libero_spatial_no_noops"
    options = plan.policy_kwargs.get("backbone_kwargs", {})
    request = Request(unnorm_key=plan.policy_kwargs["unnorm_key"], options=options)
    settings = open_folder(folder, request).header.model["settings"]
    assert settings["stop_token"] is not as_rlinf
    assert settings["center_crop"] is not as_rlinf
    assert settings["camera_resize"] == ("bicubic" if as_rlinf else "jpeg_lanczos3")


@pytest.mark.parametrize("env", ["LIBERO-Spatial", "LIBERO-Long", "LIBERO-10"])
def test_a_checkpoint_that_is_read_as_its_makers_do_is_not_under_rlinfs_protocol(tmp_path: Path, env: str) -> None:
    """RLinf's recipe of the long suite has its protocol: 512 steps, of which OpenVLA-OFT's script knows nothing."""
    data_sets = ["libero_spatial_no_noops" if env == "LIBERO-Spatial" else "libero_10_no_noops"]
    folder = mock_checkpoints.openvla(tmp_path / "Openvla-oft-SFT-libero10-traj1", data_sets)
    args = evaluate.parser().parse(["--env", env, "--policy", str(folder)])
    assert "protocol" not in plan_rollout(args, episodes=1).env_options
    asked = evaluate.parser().parse(["--env", env, "--policy", str(folder), "-params", "env_kwargs:{protocol: rlinf}"])
    assert plan_rollout(asked, episodes=1).env_options["protocol"] == "rlinf"


def test_a_folder_of_lerobot_acts_by_its_own_number_of_steps(golden_root: Path) -> None:
    """How many actions of a decision are carried out decides SmolVLA's score as much as its weights do."""
    flags = ["--env", "LIBERO-Spatial", "--policy", str(golden_root / "smolvla_tiny" / "checkpoint")]
    plan = plan_rollout(evaluate.parser().parse(flags), episodes=1)
    assert (plan.env_options["chunk"], plan.env_options["protocol"]) == (6, "lerobot")
    asked = plan_rollout(evaluate.parser().parse([*flags, "-params", "chunk:4"]), episodes=1)
    assert asked.env_options["chunk"] == 4
    # A run trains by its recipe.
    training = train_command.parser().parse([*flags, "--algo", "ppo"])
    assert resolve_new_run(training).chunk == 10


PI_LIBERO = "physical-intelligence/libero"


@pytest.mark.parametrize("env", ["LIBERO-Spatial", "LIBERO-Long", "LIBERO-Goal-PRO-lan"])
@pytest.mark.parametrize(("pi05", "horizon"), [(False, 50), (True, 10), (True, None)])
def test_a_folder_of_openpi_acts_as_in_openpis_example(
    tmp_path: Path, env: str, pi05: bool, horizon: int | None
) -> None:
    """examples/libero/main.py: 220 to 520 steps, 10 waits, 5 actions of a decision; RLinf's recipe has others."""
    folder = mock_checkpoints.openpi_pi0(tmp_path / "pi", PI_LIBERO, pi05=pi05, horizon=horizon)
    flags = ["--env", env, "--policy", str(folder)]
    plan = plan_rollout(evaluate.parser().parse(flags), episodes=1)
    assert (plan.env_options["chunk"], plan.env_options["protocol"]) == (5, "openvla-oft")
    assert (plan.env_options["image_size"], plan.env_options["wrist_camera"]) == (256, True)
    assert "num_steps" not in plan.policy_kwargs["backbone_kwargs"]  # its own: 10
    asked = [*flags, "-params", "chunk:10", "env_kwargs:{protocol: rlinf-pi}"]
    options = plan_rollout(evaluate.parser().parse(asked), episodes=1).env_options
    assert (options["chunk"], options["protocol"]) == (10, "rlinf-pi")
    published = plan_rollout(evaluate.parser().parse(flags), episodes=1, as_published=True)
    assert published.env_options["chunk"] == (10 if env == "LIBERO-Long" else 5)


@pytest.mark.parametrize(
    ("env", "pi05", "chunk", "steps"),
    [("LIBERO-Spatial", False, 5, 4), ("LIBERO-Long", False, 10, 4), ("LIBERO-Spatial", True, 5, 3)],
)
def test_a_folder_of_rlinf_acts_by_rlinfs_recipe(tmp_path: Path, env: str, pi05: bool, chunk: int, steps: int) -> None:
    folder = mock_checkpoints.rlinf_pi0(tmp_path / "sft", PI_LIBERO, pi05=pi05)
    flags = ["--env", env, "--policy", str(folder)]
    plan = plan_rollout(evaluate.parser().parse(flags), episodes=1)
    assert (plan.env_options["chunk"], plan.env_options["protocol"]) == (chunk, "rlinf-pi")
    assert plan.policy_kwargs["backbone_kwargs"]["num_steps"] == steps
    asked = [*flags, "-params", "policy_kwargs:{backbone_kwargs: {num_steps: 7}}"]
    kwargs = plan_rollout(evaluate.parser().parse(asked), episodes=1).policy_kwargs
    assert kwargs["backbone_kwargs"]["num_steps"] == 7


def test_a_recipes_own_weights_of_rlinf_act_with_its_denoising_steps() -> None:
    """The same whether they are cached or not."""
    plan = plan_rollout(evaluate.parser().parse(["--env", "LIBERO-Object", "--policy", "pi05"]), episodes=1)
    assert plan.policy_kwargs["backbone_kwargs"]["num_steps"] == 5


@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize("pi05", [False, True])
def test_pi0_sees_the_plate25_camera_with_its_aspect_kept(tmp_path: Path, pi05: bool, as_published: bool) -> None:
    """RLinf passes 640 x 480 to openpi's transforms, which leave black above and below."""
    folder = mock_checkpoints.rlinf_pi0(tmp_path / "sft", "physical-intelligence/maniskill", pi05=pi05)
    flags = evaluate.parser().parse(["--env", "ManiSkill-Plate25-Carrot", "--policy", str(folder)])
    assert plan_rollout(flags, episodes=1, as_published=as_published).env_options["aspect"] == "kept"


@pytest.mark.parametrize("family", ["pi0", "pi05"])
@pytest.mark.parametrize("env", ["LIBERO-Spatial", "LIBERO-Long", "MetaWorld-MT50"])
def test_a_lerobot_folder_of_pi0_acts_as_in_lerobot(
    tmp_path: Path, golden_root: Path, family: str, env: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = lerobot_folder(tmp_path / "pi", golden_root / f"{family}_tiny", n_action_steps=3)
    flags = ["--env", env, "--policy", str(folder)]
    options = plan_rollout(evaluate.parser().parse(flags), episodes=1).env_options
    assert (options["chunk"], options["protocol"]) == (3, "lerobot")
    assert not caplog.messages  # its files say how it is read
    asked = plan_rollout(evaluate.parser().parse([*flags, "-params", "chunk:4"]), episodes=1)
    assert asked.env_options["chunk"] == 4


@pytest.mark.parametrize("trains", [False, True])
def test_a_recipe_does_not_change_the_horizon_that_a_conversion_states(tmp_path: Path, trains: bool) -> None:
    """RLinf's recipe says 50, which RLinf's own files do not."""
    folder = mock_checkpoints.openpi_pi0(tmp_path / "pi", PI_LIBERO, horizon=10)
    flags = ["--env", "LIBERO-Spatial", "--policy", str(folder)]
    if trains:
        kwargs = resolve_new_run(train_command.parser().parse([*flags, "--algo", "ppo"])).policy_kwargs
    else:
        kwargs = dict(plan_rollout(evaluate.parser().parse(flags), episodes=1).policy_kwargs)
    request = Request(unnorm_key=kwargs["unnorm_key"], options=kwargs["backbone_kwargs"])
    assert open_folder(folder, request).header.model["network"]["horizon"] == 10


def test_another_seed_of_sampled_actions_stands_in_the_name(tmp_path: Path) -> None:
    run = begun(tmp_path, "ppo", at=1.0)
    mock_checkpoints.nano(run.best)

    def name(*flags: str) -> str:
        return plan_rollout(evaluate.parser().parse(["-i", str(run.path), *flags]), episodes=1).named("results")

    assert name("--stochastic", "--seed", "2") == "results_stochastic_seed-2"
    assert name("--stochastic") == "results_stochastic"
    assert name("--seed", "2") == "results"  # deterministic actions draw nothing


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file"),
        ("- a list", "must map task names to instructions, got list"),
        ("{", "--instructions"),
        (
            "reach_rad: x",
            "no task of Toy-Reach 'reach_rad'. Known: reach_blue, reach_green, reach_red. Did you mean",
        ),
        ("reach_red: ''", "allowed are 1 to 160"),
    ],
)
def test_words_that_cannot_be_told(
    text: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tmp_path / "words.yml"
    if text is not None:
        words.write_text(text)
    assert guarded(evaluate.run, [*EVALUATE, "--instructions", str(words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_wrong_way_to_meet_failures_names_the_right_ones(capsys: pytest.CaptureFixture[str]) -> None:
    for command, argv in (
        (evaluate.run, EVALUATE),
        (train_command.run, ["--env", "Toy-Reach", "--dry-run"]),
    ):
        assert guarded(command, [*argv, "--on-worker-error", "restrat"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "'restrat'. Known: raise, restart. Did you mean 'restart'" in line


def test_modules_of_one_s_own_are_imported_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = """
        import vla_gym
        vla_gym.register_benchmark("vla_gym.adapters.toy:toy_benchmark", num_tasks={"My-Reach": 3})
    """
    (tmp_path / "my_reach_tasks.py").write_text(textwrap.dedent(module))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    monkeypatch.setattr("vla_gym.registry._ADDED", [])
    import_gym_packages(["my_reach_tasks"])
    assert "My-Reach" in list_envs()


def test_a_module_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_more.py").write_text("import surely_not_installed_anywhere\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(BadValue, match=r"no module 'my_tasks'.*Call the command in the folder"):
        import_gym_packages(["my_tasks"])
    with pytest.raises(BadValue, match=r"'needs_more' needs a module that is not here: .*surely_not_installed"):
        import_gym_packages(["needs_more"])


def test_the_benchmark_s_own_options_go_over_the_recipe_s(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--env", "LIBERO-Object", "--policy", "nano", "--split", "test", "-params"]
    drawn = plan_rollout(evaluate.parser().parse([*argv, "env_kwargs:{sampled_starts: 7}"]), episodes=None)
    assert drawn.env_options["sampled_starts"] == 7
    assert len(drawn.start_states) == 10 * 7
    published = evaluate.parser().parse([*argv, "env_kwargs:{sampled_starts: 0}"])
    assert len(plan_rollout(published, episodes=None).start_states) == 10 * 50
    for params, says in (
        (
            "learning_rate:1e-4",
            "-params learning_rate: a policy that is rolled out takes settings of the environment and policy_kwargs",
        ),
        ("env_kwargs:{sampled_start: 7}", "Did you mean 'sampled_starts'"),
        ("env_kwargs:{sampled_starts: -7}", "got -7"),
    ):
        assert guarded(evaluate.run, [*argv, params]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert says in line


def test_another_split_is_evaluated_and_a_wrong_one_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--env", "MetaWorld/reach", "--policy", "nano", "--split"]
    plan = plan_rollout(evaluate.parser().parse([*argv, "test"]), episodes=1)
    assert plan.env_options["split"] == "test"
    assert guarded(evaluate.run, [*argv, "tset", "-o", str(tmp_path / "r.json")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "split 'tset'" in line


@pytest.mark.parametrize(
    ("env", "options", "split"),
    [
        ("Toy-Reach", {}, "test"),
        ("MetaWorld/reach", {"sampled_starts": 500}, "test"),
        ("ManiSkill/PushCube", {}, "test"),
        ("LIBERO-Object", {"sampled_starts": 7}, "test"),
        ("LIBERO-Object", {}, "train"),  # published start states, the same in every split
        ("ManiSkill-Plate25", {}, "train"),  # the test split has other objects
        ("ManiSkill-Plate25-CarrotTrain", {}, "train"),  # a run has one split
        ("ManiSkill-Plate25-Carrot", {}, "train"),
        ("Toy-Reach", {"split": "validation"}, "validation"),
    ],
)
def test_a_run_is_evaluated_on_start_states_it_was_not_trained_on(
    env: str, options: dict[str, Any], split: str
) -> None:
    assert unplayed_split(env, {"split": "train", **options}) == split


@pytest.mark.sim
def test_only_evaluations_leave_the_run_s_split() -> None:
    pytest.importorskip("metaworld")

    def split(*flags: str, unplayed: bool = True) -> str | None:
        args = evaluate.parser().parse(["-i", "agents/ppo/MetaWorld-window-open", *flags])
        plan = plan_rollout(args, episodes=1, unplayed=unplayed)
        assert plan.departures == (("train",) if "train" in flags else ())
        return plan.protocol.split

    assert split() == "test"
    assert split("--split", "test") == "test"
    assert split("--split", "train") == "train"
    assert split(unplayed=False) in (None, "train")


@pytest.mark.parametrize(
    ("lengths", "says"),
    [
        ({"state_dim": 3, "action_dim": 2}, "made for state_dim=3, the environment has state_dim=2"),
        ({"state_dim": 0, "action_dim": 7}, "made for action_dim=7, the environment has action_dim=2"),
        ({"state_dim": 0, "action_dim": 2}, ""),
        ({}, ""),
    ],
)
def test_a_policy_for_other_states_or_actions_is_refused_before_simulators_start(
    lengths: dict[str, int], says: str, tmp_path: Path
) -> None:
    mock_checkpoints.nano(tmp_path, chunk=4, **lengths)
    args = evaluate.parser().parse(["--env", "Toy-Reach", "--policy", str(tmp_path)])
    if not says:
        assert plan_rollout(args, episodes=1).num_envs == 1
        return
    with pytest.raises(BadValue, match=f"^the policy was {says}$"):
        plan_rollout(args, episodes=1)


@pytest.mark.sim
def test_nothing_is_written_beside_a_shipped_agent_even_in_a_checkout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from zoo.runs.shipped_agents import agents_folder

    pytest.importorskip("metaworld")
    folder = agents_folder()
    assert folder is not None
    monkeypatch.chdir(folder.parent)
    plan = plan_rollout(evaluate.parser().parse(["-i", "agents/ppo/MetaWorld-window-open"]), episodes=None)
    assert plan.output_folder is None


@pytest.mark.sim
def test_an_agent_that_learned_from_sampled_starts_goes_to_a_suite_without_them() -> None:
    pytest.importorskip("libero")
    asked = ["-i", "agents/sft/LIBERO-Spatial", "--env", "LIBERO-Spatial-PRO-lan"]
    plan = plan_rollout(evaluate.parser().parse(asked), episodes=10)
    assert "sampled_starts" not in plan.env_options
    assert plan.env_options["render_quality"] == "fast"
    with pytest.raises(UnknownName, match="no option of LIBERO-Spatial-PRO-lan 'sampled_starts'"):
        plan_rollout(evaluate.parser().parse([*asked, "-params", "env_kwargs:{sampled_starts: 5}"]), episodes=10)


# Selectors of a run, as in rl_zoo3 -------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "episodes"), [(1, 1), (12, 1), (13, 2), (10**9, 150)])
def test_simulator_steps_stand_for_episodes_of_the_horizon(steps: int, episodes: int) -> None:
    for command in (enjoy, record_video):
        args = command.parser().parse(["--env", "Toy-Reach", "--policy", "nano", "-n", str(steps)])
        plan = plan_rollout(args, episodes=args.episodes, n_timesteps=args.n_timesteps)
        assert len(plan.start_states) == episodes
