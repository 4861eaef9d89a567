from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

from vla_gym import BadValue, VLAVectorEnv
from vla_gym.observation import decode_instruction

Make = Callable[..., VLAVectorEnv]
ACTION = np.zeros((3, 5, 2), dtype=np.float32)


def view(make: Make, **options: Any) -> Any:
    return make(None, 3, chunk=5, schedule="grid", **options).as_sb3()


def test_an_ended_episode_resets_in_the_same_step(make: Make) -> None:
    env = view(make)
    env.reset()
    obs, reward, done, infos = env.step(ACTION)
    assert obs["state"].tolist() == [[0], [5], [5]]
    assert reward.dtype == np.float32
    assert reward.tolist() == [1, 0, 0]
    assert done.tolist() == [True, False, False]
    last = infos[0]
    assert (last["executed"], last["trial_id"], last["is_success"]) == (3, 0, True)
    assert last["step_rewards"].tolist() == [0, 0, 1, 0, 0]
    assert last["terminal_observation"]["state"].tolist() == [3]
    assert decode_instruction(last["terminal_observation"]["instruction"]) == "do thing 0"
    assert (last["episode"]["r"], last["episode"]["l"]) == (1.0, 3)
    assert last["episode"]["t"] > 0
    assert last["episode"]["success_once"] is True
    assert env.reset_infos[0]["start_state"] == "0001"
    assert "episode" not in infos[1]
    assert "is_success" not in infos[1]
    assert [info["TimeLimit.truncated"] for info in infos] == [False, False, False]
    kept = {key: value.copy() for key, value in last["terminal_observation"].items()}
    env.step(ACTION)
    assert all(np.array_equal(kept[key], last["terminal_observation"][key]) for key in kept)


def test_a_whole_grid_is_evaluated_and_no_more(make: Make) -> None:
    env = make("Toy-Reach", 4, chunk=12, schedule="grid").as_sb3()

    class Still:
        def predict(self, obs: Any, state: Any = None, **_: Any) -> tuple[np.ndarray, Any]:
            return np.zeros((4, 12, 2), dtype=np.float32), state

    rewards, lengths = evaluate_policy(Still(), env, n_eval_episodes=150, return_episode_rewards=True)
    assert len(rewards) == len(lengths) == 150
    with pytest.raises(BadValue, match="every start state of the grid has been played"):
        evaluate_policy(Still(), env, n_eval_episodes=151)


def test_seed_and_options_are_used_once(make: Make) -> None:
    env = make("Toy-Reach", 3).as_sb3()

    def starts() -> list[str]:
        env.reset()
        return [info["start_state"] for info in env.reset_infos]

    env.seed(4)
    first, second = starts(), starts()
    assert first != second
    env.seed(4)
    assert [starts(), starts()] == [first, second]
    env.set_options({"task_id": 1, "trial_id": 2})
    env.reset()
    assert [(info["task_id"], info["trial_id"]) for info in env.reset_infos] == [(1, 2)] * 3
    assert starts() != [starts()[0]] * 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_unmodified_ppo_learns_a_step(make: Make) -> None:
    torch.set_num_threads(1)
    env = make("Toy-Reach", 2, chunk=2, image_size=40).as_sb3()
    model = PPO("MultiInputPolicy", env, n_steps=32, batch_size=32, n_epochs=1, seed=0)
    model.learn(128)
    assert model.num_timesteps == 128
    assert len(model.ep_success_buffer) > 5  # type: ignore[arg-type]
    assert all(1 <= record["l"] <= 12 for record in model.ep_info_buffer)  # type: ignore[union-attr]
