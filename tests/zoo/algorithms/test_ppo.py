"""PPO on chunks, worked out by hand on scripted episodes; and beside Stable-Baselines3's PPO."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import Logger

from tests.zoo.stand_ins import CHUNK, DIMS, Rows, StandInPolicy, scripted_envs
from vla_gym import make_vec
from vla_gym.errors import BadValue, UnknownName
from vla_policies import VLAPolicy
from zoo import PPO
from zoo.config.advice import TrainingWarning

# Sub-environment 0 is cut off by time after two decisions, 1 solves its task in three.
SCRIPTS = [[(0.0, 3, "on"), (1.0, 1, "truncated")], [(0.0, 3, "on"), (0.0, 3, "on"), (2.0, 2, "terminated")]]


def scripted(scripts: list[Any] = SCRIPTS, **kwargs: Any) -> PPO:
    settings = {
        "n_steps": 3, "batch_size": 4, "n_epochs": 1, "gamma": 0.5, "gae_lambda": 1.0, "learning_rate": 0.01,
        "device": "cpu", "seed": 0, **kwargs,
    }  # fmt: skip
    model = PPO(StandInPolicy, scripted_envs(scripts), **settings)
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


def test_advantages_are_normalised_over_the_whole_rollout():
    model = scripted()
    model.learn(1)
    raw = torch.tensor([[1, 0.5], [1, 0], [0.5, 0]])
    expected = (raw - 0.5) / (math.sqrt(1.0 / 5) + 1e-8)
    torch.testing.assert_close(model.chunk_buffer.advantage_TN, expected)


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
    names = {
        "train": "loss",
        "train/actor": "policy_loss approx_kl clip_fraction clipped_ratio ratio grad_norm lr entropy",
        "train/critic": "value_loss value_clip_ratio explained_variance lr",
        "rollout": "success_once rewards advantages_mean advantages_max advantages_min returns_mean",
        "env": "success_once success_at_end return episode_len reward",
        "time": "decisions_per_second sim_steps_per_second update_seconds update_fraction",
    }
    wanted = {f"{group}/{name}" for group, listed in names.items() for name in listed.split()}
    assert wanted - row.keys() == set()


def test_a_rollout_that_overshoots_does_not_turn_the_learning_rate_negative():
    model = scripted(learning_rate=lambda progress: 0.01 * progress)
    model.learn(1)
    assert model.num_timesteps > 1
    assert model.logger.output_formats[0].rows[-1]["train/actor/lr"] == 0.0


def test_target_kl_ends_the_update_before_the_step_that_would_go_further():
    model = scripted(learning_rate=1.0, n_epochs=20, target_kl=1e-4, batch_size=6)
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


def test_episodes_that_never_succeed_are_warned_of():
    # Two environments, episodes of one decision: 16 in a rollout, 64 after four.
    model = scripted([[(0.0, 3, "terminated")]] * 2, n_steps=8)
    with pytest.warns(TrainingWarning) as caught:
        model.learn(8 * 8 * 2 * 3)
    said = [str(warning.message) for warning in caught if "NoSuccessAtAll" in str(warning.message)]
    assert said[0].startswith("NoSuccessAtAll: not one success and no reward in 64 episodes")


# Beside Stable-Baselines3's PPO -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"clip_range_vf": 0.2, "ent_coef": 0.01, "gae_lambda": 0.5},
        {"normalize_advantage": True},
        {"target_kl": 1e-4},
    ],
)
def test_weights_are_those_of_stable_baselines3s_ppo(settings: dict[str, Any]):
    """Three updates of nano on Toy-Reach, chunk 1, of the same rollouts in the same order.

    Ours draws decisions by (seed, update, decision, environment) and Stable-Baselines3's by torch's generator, and they
    shuffle differently and normalise over other sets: so theirs is given our decisions, our permutations and, where
    they are normalised, our advantages.
    """
    batch, epochs, num_steps, num_envs = 16, 2, 8, 4
    shared: dict[str, Any] = {
        "n_steps": num_steps,
        "batch_size": batch,
        "n_epochs": epochs,
        "seed": 3,
        "device": "cpu",
        "normalize_advantage": False,
        "learning_rate": 1e-3,
        "max_grad_norm": 0.5,
        "policy_kwargs": {"backbone": "nano", "backbone_kwargs": {"size": "tiny"}},
        **settings,
    }
    ours = PPO("VLAPolicy", make_vec("Toy-Reach", num_envs=num_envs, chunk=1, seed=5), logprob_level="chunk", **shared)
    shared["normalize_advantage"] = False
    theirs = stable_baselines3.PPO(
        VLAPolicy, make_vec("Toy-Reach", num_envs=num_envs, chunk=1, seed=5).as_sb3(), **shared
    )
    for own, other in zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True):
        assert torch.equal(own, other)
    for model in (ours, theirs):
        model.set_logger(Logger(None, [Rows()]))
    before = [parameter.detach().clone() for parameter in ours.policy.parameters()]

    def update_theirs() -> None:
        buffer, rollout = ours.chunk_buffer, theirs.rollout_buffer
        rollout.reset()
        assert (buffer.executed_TN == 1).all()
        for key, whole in buffer.obs.items():
            image = key.endswith("image")  # which Stable-Baselines3 moves channels of to the front
            rollout.observations[key][:] = np.moveaxis(whole.numpy(), -1, -3) if image else whole.numpy()
        actions = theirs.policy.backbone.codec.decode(buffer.record["token"].flatten(0, 1)).numpy()
        rollout.actions[:] = actions.reshape(rollout.actions.shape)
        rollout.log_probs[:] = buffer.logprob_TNKA.sum(dim=(2, 3)).numpy()
        rollout.values[:] = buffer.value_TN.numpy()
        rollout.advantages[:] = buffer.advantage_TN.numpy()
        rollout.returns[:] = buffer.return_TN.numpy()
        rollout.full = True
        passes = iter(range(theirs._n_updates, theirs._n_updates + epochs))

        def get(batch_size: int) -> Any:
            if not rollout.generator_ready:
                for name in (*rollout.observations, "actions", "values", "log_probs", "advantages", "returns"):
                    place = rollout.observations if name in rollout.observations else vars(rollout)
                    place[name] = rollout.swap_and_flatten(place[name])
                rollout.generator_ready = True
            shards = ours.rollout_data()._shards(next(passes))
            for ((index_B, _),) in shards:
                row, column = index_B // num_envs, index_B % num_envs
                yield rollout._get_samples((column * num_steps + row).numpy())

        rollout.get = get
        theirs._current_progress_remaining = ours._current_progress_remaining
        theirs.train()

    train = ours.train

    def train_both() -> None:
        update_theirs()
        train()
        assert ours._n_updates == theirs._n_updates > 0

    ours.train = train_both
    ours.learn(3 * num_steps * num_envs)
    moved = 0.0
    for own, other, first in zip(ours.policy.parameters(), theirs.policy.parameters(), before, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-6)
        moved = max(moved, float((own - first).detach().abs().max()))
    assert moved > 1e-3


def test_vla_policies_train_and_are_evaluated_under_stable_baselines3s_own_code():
    envs = make_vec("Toy-Reach", num_envs=2, chunk=2, seed=5).as_sb3()
    tiny = {"backbone": "nano", "backbone_kwargs": {"size": "tiny"}}
    model = stable_baselines3.PPO(
        VLAPolicy, envs, n_steps=8, batch_size=8, n_epochs=1, seed=0, device="cpu", policy_kwargs=tiny
    )
    model.learn(32)
    mean, _ = evaluate_policy(model, envs, n_eval_episodes=4)
    assert 0 <= mean <= 1


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
