"""Whole runs on Toy-Reach, in this process: files, resuming, errors."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.zoo.launching import TINY, TOY
from vla_gym.errors import WorkerFailed
from zoo import evaluate, record_video
from zoo import train as train_command
from zoo.algorithms.on_policy import VLAOnPolicyAlgorithm
from zoo.cli.main import guarded
from zoo.evaluation.video import EvaluationVideo
from zoo.hub.upload import publish_trained
from zoo.runs.folder import RunFolder, locked
from zoo.training import evaluation as evaluator

pytestmark = pytest.mark.processes


def train(folder: Path, flags: str) -> Path:
    usual = ["num_envs:4", "eval_episodes:4", "batch_size:16", "n_epochs:1", TINY]
    argv = ["--algo", "ppo", *TOY, "--seed", "0", *flags.split(), "-f", str(folder), "-params", "n_steps:4", *usual]
    assert train_command.run(argv) == 0
    return folder / "ppo" / "Toy-Reach_1"


def resume(run: Path, flags: str = "") -> None:
    assert train_command.run(["-i", str(run), "--num-threads", "1", *flags.split()]) == 0


def metrics(run: Path) -> list[dict[str, Any]]:
    """Every line of metrics.jsonl without what a clock measured."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]


def episodes(run: Path) -> list[list[str]]:
    """Every row of monitor.csv without its seconds."""
    with (run / "monitor.csv").open(newline="") as file:
        return [row[:2] + row[3:] for row in list(csv.reader(file))[2:]]


def evaluated(run: Path) -> list[int]:
    """When it was evaluated."""
    if not (run / "evaluations.npz").exists():
        return []
    with np.load(run / "evaluations.npz") as file:
        return [int(step) for step in file["timesteps"]]


@pytest.fixture(scope="module")
def ppo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("runs"), "-n 300 --eval-freq 100 --save-freq 100")


@pytest.fixture
def copy(ppo_run: Path, tmp_path: Path) -> Path:
    """That run, to be changed."""
    return Path(shutil.copytree(ppo_run, tmp_path / "ppo" / "Toy-Reach_1"))


LONG = "-n 400 --eval-freq 100 --save-freq"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody stopped."""
    return train(tmp_path_factory.mktemp("whole"), f"{LONG} 100")


def test_evaluations_elsewhere_sampled_and_in_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = "--eval-env Toy-Reach/1 --eval-split test --eval-temperature 0.5 --eval-rounds 2"
    run = train(tmp_path, f"-n 100 --eval-freq 50 {where}")
    said = capsys.readouterr().out
    assert "Toy-Reach/1, 8 episodes = 2 rounds of 4 of 50 start states on 1 of 1 tasks" in said
    assert "actions sampled at temperature 0.5" in said
    record = json.loads((run / "evaluation.json").read_text())
    assert (record["env"], record["rounds"], record["deterministic"]) == ("Toy-Reach/1", 2, False)
    assert record["protocol"]["split"] == "test"
    assert [task["name"] for task in record["tasks"]] == ["reach_green"]
    assert [episode["round"] for episode in record["episodes"]] == [0, 1] * 4
    protocol = json.loads((run / "protocol.json").read_text())
    assert protocol["split"] == "train"
    assert protocol["evaluation"]["temperature"] == 0.5
    with np.load(run / "evaluations.npz") as file:
        assert file["successes"].shape[1] == 8
    # Training's own sampling is as it was.
    assert json.loads((run / "best" / "config.json").read_text())["sampling"]["temperature"] == 1.0
    assert guarded(train_command.run, ["-i", str(run), "-n", "300", "--eval-rounds", "3"]) == 2
    assert "--eval-rounds cannot change when a run goes on with -i" in capsys.readouterr().err


def test_a_run_leaves_every_file_of_the_contract(ppo_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {path.name for path in ppo_run.iterdir()}
    assert names >= {"args.yml", "config.yml", "command.txt", "protocol.json", "monitor.csv", "evaluations.npz"}
    assert names >= {"metrics.jsonl", "checkpoints", "best", "videos"}
    assert any(name.startswith("events.out.tfevents") for name in names)
    assert yaml.safe_load((ppo_run / "config.yml").read_text())["algo"] == "ppo"
    assert json.loads((ppo_run / "protocol.json").read_text())["env_id"] == "Toy-Reach"
    assert len(list((ppo_run / "checkpoints").iterdir())) >= 3
    assert (ppo_run / "best" / "model.safetensors").is_file()
    assert len(list((ppo_run / "videos").glob("*.mp4"))) == 1
    assert not list(ppo_run.rglob("*.pkl"))


def test_by_default_it_is_evaluated_before_it_trains_and_on_the_way(tmp_path: Path) -> None:
    # Evaluations of 4 x 12 steps: a tenth of 1000 steps affords two before the end.
    run, plain = (train(tmp_path / name, f"-n 1000 {flag}") for name, flag in (("a", ""), ("b", "--eval-freq 0")))
    begin, middle, end = evaluated(run)
    assert begin == 0
    assert 500 <= middle < 1000 <= end
    assert evaluated(plain) == [end]
    # Untrained weights are not the best, whatever they reach; and training does not notice that it is looked at.
    assert json.loads((run / "best" / "score.json").read_text())["num_timesteps"] > 0
    last, without = (next((one / "checkpoints").glob(f"step_{end}")) / "model.safetensors" for one in (run, plain))
    assert last.read_bytes() == without.read_bytes()
    trained = [line for line in metrics(run) if "train/loss" in line]
    assert trained == [line for line in metrics(plain) if "train/loss" in line]


def test_metrics_have_the_contracts_names(ppo_run: Path) -> None:
    keys = set().union(*metrics(ppo_run))
    assert keys >= {
        "rollout/success_once",
        "rollout/rewards",
        "env/success_once",
        "env/success_at_end",
        "env/return",
        "env/episode_len",
        "env/reward",
        "eval/success_once",
        "train/loss",
        "train/actor/policy_loss",
        "train/actor/approx_kl",
        "train/actor/clip_fraction",
        "train/actor/clipped_ratio",
        "train/actor/ratio",
        "train/actor/grad_norm",
        "train/actor/lr",
        "train/actor/entropy",
        "train/critic/value_loss",
        "train/critic/explained_variance",
    }


def test_evaluations_are_always_on_the_same_start_states(ppo_run: Path) -> None:
    with np.load(ppo_run / "evaluations.npz") as file:
        assert file["successes"].shape == (len(file["timesteps"]), 4)
        assert list(file["timesteps"]) == sorted(set(file["timesteps"]))
    stored = json.loads((ppo_run / "evaluation.json").read_text())
    assert [(e["task_id"], e["trial_id"]) for e in stored["episodes"]] == [(0, 0), (0, 1), (1, 0), (2, 0)]


def test_a_terminated_run_resumes_bit_for_bit(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # SIGTERM in the middle of a rollout, past the second update.
    after_decision, decisions = VLAOnPolicyAlgorithm._after_decision, 0

    def terminate(self: VLAOnPolicyAlgorithm, *args: Any, **kwargs: Any) -> bool:
        nonlocal decisions
        decisions += 1
        if decisions == 10:
            os.kill(os.getpid(), signal.SIGTERM)
        return after_decision(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(VLAOnPolicyAlgorithm, "_after_decision", terminate)
        broken = train(tmp_path, f"{LONG} 1000")
    assert len(metrics(broken)) < len(metrics(whole))
    resume(broken)
    assert metrics(broken) == metrics(whole)
    assert episodes(broken) == episodes(whole)
    weights = [run / "best" / "model.safetensors" for run in (broken, whole)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_killed_run_resumes_from_its_newest_checkpoint(whole: Path, tmp_path: Path) -> None:
    # What a kill leaves: files written past the last checkpoint, and no final one.
    killed = Path(shutil.copytree(whole, tmp_path / "ppo" / "Toy-Reach_1"))
    shutil.rmtree(RunFolder(killed).checkpoint(RunFolder(killed).saved_steps()[-1]))
    resume(killed)
    assert metrics(killed) == metrics(whole)
    assert episodes(killed) == episodes(whole)


def test_a_run_is_trained_by_one_process_at_a_time(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in copy.iterdir() if path.is_file()}
    with locked(RunFolder(copy)):
        assert guarded(train_command.run, ["-i", str(copy), "-n", "364"]) == 2
    assert "is being trained by another process; wait until it ends, or start a new run from a checkpoint with -i " in (
        capsys.readouterr().err
    )
    assert {path: path.read_bytes() for path in copy.iterdir() if path.is_file()} == before
    resume(copy, "-n 364")


def test_a_finished_run_can_be_made_longer(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = metrics(copy)
    # Tasks that were played before count with those it plays now; the toy has no fourth.
    text = (copy / "monitor.csv").read_text()
    (copy / "monitor.csv").write_text("\n".join([*text.splitlines()[:2], "0.0,9,1.0,0,7,20", ""]))
    capsys.readouterr()
    resume(copy, "-n 450")
    assert " simulator steps on 4 of 3 tasks" in capsys.readouterr().out
    assert metrics(copy)[: len(before)] == before
    assert metrics(copy)[-1]["step"] >= 450
    assert len((copy / "command.txt").read_text().splitlines()) == 2


@pytest.mark.parametrize(("name", "flag"), [("training_state.json", ""), ("optimizer.safetensors", "--dry-run")])
def test_an_incomplete_checkpoint_is_told_before_anything_starts(
    copy: Path, capsys: pytest.CaptureFixture[str], name: str, flag: str
) -> None:
    (RunFolder(copy).checkpoint(RunFolder(copy).saved_steps()[-1]) / name).unlink()
    capsys.readouterr()
    assert guarded(train_command.run, ["-i", str(copy), "-n", "9999", *flag.split()]) == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert (said.out, line.startswith("error: "), name in line) == ("", True, True)


def test_one_checkpoint_branches_into_a_new_folder(
    ppo_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (ppo_run / "metrics.jsonl").read_bytes()
    first = min((ppo_run / "checkpoints").iterdir(), key=lambda path: int(path.name.removeprefix("step_")))
    resume(first, f"-f {tmp_path} -n 200")
    branch = tmp_path / "ppo" / "Toy-Reach_1"
    assert " on 3 of 3 tasks" in capsys.readouterr().out
    assert metrics(branch)[0]["step"] > int(first.name.removeprefix("step_"))
    assert (ppo_run / "metrics.jsonl").read_bytes() == before


def test_a_run_of_one_placement_is_not_gone_on_with_on_the_other_kind(
    ppo_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = (ppo_run / "config.yml").read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        argv = ["-i", str(ppo_run), "-n", "900", "--placement", "env=0,rollout=0,actor=1"]
        assert guarded(train_command.run, argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--placement env=0,rollout=0,actor=1 cannot go on with a run of --placement all" in line
    assert (ppo_run / "config.yml").read_bytes() == config


def test_a_simulator_lost_at_the_start_leaves_no_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise WorkerFailed("Toy-Reach, task 0, trial 0: no GL library")

    monkeypatch.setattr("vla_gym.vector.sb3.SB3VecEnv.reset", fail)
    with pytest.raises(WorkerFailed):
        train(tmp_path, "-n 100")
    assert list((tmp_path / "ppo").iterdir()) == []


def test_a_run_that_fails_keeps_its_last_update(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    after_decision = VLAOnPolicyAlgorithm._after_decision

    def fail(self: VLAOnPolicyAlgorithm, *args: Any, **kwargs: Any) -> bool:
        if self._updates_done == 3:
            raise RuntimeError("CUDA out of memory")
        return after_decision(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(VLAOnPolicyAlgorithm, "_after_decision", fail)
        with pytest.raises(RuntimeError):
            train(tmp_path, f"{LONG} 0")
    run = tmp_path / "ppo" / "Toy-Reach_1"
    steps = [line["step"] for line in metrics(whole) if "train/loss" in line]
    assert [path.name for path in (run / "checkpoints").iterdir()] == [f"step_{steps[2]}"]
    resume(run)
    assert metrics(run) == metrics(whole)


def test_ctrl_c_in_an_update_lets_it_end(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train_once, updates = VLAOnPolicyAlgorithm.train, 0

    def signalled(self: VLAOnPolicyAlgorithm) -> None:
        nonlocal updates
        updates += 1
        if updates == 2:
            os.kill(os.getpid(), signal.SIGINT)
        train_once(self)

    with monkeypatch.context() as patch:
        patch.setattr(VLAOnPolicyAlgorithm, "train", signalled)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, f"{LONG} 0")
    run = tmp_path / "ppo" / "Toy-Reach_1"
    assert f"stopped and saved; go on with: vla-zoo train -i {run}\n" in capsys.readouterr().out
    assert len(list((run / "checkpoints").iterdir())) == 1
    assert len([line for line in metrics(run) if "train/loss" in line]) == 2
    resume(run)
    assert metrics(run) == metrics(whole)


def test_a_run_stopped_in_its_last_evaluation_says_nothing_of_an_older_one(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluations = len(evaluated(whole))
    evaluate_all, looks, add = evaluator.of_all_ranks, 0, EvaluationVideo.add_frame

    def counted(own: Any, process_group: Any) -> Any:
        nonlocal looks
        looks += 1
        return evaluate_all(own, process_group)

    def add_and_stop(self: EvaluationVideo, frame: Any) -> None:
        if looks == evaluations:
            os.kill(os.getpid(), signal.SIGINT)
        add(self, frame)

    with monkeypatch.context() as patch:
        patch.setattr(evaluator, "of_all_ranks", counted)
        patch.setattr(EvaluationVideo, "add_frame", add_and_stop)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, f"{LONG} 100")
    run = tmp_path / "ppo" / "Toy-Reach_1"
    assert evaluated(run) == evaluated(whole)[:-1]
    assert not (run / "evaluation.json").exists()
    assert not (run / "report.html").exists()
    assert not (run / "videos").exists()
    assert "stopped and saved" in capsys.readouterr().out
    assert publish_trained(run=RunFolder(run), repo="me/x").startswith("warning: training is not finished")
    resume(run)
    made_up = capsys.readouterr().out
    assert "task-weighted mean" in made_up
    assert "trained for" not in made_up
    assert metrics(run) == metrics(whole)
    assert json.loads((run / "evaluation.json").read_text())["num_timesteps"] == evaluated(whole)[-1]
    assert guarded(train_command.run, ["-i", str(run)]) == 2


def test_evaluate_reads_a_run(ppo_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "result.json"
    argv = ["-i", str(ppo_run), "--eval-episodes", "6", "-o", str(output), "--num-threads", "1"]
    assert evaluate.run(argv) == 0
    assert "task-weighted mean of 3 tasks" in capsys.readouterr().out
    first = json.loads(output.read_text())
    assert first["success"]["episodes"] == 6
    assert first["policy"].endswith("best")
    assert evaluate.run([*argv, "--num-envs", "2"]) == 0
    second = json.loads(output.read_text())
    starts = [[e["start_state"] for e in one["episodes"]] for one in (first, second)]
    assert starts[0] == starts[1]


def test_record_video_films_a_run(ppo_run: Path, tmp_path: Path) -> None:
    output = tmp_path / "film.mp4"
    argv = ["-i", str(ppo_run), "--episodes", "3", "-o", str(output), "--stochastic", "--num-threads", "1"]
    assert record_video.run(argv) == 0
    assert output.stat().st_size > 1000
