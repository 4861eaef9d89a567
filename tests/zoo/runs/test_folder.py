from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from vla_gym.errors import BadValue
from zoo.config.run_config import RunConfig
from zoo.runs.folder import (
    FINETUNING,
    RunFolder,
    create_run_folder,
    describe_run,
    find_resume_point,
    find_run,
    policy_folder,
)
from zoo.runs.git_commit import commit_note

CONFIG = RunConfig(
    algo="ppo",
    env="LIBERO-Spatial/3",
    policy="nano",
    n_timesteps=100,
    num_envs=4,
    seed=1,
    env_options={"chunk": 8, "group_size": 2},
    algo_kwargs={"learning_rate": {"schedule": "linear", "start": 1e-3}},
)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = create_run_folder(tmp_path, "ppo", CONFIG.env)
    describe_run(run, config=CONFIG, args={"env": CONFIG.env}, command=["python", "a b"], protocol={"x": 1})
    return run


def hold_policy(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")


def test_folders_are_numbered_like_rl_zoo3s(tmp_path: Path) -> None:
    names = [create_run_folder(tmp_path, "ppo", "LIBERO-Spatial/3").path.name for _ in range(2)]
    assert names == ["LIBERO-Spatial-3_1", "LIBERO-Spatial-3_2"]
    assert create_run_folder(tmp_path, "ppo", "LIBERO-Spatial").path.name == "LIBERO-Spatial_1"
    (tmp_path / "ppo" / "LIBERO-Spatial_10").mkdir()
    assert create_run_folder(tmp_path, "ppo", "LIBERO-Spatial").path.name == "LIBERO-Spatial_11"


def test_a_folder_that_cannot_be_made_is_the_users_to_mend(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadValue, match="cannot write run folders"):
        create_run_folder(tmp_path / "file", "ppo", "Toy-Reach")


def test_the_configuration_survives_the_folder(run: RunFolder) -> None:
    assert run.config() == CONFIG
    assert CONFIG.chunk == 8
    assert CONFIG.group_size == 2


def test_every_start_is_a_line_of_command_txt(run: RunFolder) -> None:
    describe_run(run, config=CONFIG, args={}, command=["python", "-i", "x"], protocol={})
    lines = (run.path / "command.txt").read_text().splitlines()
    assert [line.split("  #")[0] for line in lines] == ["python 'a b'", "python -i x"]


def test_the_flags_of_the_first_start_stay(run: RunFolder) -> None:
    longer = replace(CONFIG, n_timesteps=200)
    describe_run(run, config=longer, args={"env": None}, command=["python", "-i", "x"], protocol={})
    assert yaml.safe_load((run.path / "args.yml").read_text()) == {"env": CONFIG.env}
    assert run.config() == longer


def test_the_commit_is_this_projects_own(tmp_path: Path) -> None:
    own, others = tmp_path / "zoo", tmp_path / ".venv" / "site-packages" / "zoo"
    for package in (own, others):
        package.mkdir(parents=True)
        assert commit_note(package) == ""
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for command in (["init", "-q"], [*identity, "commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    assert re.fullmatch(", commit [0-9a-f]{12}", commit_note(own))
    assert commit_note(others) == ""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("algo: ppo", "algoo: ppo", "Did you mean 'algo'"),
        ("seed: 1\n", "", "lacks seed"),
        ("num_envs: 4", "num_envs: 3", "group_size"),
        ("seed: 1\n", "seed: 4294967296\n", r"seed must be an integer in 0 \.\. 4294967295"),
    ],
)
def test_a_damaged_configuration_is_refused(run: RunFolder, old: str, new: str, message: str) -> None:
    file = run.path / "config.yml"
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ValueError, match=message):
        run.config()


def test_a_missing_run_names_the_nearest(run: RunFolder) -> None:
    with pytest.raises(BadValue, match=r"Did you mean '.*LIBERO-Spatial-3_1'"):
        find_run(str(run.path.with_name("LIBERO-Spatial-3_2")))
    with pytest.raises(BadValue, match="not even"):
        find_run(str(run.path / "no" / "where"))


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="no run folder"):
        find_run(str(tmp_path))


@pytest.mark.parametrize("missing", ["args.yml", "config.yml"])
def test_the_file_that_a_run_lacks_is_named(run: RunFolder, missing: str) -> None:
    run.best.mkdir()
    (run.path / missing).unlink()
    for folder in (run.path, run.best):
        with pytest.raises(BadValue, match=f"LIBERO-Spatial-3_1' is incomplete: it has no {missing}$"):
            find_run(str(folder))


def test_a_run_resumes_in_place_from_its_newest_checkpoint(run: RunFolder) -> None:
    for step in (9, 100, 20):
        run.checkpoint(step).mkdir(parents=True)
    point = find_resume_point(str(run.path))
    assert (point.step, point.in_place, point.checkpoint) == (100, True, run.checkpoint(100))


def test_one_checkpoint_resumes_into_a_new_folder(run: RunFolder) -> None:
    run.checkpoint(20).mkdir(parents=True)
    point = find_resume_point(str(run.checkpoint(20)))
    assert (point.step, point.in_place) == (20, False)
    assert point.run.path.resolve() == run.path.resolve()


def test_what_cannot_be_resumed_says_what_to_do(run: RunFolder) -> None:
    with pytest.raises(BadValue, match="no checkpoint to resume"):
        find_resume_point(str(run.path))
    hold_policy(run.best)
    with pytest.raises(BadValue, match=r"weights only .* --policy .*best$"):
        find_resume_point(str(run.best))


def test_a_policy_without_a_checkpoint_begins_a_new_run(run: RunFolder) -> None:
    hold_policy(run.best)
    with pytest.raises(BadValue, match=r"to resume from .*, start a new one from .* --policy \S+/best$"):
        find_resume_point(str(run.path))
    with pytest.raises(BadValue, match=r"is a run of zoo\.train: start a new run .* --policy \S+/best$"):
        find_resume_point(str(run.path), FINETUNING)


def test_a_shipped_agent_begins_a_new_run_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadValue, match=r"to resume from .* --policy \S+/agents/sft/MetaWorld-reach$"):
        find_resume_point("agents/sft/MetaWorld-reach", FINETUNING)
    with pytest.raises(
        BadValue, match=r"of zoo\.sft: start a new run .* --policy \S+/agents/sft/MetaWorld-reach$"
    ):
        find_resume_point("agents/sft/MetaWorld-reach")


def test_advice_quotes_paths_with_spaces(run: RunFolder, tmp_path: Path) -> None:
    hold_policy(run.checkpoint(20))
    hold_policy(run.best)
    spaced = RunFolder(run.path.rename(tmp_path / "my run"))
    for folder, command in ((spaced.path, FINETUNING), (spaced.best, "zoo.train")):
        with pytest.raises(BadValue, match=rf" -i '{spaced.path}'.* --policy '{spaced.best}'$"):
            find_resume_point(str(folder), command)
    with pytest.raises(BadValue, match=rf"-i '{spaced.path}', .* -i '{spaced.checkpoint(20)}'$"):
        find_resume_point(str(spaced.checkpoints))


def test_a_folder_of_a_run_without_a_checkpoint_is_not_called_one(run: RunFolder) -> None:
    run.videos.mkdir()
    with pytest.raises(BadValue, match=r"is no checkpoint\. Resume .* -i .*checkpoints/step_<n>$"):
        find_resume_point(str(run.videos))
    for step in (20, 9):
        hold_policy(run.checkpoint(step))
    for folder in (run.checkpoints, run.videos):
        with pytest.raises(BadValue, match=r"is no checkpoint\. Resume .* -i .*checkpoints/step_20$"):
            find_resume_point(str(folder))


def test_a_run_of_another_command_names_it_and_a_policy_that_is_there(run: RunFolder) -> None:
    named = r"is a run of zoo\.train: go on with python -m zoo\.train -i \S+"
    with pytest.raises(BadValue, match=f"{named}$"):
        find_resume_point(str(run.path), FINETUNING)
    hold_policy(run.checkpoint(20))
    with pytest.raises(BadValue, match=rf"{named}, .* --policy \S+step_20$"):
        find_resume_point(str(run.path), FINETUNING)
    hold_policy(run.best)
    with pytest.raises(BadValue, match=rf"{named}, .* --policy \S+best$"):
        find_resume_point(str(run.path), FINETUNING)


def test_the_policy_of_a_run_is_the_best_else_the_newest(run: RunFolder) -> None:
    with pytest.raises(BadValue, match="no policy yet"):
        policy_folder(str(run.path))
    for step in (5, 30):
        run.checkpoint(step).mkdir(parents=True)
        (run.checkpoint(step) / "config.json").write_text("{}")
    assert policy_folder(str(run.path)) == run.checkpoint(30)
    assert policy_folder(str(run.checkpoint(5))) == run.checkpoint(5)
    run.best.mkdir()
    (run.best / "config.json").write_text("{}")
    assert policy_folder(str(run.path)) == run.best


def test_a_folder_of_a_run_that_lost_its_policy_is_not_replaced_by_another(run: RunFolder) -> None:
    run.checkpoint(5).mkdir(parents=True)
    for folder in (run.checkpoint(5), run.checkpoints):
        with pytest.raises(BadValue, match=r"' holds no policy: it lacks config\.json$"):
            policy_folder(str(folder))
    hold_policy(run.best)
    with pytest.raises(BadValue, match=r"step_5' holds no policy: .* -i \S+, for the policy in \S+/best$"):
        policy_folder(str(run.checkpoint(5)))


def test_a_kill_while_a_run_is_described_anew_leaves_its_description(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(path: Path, text: str, **_: object) -> None:
        with path.open("w") as file:
            file.write(text[:3])
        raise OSError(28, "No space left on device")

    before = {file.name: file.read_bytes() for file in run.path.iterdir()}
    monkeypatch.setattr(Path, "write_text", cut_off)
    with pytest.raises(OSError, match="No space"):
        describe_run(run, config=replace(CONFIG, n_timesteps=200), args={}, command=["x"], protocol={"x": 2})
    assert {file.name: file.read_bytes() for file in run.path.iterdir()} == before
