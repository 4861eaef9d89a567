from __future__ import annotations

from pathlib import Path

import pytest

from tests.zoo.runs.test_folder import run
from vla_gym.errors import BadValue
from zoo.runs.folder import RunFolder
from zoo.runs.lookup import FINETUNING, find_resume_point, find_run, policy_folder

__all__ = ["run"]


def hold_policy(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")


def test_a_missing_run_names_the_nearest(run: RunFolder) -> None:
    with pytest.raises(BadValue, match=r"Did you mean '.*LIBERO-Spatial-3_1'"):
        find_run(str(run.path.with_name("LIBERO-Spatial-3_2")))
    with pytest.raises(BadValue, match="not even"):
        find_run(str(run.path / "no" / "where"))


def test_a_folder_of_rounds_names_the_run_of_the_newest(tmp_path: Path) -> None:
    for number in (2, 10):
        learned = tmp_path / f"round_{number}" / "sft" / "Toy-Reach_1"
        learned.mkdir(parents=True)
        (learned / "config.yml").touch()
        (learned / "args.yml").touch()
    with pytest.raises(BadValue, match=r"is a folder of zoo\.improve; the run of its newest round is '.*round_10/sft/"):
        find_run(str(tmp_path))


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


def test_a_shipped_agent_begins_a_new_run_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadValue, match=r"to resume from .* --policy \S+/agents/sft/MetaWorld-reach$"):
        find_resume_point("agents/sft/MetaWorld-reach", FINETUNING)
    with pytest.raises(BadValue, match=r"of zoo\.sft: start a new run .* --policy \S+/agents/sft/MetaWorld-reach$"):
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
