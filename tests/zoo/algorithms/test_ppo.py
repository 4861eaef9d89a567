"""PPO on chunks, worked out by hand on scripted episodes; and as a drop-in for Stable-Baselines3's."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.envs import SimpleMultiObsEnv
from stable_baselines3.common.logger import Logger

from tests.zoo.stand_ins import CHUNK, DIMS, Rows, ScriptedVecEnv, StandInPolicy
from vla_gym.errors import BadValue, UnknownName
from zoo import PPO
from zoo.config.advice import TrainingWarning

# Sub-environment 0 is cut off by time after two decisions, 1 solves its task in three.
SCRIPTS = [
    [(0.0, 3, "on"), (1.0, 1, "truncated")],
    [(0.0, 3, "on"), (0.0, 3, "on"), (2.0, 2, "terminated")],
]


def scripted(scripts: list[Any] = SCRIPTS, **kwargs: Any) -> PPO:
    settings = {
        "n_steps": 3,
        "batch_size": 4,
        "n_epochs": 1,
        "gamma": 0.5,
        "gae_lambda": 1.0,
        "learning_rate": 0.01,
        "device": "cpu",
        "seed": 0,
        **kwargs,
    }
    model = PPO(StandInPolicy, ScriptedVecEnv(scripts), **settings)
    model.set_logger(Logger(None, [Rows()]))
    return model


def test_advantages_of_a_scripted_rollout_by_hand():
    model = scripted(normalize_advantage=False)
    model.learn(1)
    buffer = model.chunk_buffer
    # Values are a tenth of the picture: 0, 1, 2 ... at decision 0, 1, 2 of an episode.
    assert buffer.value_TN.tolist() == [[0, 0], [1, 1], [0, 2]]
    # Sub-environment 0: the cut-off episode ended on picture 20 (value 2): 1 + 0.5 * 2 = 2, and 0.5 * 2 = 1 before it.
    # Its next episode's first decision: 0 + 0.5 * V(1) = 0.5. Sub-environment 1: 2, then 0.5 * 2, then 0.5 * 1.
    assert buffer.return_TN.tolist() == [[1, 0.5], [2, 1], [0.5, 2]]
    assert buffer.advantage_TN.tolist() == [[1, 0.5], [1, 0], [0.5, 0]]


def test_a_time_limit_can_be_an_end_like_any_other():
    model = scripted(normalize_advantage=False, bootstrap_time_limit=False)
    model.learn(1)
    buffer = model.chunk_buffer
    # Sub-environment 0 gets its reward of 1 and no further value; the rollout's own end still has one.
    assert buffer.return_TN.tolist() == [[0.5, 0.5], [1, 1], [0.5, 2]]
    assert buffer.terminated_TN.tolist() == [[False, False], [True, False], [False, True]]


def test_success_can_be_worth_what_an_episode_that_goes_on_is():
    model = scripted(normalize_advantage=False, bootstrap_termination=True)
    model.learn(1)
    buffer = model.chunk_buffer
    # Sub-environment 1 ended on picture 30 (value 3): 2 + 0.5 * 3 = 3.5, then half and a quarter of it.
    assert buffer.return_TN.tolist() == [[1, 0.875], [2, 1.75], [0.5, 3.5]]
    assert buffer.final_value_TN.tolist() == [[0, 0], [2, 0], [0, 3]]
    # With both limits an end, only the time limit is worth nothing more.
    model = scripted(normalize_advantage=False, bootstrap_termination=True, bootstrap_time_limit=False)
    model.learn(1)
    assert model.chunk_buffer.return_TN.tolist() == [[0.5, 0.875], [1, 1.75], [0.5, 3.5]]


@pytest.mark.parametrize(("level", "entropy"), [("token", 1), ("action", DIMS), ("chunk", CHUNK * DIMS)])
def test_the_entropy_bonus_has_a_level_of_its_own(level: str, entropy: int):
    def bonus(**settings: Any) -> tuple[float, float]:
        model = scripted(logprob_level="chunk", n_epochs=1, batch_size=6, **settings)
        model.learn(1)
        row = model.logger.output_formats[0].rows[-1]
        return -row["train/entropy_loss"], row["train/actor/entropy"]

    # Four bins, each as likely. Two of the six chunks are one and two steps of three long, at "chunk" without the rest.
    steps = entropy if level != "chunk" else DIMS * (3 + 1 + 3 + 3 + 3 + 2) / 6
    assert bonus(entropy_level=level) == pytest.approx((steps * math.log(4), steps * math.log(4)))
    with pytest.raises(UnknownName, match="entropy_level"):
        scripted(entropy_level="step")


def test_an_episode_lost_with_its_simulator_has_not_failed():
    scripts = [[(0.0, 3, "on"), (0.0, 0, "lost")], SCRIPTS[1]]
    model = scripted(scripts, normalize_advantage=False, bootstrap_time_limit=False)
    model.learn(1)
    buffer = model.chunk_buffer
    assert buffer.executed_TN.tolist() == [[3, 3], [0, 3], [3, 2]]
    # The lost decision is worth what was seen last, 0.5 * 2, and the one before it 0.5 * 1; failed, both were worth 0.
    assert buffer.return_TN.tolist() == [[0.5, 0.5], [1, 1], [0.5, 2]]


def test_advantages_are_normalised_over_the_whole_rollout():
    model = scripted()
    model.learn(1)
    raw = torch.tensor([[1, 0.5], [1, 0], [0.5, 0]])
    expected = (raw - 0.5) / (math.sqrt(1.0 / 5) + 1e-8)
    torch.testing.assert_close(model.chunk_buffer.advantage_TN, expected)


def test_timesteps_are_the_simulator_steps_really_run():
    model = scripted()
    model.learn(1)
    assert model.num_timesteps == 3 + 1 + 3 + 3 + 3 + 2


def test_an_environment_that_does_not_say_how_much_it_ran_has_run_whole_chunks():
    class Silent(ScriptedVecEnv):
        def step_wait(self) -> Any:
            obs, rewards, dones, infos = super().step_wait()
            for info in infos:
                del info["executed"]
            return obs, rewards, dones, infos

    model = PPO(StandInPolicy, Silent(SCRIPTS), n_steps=3, batch_size=6, device="cpu")
    model.set_logger(Logger(None, [Rows()]))
    model.learn(1)
    assert (model.chunk_buffer.executed_TN == CHUNK).all()
    assert model.num_timesteps == 6


@pytest.mark.parametrize(("level", "elements"), [("token", 15 * DIMS), ("action", 15), ("chunk", 6)])
def test_only_executed_steps_carry_loss_and_each_element_counts_the_same(level: str, elements: int):
    model = scripted(logprob_level=level)
    model.learn(1)
    parts = [part for minibatch in model.rollout_data().minibatches(0) for part in minibatch]
    weight = torch.cat([part.batch.weight_BL.flatten() for part in parts])
    assert (weight > 0).sum() == elements
    assert weight[weight > 0].tolist() == pytest.approx([6 / elements] * elements)


def test_the_first_update_by_hand():
    # One minibatch, one step, advantages (1, 1, .5 | .5, 0, 0), value errors (1, 1, .5 | .5, 0, 0).
    model = scripted(normalize_advantage=False, batch_size=6, logprob_level="action", vf_coef=0.5)
    before = model.policy.scale.item()
    model.learn(1)
    row = model.logger.output_formats[0].rows[-1]
    # Executed steps: 3, 1, 3 | 3, 3, 2, so the mean advantage of a step is (3 + 1 + 1.5 + 1.5) / 15.
    assert row["train/actor/policy_loss"] == pytest.approx(-7 / 15)
    assert row["train/critic/value_loss"] == pytest.approx((1 + 1 + 0.25 + 0.25) / 6)
    assert row["train/loss"] == pytest.approx(-7 / 15 + 0.5 * 2.5 / 6)
    assert row["train/actor/ratio_first"] == 1.0
    assert row["train/actor/ratio_first_gap"] == 0.0
    assert row["train/actor/clip_fraction"] == 0.0
    # Uniform tokens: ln 4 nats each, two to a step.
    assert row["train/actor/entropy"] == pytest.approx(2 * math.log(4))
    assert row["rollout/rewards"] == pytest.approx(3 / 6)
    assert row["env/success_once"] == 1.0
    assert row["env/return"] == pytest.approx(1.5)
    assert row["rollout/success_once"] == 1.0
    assert model.policy.scale.item() != before


def test_every_metric_of_the_contract_is_logged():
    model = scripted(clip_range_vf=0.2)
    model.learn(1)
    row = model.logger.output_formats[0].rows[-1]
    actor = (
        "policy_loss",
        "approx_kl",
        "clip_fraction",
        "clipped_ratio",
        "ratio",
        "grad_norm",
        "lr",
        "entropy",
    )
    critic = ("value_loss", "value_clip_ratio", "explained_variance", "lr")
    rollout = (
        "success_once",
        "rewards",
        "advantages_mean",
        "advantages_max",
        "advantages_min",
        "returns_mean",
    )
    env = ("success_once", "success_at_end", "return", "episode_len", "reward")
    wanted = {
        *(f"train/actor/{name}" for name in actor),
        *(f"train/critic/{name}" for name in critic),
        *(f"rollout/{name}" for name in rollout),
        *(f"env/{name}" for name in env),
        "train/loss",
        "time/decisions_per_second",
        "time/sim_steps_per_second",
        "time/update_seconds",
        "time/update_fraction",
    }
    assert wanted - row.keys() == set()


def test_a_line_of_the_log_holds_the_update_made_with_its_rollout():
    model = scripted()
    model.learn(40)
    rows = model.logger.output_formats[0].rows
    assert [row["train/n_updates"] for row in rows] == list(range(1, len(rows) + 1))


def test_a_rollout_that_overshoots_does_not_turn_the_learning_rate_negative():
    model = scripted(learning_rate=lambda progress: 0.01 * progress)
    model.learn(1)
    assert model.num_timesteps > 1
    assert model.logger.output_formats[0].rows[-1]["train/actor/lr"] == 0.0


def test_a_callback_stops_at_the_next_decision():
    class Stop(BaseCallback):
        def _on_step(self) -> bool:
            return self.n_calls < 2

    model = scripted()
    model.learn(1000, callback=Stop())
    assert model.num_timesteps == 3 + 3 + 1 + 3
    assert model._n_updates == 0


def test_target_kl_ends_the_update_before_the_step_that_would_go_further():
    model = scripted(learning_rate=5.0, n_epochs=20, target_kl=1e-4, batch_size=6)
    model.learn(1)
    assert 1 < model._n_updates < 20


def test_a_gradient_that_is_not_finite_is_skipped_and_counted():
    model = scripted(batch_size=6, n_epochs=2)
    model.policy.evaluate = _infinite_values(model.policy.evaluate, [True, False])
    with pytest.warns(UserWarning, match="GradientNotFinite"):
        model.learn(1)
    row = model.logger.output_formats[0].rows[-1]
    assert row["train/actor/skipped_steps"] == 1
    assert row["train/n_updates"] == 2


def test_an_update_without_a_finite_gradient_ends_training_and_changes_nothing():
    model = scripted(batch_size=6)
    model.policy.evaluate = _infinite_values(model.policy.evaluate, [True])
    before = {name: tensor.clone() for name, tensor in model.policy.state_dict().items()}
    with pytest.raises(BadValue, match="update 1 learnt nothing: the gradient was finite in none of its 1 steps"):
        model.learn(1)
    for name, tensor in model.policy.state_dict().items():
        assert torch.equal(tensor, before[name])


def _infinite_values(evaluate: Any, infinite: list[bool]) -> Any:
    """`evaluate`, with infinite values in the calls that `infinite` marks."""
    marks = iter(infinite)

    def evaluated(obs: Any, record: Any) -> Any:
        result = evaluate(obs, record)
        value_B = result.value_B * math.inf if next(marks) else result.value_B
        return type(result)(result.logprob_BKA, result.entropy_BKA, value_B)

    return evaluated


def test_logprobs_can_be_recomputed_in_the_training_path():
    def drifted(model: PPO) -> float:
        act = model.policy.act

        def act_imprecisely(obs: Any, **given: Any) -> Any:
            sample = act(obs, **given)
            return type(sample)(sample.action_BKA, sample.logprob_BKA - 0.2, sample.value_B, sample.record)

        model.policy.act = act_imprecisely
        model.learn(1)
        return float(model.logger.output_formats[0].rows[-1]["train/actor/ratio_first_gap"])

    with pytest.warns(UserWarning, match="recompute_logprobs"):
        assert drifted(scripted(batch_size=6, logprob_level="token")) == pytest.approx(math.exp(0.2) - 1)
    assert drifted(scripted(batch_size=6, logprob_level="token", recompute_logprobs=True)) == 0.0


def test_rewards_that_never_come_are_warned_of():
    model = PPO(StandInPolicy, ScriptedVecEnv([[(0.0, 3, "terminated")]]), n_steps=4, batch_size=4, device="cpu")
    model.policy.scale.data.zero_()
    model.set_logger(Logger(None, []))
    with pytest.warns(UserWarning, match="ZeroAdvantage"):
        model.learn(1)


def test_values_beyond_any_possible_return_are_warned_of():
    model = scripted(batch_size=6, learning_rate=0.0)
    model.policy.scale.data.fill_(100.0)
    with pytest.warns(UserWarning, match="ValueDivergence"):
        model.learn(1)


@pytest.mark.parametrize(
    ("kwargs", "error", "match"),
    [
        ({"logprob_level": "tokens"}, UnknownName, "token"),
        ({"value_clip": "maximum"}, UnknownName, "max"),
        ({"clip_range_high": -0.2}, BadValue, "clip_range_high"),
        ({"huber_delta": 0.0}, BadValue, "huber_delta"),
        ({"use_sde": True}, BadValue, "use_sde"),
        ({"n_epochs": 0}, BadValue, "at least 1"),
        (
            {"rollout_buffer_class": stable_baselines3.common.buffers.RolloutBuffer},
            BadValue,
            "ChunkRolloutBuffer",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(kwargs: dict[str, Any], error: type, match: str):
    with pytest.raises(error, match=match):
        scripted(**kwargs)


def test_chunk_models_save_and_load(tmp_path):
    model = scripted()
    model.learn(1)
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", env=ScriptedVecEnv(SCRIPTS), device="cpu")
    assert torch.equal(loaded.policy.logits_KAV, model.policy.logits_KAV)
    assert loaded.logprob_level == model.logprob_level
    loaded.set_logger(Logger(None, []))
    loaded.learn(1, reset_num_timesteps=False)
    assert loaded.num_timesteps > model.num_timesteps


# A drop-in for Stable-Baselines3's PPO ---------------------------------------------------------------

COMPARED = (
    "policy_gradient_loss",
    "value_loss",
    "entropy_loss",
    "approx_kl",
    "clip_fraction",
    "loss",
    "explained_variance",
)


class PicturesAndButtons(gym.Env):
    """Byte images and a MultiDiscrete action."""

    observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 10
        return self.np_random.integers(0, 255, (36, 36, 1), dtype=np.uint8), {}

    def step(self, action: np.ndarray) -> Any:
        self.left -= 1
        picture = self.np_random.integers(0, 255, (36, 36, 1), dtype=np.uint8)
        return picture, float(action[1] == 1), False, self.left == 0, {}


ORDINARY = [
    ("MlpPolicy", lambda: gym.make("CartPole-v1"), {}),
    ("MlpPolicy", lambda: gym.make("Pendulum-v1"), {"clip_range_vf": 0.3, "ent_coef": 0.01}),
    ("MlpPolicy", lambda: gym.make("Pendulum-v1"), {"use_sde": True, "sde_sample_freq": 4}),
    ("MlpPolicy", lambda: gym.make("CartPole-v1"), {"target_kl": 1e-4}),
    ("MlpPolicy", lambda: gym.make("CartPole-v1"), {"normalize_advantage": False, "gae_lambda": 0.5}),
    ("CnnPolicy", PicturesAndButtons, {}),
    ("MultiInputPolicy", SimpleMultiObsEnv, {}),
]


@pytest.mark.parametrize(("policy", "make", "kwargs"), ORDINARY)
def test_the_first_update_is_stable_baselines3s(policy: str, make: Any, kwargs: dict[str, Any]):
    seen = []
    for algorithm in (stable_baselines3.PPO, PPO):
        model = algorithm(policy, make(), n_steps=64, batch_size=32, n_epochs=3, seed=1, device="cpu", **kwargs)
        model.learn(64)
        seen.append({name: model.logger.name_to_value[f"train/{name}"] for name in COMPARED} | {"n": model._n_updates})
    for name, value in seen[0].items():
        assert seen[1][name] == pytest.approx(value, rel=1e-5, abs=1e-5), name


def test_later_weights_are_stable_baselines3s_too():
    models = [
        algorithm("MlpPolicy", "CartPole-v1", n_steps=128, batch_size=64, n_epochs=4, seed=3, device="cpu").learn(512)
        for algorithm in (stable_baselines3.PPO, PPO)
    ]
    for expected, parameter in zip(models[0].policy.parameters(), models[1].policy.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=1e-5)


def test_an_option_that_cannot_apply_is_refused():
    with pytest.raises(BadValue, match="recompute_logprobs"):
        PPO("MlpPolicy", "CartPole-v1", recompute_logprobs=True, device="cpu")
    with pytest.raises(BadValue, match=r"logprob_level is for policies .* leave it at 'action'"):
        PPO("MlpPolicy", "CartPole-v1", logprob_level="token", device="cpu")
    with pytest.raises(BadValue, match="bc_dataset"):
        PPO("MlpPolicy", "CartPole-v1", bc_dataset="nowhere", device="cpu")


def test_chunk_and_tokens_agree_on_the_weights_of_equal_chunks():
    """With whole chunks executed, every level's loss is the same mean advantage before the first step."""
    losses = []
    for level in ("token", "action", "chunk", "sequence"):
        env = ScriptedVecEnv([[(1.0, CHUNK, "on"), (0.0, CHUNK, "on"), (2.0, CHUNK, "terminated")]] * 2)
        model = PPO(
            StandInPolicy, env, n_steps=3, batch_size=6, n_epochs=1, logprob_level=level,
            normalize_advantage=False, device="cpu", seed=0,
        )  # fmt: skip
        model.set_logger(Logger(None, [Rows()]))
        model.learn(1)
        losses.append(model.logger.output_formats[0].rows[-1]["train/actor/policy_loss"])
    assert losses == pytest.approx([losses[0]] * 4)


@pytest.mark.parametrize("level", ["token", "chunk"])
def test_parts_of_a_minibatch_make_the_same_step(level: str):
    """Gathered from three parts of two, the gradient is that of the whole minibatch."""
    weights = []
    for micro in (None, 2):
        model = scripted(batch_size=6, n_epochs=3, logprob_level=level, micro_batch_size=micro, target_kl=10.0)
        model.learn(1)
        weights.append([parameter.detach() for parameter in model.policy.parameters()])
        assert model._n_updates == 3
    for whole, gathered in zip(*weights, strict=True):
        torch.testing.assert_close(gathered, whole, rtol=1e-5, atol=1e-7)


def test_plain_policies_take_parts_too():
    weights = []
    for micro in (None, 10):
        model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=32, n_epochs=2, seed=1, device="cpu",
                    micro_batch_size=micro).learn(64)  # fmt: skip
        weights.append([parameter.detach() for parameter in model.policy.parameters()])
    for whole, gathered in zip(*weights, strict=True):
        torch.testing.assert_close(gathered, whole, rtol=1e-4, atol=1e-6)


def test_episodes_that_never_succeed_are_warned_of():
    # Two environments, episodes of one decision: 16 in a rollout, 64 after four.
    model = scripted([[(0.0, 3, "terminated")]] * 2, n_steps=8)
    with pytest.warns(TrainingWarning) as caught:
        model.learn(8 * 8 * 2 * 3)
    said = [str(warning.message) for warning in caught if "NoSuccessAtAll" in str(warning.message)]
    assert said[0].startswith("NoSuccessAtAll: not one success and no reward in 64 episodes")


@pytest.mark.filterwarnings("ignore::zoo.algorithms.training_warnings.TrainingWarning")
def test_one_success_or_reward_is_enough_to_learn_from():
    model = scripted(n_steps=8)
    model.learn(1)
    assert model._count_barren() == 0
    paid = scripted([[(-0.5, 3, "terminated")]] * 2, n_steps=8)
    paid.learn(1)
    assert paid._count_barren() == 0
