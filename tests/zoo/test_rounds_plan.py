"""What the rounds of `zoo.improve` ask of the commands that make them up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vla_gym.errors import BadValue
from zoo import collect, evaluate, sft
from zoo.improve import RoundsPlan, _as_flags, parser

ASKED = ("--env", "Toy-Reach", "--policy", "mine", "--seed", "3", "--dataset", "a", "b", "--episodes", "5")


def plan(*flags: str) -> RoundsPlan:
    return RoundsPlan(parser().parse([*ASKED, *flags]), Path("runs"), split="validation")


def test_a_round_plays_start_states_that_the_rounds_before_did_not() -> None:
    args = collect.parser().parse(plan("--temperature", "0.5").collecting(3, "policy"))
    assert (args.env, args.policy, args.seed, args.episodes, args.skip) == ("Toy-Reach", "policy", 3, 5, 10)
    assert (args.stochastic, args.keep_failures, args.temperature) == (True, True, 0.5)
    assert args.output == "runs/round_3/rollouts"


def test_a_round_learns_from_the_rollouts_of_all_before() -> None:
    weight = ("--weight", "advantage", "--beta", "0.5", "--gamma", "0.9")
    args = sft.parser().parse(plan(*weight, "--augment", "--learning-rate", "1e-4", "-n", "9").learning(2, "policy"))
    assert args.dataset == ["a", "b", "runs/round_1/rollouts", "runs/round_2/rollouts"]
    assert (args.weight, args.beta, args.gamma, args.augment, args.learning_rate) == ("advantage", 0.5, 0.9, True, 1e-4)
    assert (args.n_updates, args.log_folder, args.eval_split, args.episodes) == (9, "runs/round_2", "validation", None)
    assert sft.parser().parse(plan("--episodes", "0").learning(1, "policy")).dataset == ["a", "b"]
    plain = sft.parser().parse(plan().learning(1, "policy"))
    assert (plain.weight, plain.beta, plain.augment, plain.n_updates) == ("success", None, None, 300)


def test_the_policy_is_evaluated_before_the_first_round() -> None:
    args = evaluate.parser().parse(plan("--num-envs", "2").evaluating("policy", 7))
    assert (args.policy, args.split, args.eval_episodes, args.num_envs) == ("policy", "validation", 7, 2)
    assert args.output == "runs/round_0.json"


def test_each_command_gets_the_settings_that_it_takes() -> None:
    asked = plan("-params", "chunk:2", "policy_kwargs:{optimizer_kwargs: {eps: 1.0e-6}, backbone_kwargs: {size: tiny}}")
    opening = "policy_kwargs:{backbone_kwargs: {size: tiny}}"
    learning = "policy_kwargs:{optimizer_kwargs: {eps: 1.0e-06}}"
    assert collect.parser().parse(asked.collecting(1, "p")).params == ["chunk:2", opening]
    assert collect.parser().parse(asked.collecting(2, "p")).params == ["chunk:2"]
    assert evaluate.parser().parse(asked.evaluating("p", 7)).params == ["chunk:2", opening]
    assert len(sft.parser().parse(asked.learning(1, "p")).params[1]) > len(opening)
    assert sft.parser().parse(asked.learning(2, "p")).params == ["chunk:2", learning]


def test_a_round_goes_on_from_the_best_of_the_round_before(tmp_path: Path) -> None:
    best = tmp_path / "round_1/sft/Toy-Reach_1/best"
    best.mkdir(parents=True)
    (best / "config.json").write_text("{}")
    one = replace(plan("--policy", "nano"), folder=tmp_path)
    assert [one.policy_after(number) for number in (0, 1)] == ["nano", str(best)]
    with pytest.raises(BadValue, match=r"holds no policy \(any more\), from which round 3 would go on"):
        one.policy_after(2)


def test_a_round_that_learned_nothing_leaves_the_policy_before_it(tmp_path: Path) -> None:
    best = tmp_path / "round_2/sft/Toy-Reach_1/best"
    best.mkdir(parents=True)
    (best / "config.json").write_text("{}")
    idle: dict[str, Any] = {"learned": False}
    kwargs = "policy_kwargs:{backbone_kwargs: {size: tiny}}"
    one = replace(plan("--policy", "nano", "-params", kwargs), folder=tmp_path, done=[{}, idle, {}, idle, idle])
    assert [one.learned(number) for number in range(5)] == [0, 0, 2, 2, 2]
    assert [one.policy_after(number) for number in range(5)] == ["nano", "nano", *[str(best)] * 3]
    # What opens a policy is for the one that was given.
    for ask, command in ((one.collecting, collect), (one.learning, sft)):
        told = [command.parser().parse(ask(number, "p")).params for number in (1, 2, 3)]
        assert told == [[kwargs], [kwargs], []]


def test_flags_are_read_back_as_they_were() -> None:
    given = parser().parse([*ASKED, "--augment", "-params", "chunk:2", "image_size:64", "--learning-rate", "3e-4"])
    assert parser().parse(_as_flags(vars(given))) == given
