"""Who shows a dataset's episodes: what is checked and written down before anything is opened."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from vla_gym.errors import BadValue
from zoo import collect
from zoo.cli.arguments import DEFAULT_NUM_ENVS
from zoo.collect import MOST_ROUNDS, STUDENT_SHARE, expert_source, policy_source, student_source


def asked(*argv: str) -> argparse.Namespace:
    return collect.parser().parse(["-n", "1", "-o", "x", *argv])


def test_an_expert_is_asked_once_a_start_state_unless_there_is_noise(tmp_path: Path) -> None:
    words = tmp_path / "words.yml"
    words.write_text("PickCube: fetch it\n")
    argv = ["--env", "ManiSkill/PickCube", "--expert", "--split", "test", "--instructions", str(words)]
    calm = expert_source(asked(*argv, "-params", "image_size:64"))
    assert (calm.env, calm.num_envs, calm.rounds) == ("ManiSkill/PickCube", DEFAULT_NUM_ENVS, 1)
    assert calm.benchmark.simulator_kwargs["first_seed"] == 1000
    assert calm.settings["options"]["image_size"] == 64
    assert calm.settings["options"]["instructions"] == {"PickCube": "fetch it"}
    assert "wander" not in calm.settings
    assert expert_source(asked(*argv, "--noise", "0.1")).rounds == MOST_ROUNDS
    wandering = expert_source(asked(*argv, "--wander", "0.4"))
    assert (wandering.rounds, wandering.settings["wander"]) == (MOST_ROUNDS, 0.4)


def test_only_an_expert_does_without_images() -> None:
    argv = ["--env", "LIBERO-Goal", "--draw-every", "4"]
    assert expert_source(asked(*argv, "--expert")).settings["options"]["draw_every"] == 4
    with pytest.raises(BadValue, match="--draw-every is for --expert alone"):
        collect.run([*argv, "--policy", "nano", "-n", "1", "-o", "x"])


def test_a_sampling_policy_may_try_a_start_state_often() -> None:
    argv = ["--env", "Toy-Reach", "--policy", "nano", "--num-envs", "2"]
    greedy = policy_source(asked(*argv))
    assert (greedy.env, greedy.num_envs, greedy.rounds) == ("Toy-Reach", 2, 1)
    assert greedy.settings["options"]["chunk"] == 4
    assert greedy.settings["stochastic"] is False
    assert policy_source(asked(*argv, "--stochastic")).rounds == MOST_ROUNDS


@pytest.mark.sim
def test_an_expert_takes_over_from_a_run_in_the_pictures_of_that_run() -> None:
    pytest.importorskip("metaworld")
    argv = ["--expert", "--student", "agents/sft/MetaWorld-window-open"]
    source = student_source(asked(*argv))
    assert (source.env, source.rounds) == ("MetaWorld/window-open", MOST_ROUNDS)
    assert source.settings["options"]["image_size"] == 64
    assert source.settings["student_share"] == STUDENT_SHARE
    assert student_source(asked(*argv, "--student-share", "0.2")).settings["student_share"] == 0.2
    assert "policy_kwargs" not in source.settings
    sampled = [student_source(asked(*argv, "--stochastic", "--temperature", t)).settings for t in ("0.5", "0.6")]
    assert sampled[0] != sampled[1]
    assert {**sampled[0], "policy_kwargs": sampled[1]["policy_kwargs"]} == sampled[1]
