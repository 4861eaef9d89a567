"""What the rounds of `zoo.improve` ask of the commands that make them up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vla_gym.errors import BadValue
from zoo import collect, evaluate, sft
from zoo.improve import Rounds, _as_flags, _fresh, parser

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


def test_the_policy_is_evaluated_before_the_first_round() -> None:
    args = evaluate.parser().parse(asked("--num-envs", "2").evaluating(7))
    assert (args.policy, args.split, args.eval_episodes, args.num_envs) == ("mine", "validation", 7, 2)
    assert args.output == "runs/round_0.json"


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


@pytest.mark.parametrize("flag", [(), ("--augment",), ("-params", "chunk:2", "image_size:64"), ("--gamma", "0.5")])
def test_flags_are_read_back_as_they_were(flag: tuple[str, ...]) -> None:
    given: Any = parser().parse([*ASKED, *flag])
    assert parser().parse(_as_flags(vars(given))) == given
