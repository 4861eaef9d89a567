"""`zoo.plan`: arithmetic, memory and what fits, without starting anything."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from zoo import plan
from zoo.cli.main import main
from zoo.cli.run_flags import resolve_new_run
from zoo.runs.folder import create_run_folder, describe_run
from zoo.train import parser


def planned(capsys: pytest.CaptureFixture[str], flags: str) -> str:
    assert main(["plan", *flags.split()]) == 0
    return capsys.readouterr().out


def test_a_plan_counts_ranks_and_memory(
    tmp_path: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(str(tmp_path))
    said = planned(capsys, "--env Toy-Reach --num-envs 64 --ranks 8 --pipeline-stages 2 --gpu-memory 4 --host-memory 1")
    assert "ranks        8 x 8 envs, 64 in all (8 groups of 1); 8 x 16 decisions of each minibatch" in said
    assert "stages       2 x 4 envs of each rank" in said
    assert "fits         device: yes" in said
    assert "fits         host: yes" in said
    assert os.listdir() == []


def test_a_published_row_s_recipe_is_planned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan, "memory_lines", lambda *_, **__: [])  # counting its policy takes long
    monkeypatch.setattr(plan, "trains_in_16_bits", lambda *_: False)
    said = planned(capsys, "--published libero-130-grpo --ranks 8")
    assert "environment  LIBERO-130: 130 tasks" in said
    assert main(["plan", "--published", "libero-130-bse"]) == 2


@pytest.mark.parametrize(
    ("flags", "num_envs"),
    [
        ("--ranks 1", 8),
        ("--ranks 8", 64),
        ("--ranks 8 --num-envs 16", 16),
        ("--ranks 8 -params num_envs:24", 24),
        ("--ranks 8 -params num_envs_per_process:2", 16),
    ],
)
def test_a_recipe_for_one_gpu_brings_environments_to_each(flags: str, num_envs: int):
    asked = f"--env Toy-Reach --policy openvla-oft {flags}"
    assert resolve_new_run(plan.parser().parse(asked.split())).num_envs == num_envs


def test_a_split_run_counts_the_processes_that_collect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    args = ["--env", "Toy-Reach", "--policy", "openvla-oft", "--placement", "env=0-1,rollout=2-3,actor=4-7"]
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert resolve_new_run(parser().parse(args)).num_envs == 16


def test_two_counts_of_environments_contradict_each_other(capsys: pytest.CaptureFixture[str]):
    assert main(["plan", "--env", "Toy-Reach", "-params", "num_envs:8", "num_envs_per_process:8"]) == 2
    assert "num_envs counts the environments of all processes" in capsys.readouterr().err


def test_a_plan_that_does_not_fit_says_so(capsys: pytest.CaptureFixture[str]):
    said = planned(capsys, "--env Toy-Reach --gpu-memory 0.000001")
    assert "fits         device: NO" in said
    assert "not with any micro-batch" in said


def test_the_plan_of_a_run_that_goes_on_is_of_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = resolve_new_run(parser().parse(["--env", "Toy-Reach", "-n", "1000", "--num-envs", "6"]))
    run = create_run_folder(tmp_path, "ppo", "Toy-Reach")
    describe_run(run, config=config, args={}, command=["x"], protocol={})
    run.checkpoint(600).mkdir(parents=True)
    said = planned(capsys, f"-i {run.path} -n 2000 --ranks 2")
    assert "run          2000 simulator steps" in said
    assert "ranks        2 x 3 envs, 6 in all" in said
    assert f"resumes      from {run.checkpoint(600)} at 600 simulator steps, in place" in said
    assert main(["plan", "-i", str(run.path), "--num-envs", "8"]) == 2
    assert "--num-envs cannot change when a run goes on with -i" in capsys.readouterr().err


def test_a_plan_needs_no_simulator_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "metaworld", None)
    said = planned(capsys, "--env MetaWorld/reach --dry-run -f here -tb there -P")
    assert "environment  MetaWorld/reach: 1 tasks" in said
    assert os.listdir() == []


def test_what_is_known_is_printed_before_the_policy_is_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    said: list[str] = []

    def counted(*_: object, **__: object) -> list[str]:
        said.append(capsys.readouterr().out)
        return []

    monkeypatch.setattr(plan, "memory_lines", counted)
    assert main(["plan", "--env", "Toy-Reach"]) == 0
    assert "environment  Toy-Reach" in said[0]


OFT = "--env Toy-Reach --policy openvla-oft -params chunk:8 n_steps:2 batch_size:32"


def test_a_plan_chooses_what_fits(capsys: pytest.CaptureFixture[str]):
    tiny = [*OFT.split(), "policy_kwargs:{backbone_kwargs: {size: tiny, lora: {rank: 4}, recompute: false}}"]
    # Weights and allowance alone are 2.01 GiB; what 16 decisions keep is 0.01 more.
    assert main(["plan", *tiny, "--gpu-memory", "2.018"]) == 0
    said = capsys.readouterr().out
    assert "chosen       by the GPU's memory: 4 decisions scored at once" in said
    assert "fits         device: yes" in said


def test_a_plan_of_roles_counts_each_kind_of_rank(capsys: pytest.CaptureFixture[str]):
    said = planned(capsys, "--env Toy-Reach --num-envs 8 --ranks 3 --placement env=0,rollout=1,actor=2 --gpu-memory 4")
    assert "memory       of each of 1 ranks that simulate:" in said
    assert "memory       of each of 1 ranks that decide:" in said
    assert "memory       of each of 1 ranks that learn:" in said
    assert said.count("Adam's two moments") == 1


def test_a_placement_says_how_many_ranks_there_are(capsys: pytest.CaptureFixture[str]):
    split = "--env Toy-Reach --num-envs 64 --placement env=0-1,rollout=2,actor=3"
    assert planned(capsys, split) == planned(capsys, f"{split} --ranks 4")
    assert "ranks" not in planned(capsys, "--env Toy-Reach --num-envs 64 --placement all")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--env Toy-Reach --num-envs 60 --ranks 8", "Nearest allowed: --num-envs 56 or 64"),
        ("--env Toy-Reach --gpu-memory many", "--gpu-memory: must be a number, got 'many'"),
        ("--env Toy-Reach --rank 8", "did you mean '--ranks'?"),
    ],
)
def test_misfits_are_one_line(capsys: pytest.CaptureFixture[str], flags: str, says: str):
    assert main(["plan", *flags.split()]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.splitlines()) == 1
