"""`zoo.improve`: rounds of collecting and learning, stopped and gone on; what cannot work leaves nothing behind."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.zoo.demonstrations.test_lerobot import shown
from tests.zoo.stopped_sft import during_update, send
from vla_gym.errors import BadValue
from zoo import collect, evaluate, improve, sft
from zoo.cli.main import guarded
from zoo.demonstrations.lerobot_writer import LeRobotWriter
from zoo.demonstrations.recorder import REWARD
from zoo.distributed.learner import Learner
from zoo.imitation.weights import NothingToWeigh, weighed
from zoo.improve import Rounds, _fresh, parser

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
TOY = ("--env", "Toy-Reach", "--policy", "nano", "--device", "cpu", "--num-threads", "1", "--seed", "0")
SIZE = ("-n", "3", "--batch-size", "4", "--episodes", "3", "--eval-episodes", "2", "--num-envs", "1")
TINY = ("-params", "policy_kwargs:{backbone_kwargs: {size: tiny}}")
RUN = Path("logs/improve/Toy-Reach_1")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def complaint(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that a command ends with."""
    assert guarded(improve.run, argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "--env is missing"),
        (["--env", "Toy-Reech", "--policy", "nano"], "Did you mean 'Toy-Reach'"),
        ([*TOY, "--dataset", "none"], "no folder 'none'"),
        ([*TOY, "--episodes", "0"], "give a --dataset to learn from"),
        ([*TOY, "--beta", "2"], "--beta is of --weight advantage"),
        ([*TOY, "--eval-split", "text"], "no split 'text'"),
        ([*TOY, "-params", "gamma:0.9"], "-params gamma"),
        ([*TOY, "--eval-episodes", "1000"], "more than the 150 start states"),
        ([*TOY, "-f", "/proc/x"], "cannot write rounds under '/proc/x'"),
        (["-i", "nowhere"], "'nowhere' is no folder of improve"),
    ],
)
def test_it_says_what_is_wrong(argv: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert says in complaint(capsys, *argv)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("weight", "says"), [("success", "'next.success', which weight success"), ("advantage", "'next.reward' or 'next")]
)
def test_a_dataset_without_outcomes_is_refused_before_anything_is_collected(
    weight: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    LeRobotWriter(Path("d"), {}, fps=10).add([shown(2)], tried=1)
    assert says in complaint(capsys, *TOY, "--dataset", "d", "--weight", weight)
    assert not RUN.exists()


def test_a_run_that_cannot_begin_leaves_no_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refused(argv: list[str]) -> int:
        raise BadValue("no simulator here")

    monkeypatch.setattr("zoo.evaluate.run", refused)
    assert "no simulator here" in complaint(capsys, *TOY)
    assert not RUN.exists()
    monkeypatch.setattr("zoo.collect.run", refused)
    assert "no simulator here" in complaint(capsys, *TOY, "--eval-episodes", "0")
    assert not RUN.exists()


def record_of(argv: list[str], rounds: Any) -> None:
    RUN.mkdir(parents=True, exist_ok=True)
    (RUN / "improve.json").write_text(json.dumps({"argv": argv, "rounds": rounds}))


@pytest.mark.parametrize(
    ("argv", "rounds", "says"),
    [
        (["--env"], [], "expected one argument"),
        ([*TOY], [{}], "it lacks 'cpu_seconds'"),
        ([*TOY], [{"cpu_seconds": 1.0, "success": 3}], "is damaged"),
        ([*TOY], [{"cpu_seconds": 1.0}, {"cpu_seconds": 1.0}], "holds no policy (any more)"),
        (5, [], "is damaged"),
    ],
)
def test_a_damaged_record_is_named(argv: Any, rounds: Any, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    record_of(argv, rounds)
    assert says in complaint(capsys, "-i", str(RUN))
    assert [path.name for path in RUN.iterdir()] == ["improve.json"]


def test_what_may_not_change_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    record_of([*TOY], [])
    line = complaint(capsys, "-i", str(RUN), "--episodes", "4", "--rounds", "2")
    assert "--episodes cannot change when it goes on with -i; allowed: --rounds, --device, --num-threads" in line


def weights(number: int) -> bytes:
    return (RUN / f"round_{number}/sft/Toy-Reach_1/best/model.safetensors").read_bytes()


@pytest.mark.processes
def test_rounds_that_are_done_are_not_repeated_and_one_that_was_stopped_goes_on(
    demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*TOY, *SIZE, "--dataset", str(demos), "--weight", "advantage"]
    assert improve.run([*asked, "--rounds", "2", *TINY]) == 0
    said = capsys.readouterr().out
    for number in (0, 1, 2):
        assert f"\nround {number}: success " in said
    assert "of 2 (validation); " in said
    assert " of 3 collected episodes solved; " in said
    assert "6 episodes, weights " in said
    assert "9 episodes, weights " in said
    whole = [weights(1), weights(2)]
    RUN.rename(tmp_path / "whole")

    # The same again: stopped in the second round's second update (of the process: the fifth), which keeps a checkpoint.
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "apply", during_update(5, send(signal.SIGTERM)))
        assert improve.run([*asked, "--rounds", "2", *TINY]) == 0
    assert f"stopped in round 2; go on with: vla-zoo improve -i {RUN}" in capsys.readouterr().out
    assert len(json.loads((RUN / "improve.json").read_text())["rounds"]) == 2
    learned = (RUN / "round_1/sft/Toy-Reach_1/best/model.safetensors").stat().st_mtime_ns
    monkeypatch.setattr("zoo.collect.run", None)  # what was collected is there
    assert improve.run(["-i", str(RUN)]) == 0
    said = capsys.readouterr().out
    assert "going on at 2" in said
    assert f"vla-zoo evaluate -i {RUN}/round_2/sft/Toy-Reach_1" in said
    assert (RUN / "round_1/sft/Toy-Reach_1/best/model.safetensors").stat().st_mtime_ns == learned
    assert [weights(1), weights(2)] == whole
    assert len((RUN / "command.txt").read_text().splitlines()) == 2
    assert "has done its 2 rounds; for more give --rounds, e.g. --rounds 4" in complaint(capsys, "-i", str(RUN))


def learn_from(most: int) -> Callable[..., Any]:
    """`weighed` that finds no episode solved among fewer than so many, and else takes all."""

    def scripted(episodes: Any, kind: str, **how: Any) -> Any:
        if len(episodes) < most:
            raise NothingToWeigh(f"none of the {len(episodes)} episodes was solved")
        return weighed(episodes, "none", **how)

    return scripted


@pytest.mark.thorough
@pytest.mark.processes
def test_a_round_in_which_nothing_was_solved_learns_nothing_and_the_next_collects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*TOY, *SIZE, "--rounds", "2", *TINY]
    monkeypatch.setattr("zoo.training.sft_trainer.weighed", learn_from(6))
    assert improve.run(asked) == 0
    said = capsys.readouterr().out
    assert "\nround 1: " in said
    assert " of 3 collected episodes solved; nothing learned, the policy stays; " in said
    assert "6 episodes, " in said
    assert f"vla-zoo evaluate -i {RUN}/round_2/sft/Toy-Reach_1" in said
    assert not (RUN / "round_1/sft").exists()
    rounds = json.loads((RUN / "improve.json").read_text())["rounds"]
    assert [one.get("learned", True) for one in rounds] == [True, False, True]
    # Where no round learns, it goes on all the same, and says what the policy is.
    RUN.rename(tmp_path / "first")
    monkeypatch.setattr("zoo.training.sft_trainer.weighed", learn_from(1000))
    assert improve.run([*asked[:-4], "--rounds", "1", *TINY]) == 0
    assert "policy      nano\nnext:\n  vla-zoo improve -i " in capsys.readouterr().out
    assert improve.run(["-i", str(RUN), "--rounds", "2"]) == 0
    assert "round 2: " in capsys.readouterr().out
    assert not (RUN / "round_2/sft").exists()


@pytest.mark.processes
def test_a_dataset_alone_is_learned_in_one_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demos = tmp_path / "demos"
    flags = ("--env", "Toy-Reach/0", *TOY[2:], "--stochastic", "--keep-failures", "-n", "3", "-o", str(demos))
    assert collect.run(flags) == 0
    (file,) = demos.glob("data/*/*.parquet")
    frames = pq.read_table(file).to_pandas()
    frames.loc[0, REWARD] = 1.0  # the first episode is worth more than the others
    pq.write_table(pa.Table.from_pandas(frames, pq.read_schema(file), preserve_index=False), file)
    asked = [*TOY, *SIZE, "--dataset", str(demos), "--weight", "advantage", "--rounds", "1", *TINY]
    assert improve.run([*asked, "--episodes", "0", "--eval-episodes", "0"]) == 0
    said = capsys.readouterr().out
    assert "3 episodes, weights " in said
    assert "\nround 1: " in said
    assert not (RUN / "round_1/rollouts").exists()
    assert not (RUN / "round_0.json").exists()
    # A second round would be refused, so none is advised.
    assert "--rounds" not in said
    assert "begin anew" in complaint(capsys, "-i", str(RUN))


ASKED = ("--env", "Toy-Reach", "--policy", "mine", "--seed", "3", "--dataset", "a", "b", "--episodes", "5")


def asked(*flags: str, folder: Path = Path("runs"), done: int = 0, idle: tuple[int, ...] = ()) -> Rounds:
    """Rounds of which `done` are, without anything learned in those that are `idle`; others left a policy."""
    rounds = _fresh(parser().parse([*ASKED, *flags]))
    rounds.folder, rounds.split = folder, "validation"
    rounds.done = [{"learned": number not in idle} for number in range(done)]
    return rounds


def left_policy(folder: Path, number: int) -> str:
    best = folder / f"round_{number}/sft/Toy-Reach_1/best"
    best.mkdir(parents=True)
    (best / "config.json").write_text("{}")
    return str(best)


def test_a_round_plays_start_states_that_the_rounds_before_did_not() -> None:
    args = collect.parser().parse(asked("--temperature", "0.5").collecting(3))
    assert (args.env, args.policy, args.seed, args.episodes, args.skip) == ("Toy-Reach", "mine", 3, 5, 10)
    assert (args.stochastic, args.keep_failures, args.temperature) == (True, True, 0.5)
    assert args.output == "runs/round_3/rollouts"


def test_a_round_learns_from_the_rollouts_of_all_before() -> None:
    weight = ("--weight", "advantage", "--beta", "0.5", "--gamma", "0.9")
    args = sft.parser().parse(asked(*weight, "--augment", "--learning-rate", "1e-4", "-n", "9").learning(2))
    assert args.dataset == ["a", "b", "runs/round_1/rollouts", "runs/round_2/rollouts"]
    assert (args.weight, args.beta, args.gamma, args.augment, args.learning_rate) == ("advantage", 0.5, 0.9, True, 1e-4)
    assert (args.n_updates, args.log_folder, args.eval_split, args.episodes) == (9, "runs/round_2", "validation", None)
    assert sft.parser().parse(asked("--episodes", "0").learning(1)).dataset == ["a", "b"]
    plain = sft.parser().parse(asked().learning(1))
    assert (plain.weight, plain.beta, plain.augment, plain.n_updates) == ("success", None, None, 300)


def test_each_command_gets_the_settings_that_it_takes(tmp_path: Path) -> None:
    left_policy(tmp_path, 1)
    kwargs = "policy_kwargs:{optimizer_kwargs: {eps: 1.0e-6}, backbone_kwargs: {size: tiny}}"
    rounds = asked("-params", "chunk:2", kwargs, folder=tmp_path, done=2)
    opening = "policy_kwargs:{backbone_kwargs: {size: tiny}}"
    learning = "policy_kwargs:{optimizer_kwargs: {eps: 1.0e-06}}"
    assert collect.parser().parse(rounds.collecting(1)).params == ["chunk:2", opening]
    assert collect.parser().parse(rounds.collecting(2)).params == ["chunk:2"]
    assert evaluate.parser().parse(rounds.evaluating(7)).params == ["chunk:2", opening]
    assert len(sft.parser().parse(rounds.learning(1)).params[1]) > len(opening)
    assert sft.parser().parse(rounds.learning(2)).params == ["chunk:2", learning]


def test_a_round_goes_on_from_the_last_that_learned(tmp_path: Path) -> None:
    best = left_policy(tmp_path, 2)
    rounds = asked(folder=tmp_path, done=5, idle=(1, 3, 4))
    assert [rounds.policy_after(number) for number in range(5)] == ["mine", "mine", *[best] * 3]
    with pytest.raises(BadValue, match="holds no policy"):
        asked(folder=tmp_path, done=4).policy_after(3)
