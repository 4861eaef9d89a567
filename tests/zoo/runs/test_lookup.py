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
    run.videos.mkdir()
    hold_policy(run.best)
    for folder in (run.path, run.best, run.videos, run.checkpoints):
        folder.mkdir(exist_ok=True)
        with pytest.raises(BadValue, match=rf"has no checkpoint to resume from .* --policy {folder}$"):
            find_resume_point(str(folder))


def test_a_run_of_another_command_names_it(run: RunFolder, cwd: Path) -> None:
    spaced = run.path.rename(cwd / "my run")
    with pytest.raises(BadValue, match=rf"is a run of vla-zoo train: .* -i '{spaced}', .* --policy '{spaced}'$"):
        find_resume_point(str(spaced), FINETUNING)
    with pytest.raises(BadValue, match=r"is a run of vla-zoo sft"):
        find_resume_point("agents/sft/MetaWorld-window-open")


def test_the_policy_of_a_run_is_the_best_else_the_newest(run: RunFolder) -> None:
    with pytest.raises(BadValue, match="holds no policy"):
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
    hold_policy(run.best)
    for folder in (run.checkpoint(5), run.checkpoints):
        with pytest.raises(BadValue, match="holds no policy"):
            policy_folder(str(folder))
