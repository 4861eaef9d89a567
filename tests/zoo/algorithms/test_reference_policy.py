"""The KL to the policy as it was: by hand, zero before the first step, and kept by checkpoints."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from stable_baselines3.common.logger import Logger

import vla_gym
from tests.zoo.algorithms.test_losses import SETTINGS, batch, scored
from tests.zoo.stand_ins import Rows
from tests.zoo.training.test_checkpoint import build, learn
from vla_gym.errors import BadValue, UnknownName
from zoo import GRPO, PPO
from zoo.algorithms.losses import PPOLoss
from zoo.algorithms.reference_policy import Reference
from zoo.runs.folder import REFERENCE_FILE
from zoo.training.checkpoint import load_checkpoint, save_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore::zoo.algorithms.update_metrics.TrainingWarning")


def test_its_weight_in_the_loss_is_per_token():
    # A reference that finds a token twice as likely: 2 - 1 - ln 2; half as likely: 1/2 - 1 + ln 2; alike: 0.
    # Decision 0 has one executed token of two, with KL 1 - ln 2; decision 1 two, with KL 0 and ln 2 - 1/2.
    weight_BL = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    mask_BW = torch.tensor([[True, False], [True, True]])
    new = scored()
    reference_BW = torch.stack([new.logprob_BL[0] + math.log(2), new.logprob_BL[1] - torch.tensor([0.0, math.log(2)])])
    minibatch = replace(batch(weight_BL), ref_logprob_BW=reference_BW * mask_BW, token_mask_BW=mask_BW)
    new = replace(new, token_logprob_BW=new.logprob_BL * mask_BW)
    without, with_kl = (PPOLoss(**{**SETTINGS, "kl_coef": coef})(new, minibatch).loss.item() for coef in (0.0, 0.1))
    kl = ((1 - math.log(2)) + (0.0 + math.log(2) - 0.5) / 2) / 2
    assert with_kl - without == pytest.approx(0.1 * kl, abs=1e-6)


LORA_ONLY = {"lora": {"rank": 4}}
LORA = {"backbone": "openvla-oft", "backbone_kwargs": {"size": "tiny", **LORA_ONLY}}


def make(algo: str, **kwargs: Any) -> PPO | GRPO:
    settings = {"batch_size": 64, "n_epochs": 1, "learning_rate": 3e-2, "seed": 0, "device": "cpu", **kwargs}
    settings = {"policy_kwargs": LORA, "logprob_level": "token", **settings}
    size = 2 if algo == "ppo" else 4
    envs = vla_gym.make_vec("Toy-Reach", num_envs=4, chunk=4, group_size=1 if algo == "ppo" else size, seed=0)
    model = PPO("VLAPolicy", envs, n_steps=4, **settings) if algo == "ppo" else GRPO("VLAPolicy", envs, **settings)
    model.set_logger(Logger(None, [Rows()]))
    return model


def rows(model: PPO | GRPO) -> list[float]:
    return [row["train/actor/ref_kl"] for row in model.logger.output_formats[0].rows if "train/actor/ref_kl" in row]


def test_the_reference_is_the_policy_before_training():
    model = make("ppo", kl_coef=1e-6)
    obs = model.env.reset()
    sample = model.policy.act(obs)
    model.learn(80)
    assert rows(model)[0] == 0.0 < rows(model)[-1]
    now = model.policy.evaluate(obs, sample.record).logprob_BKA
    then = model.reference.evaluate(obs, sample.record).logprob_BKA
    assert (now - sample.logprob_BKA).abs().max() > 1e-3
    torch.testing.assert_close(then, sample.logprob_BKA, rtol=1e-5, atol=1e-5)
    assert not then.requires_grad


COPY = {"kl_coef": 0.05, "kl_reference": "copy"}


@pytest.mark.processes
def test_a_copy_is_a_file_of_the_checkpoint(tmp_path: Any):
    stopped = build("ppo", **COPY)
    learn(stopped, 1)
    folder = save_checkpoint(stopped, tmp_path / "checkpoints")
    (folder / REFERENCE_FILE).unlink()
    with pytest.raises(BadValue, match=REFERENCE_FILE):
        load_checkpoint(build("ppo", **COPY), folder)


@pytest.mark.parametrize(
    ("make_model", "error", "match"),
    [
        (lambda: build("ppo", kl_coef=0.1), BadValue, "kl_reference='copy'"),
        (lambda: build("grpo", kl_coef=0.1), BadValue, "LoRA"),
        (lambda: build("ppo", kl_coef=-0.1), BadValue, "kl_coef"),
        (lambda: build("ppo", kl_reference="base"), UnknownName, "adapter_off"),
    ],
)
def test_without_a_reference_one_line_says_so(make_model: Any, error: type, match: str):
    with pytest.raises(error, match=match) as caught:
        make_model()
    assert "\n" not in str(caught.value)


def test_an_adapter_trained_before_is_no_reference(tmp_path: Any):
    first = make("ppo")
    first.learn(20)
    first.policy.save_pretrained(tmp_path / "base")
    adapter = make("ppo", policy_kwargs={"backbone": str(tmp_path / "base"), "backbone_kwargs": LORA_ONLY})
    # What a run of zoo.sft leaves: B of one layer is not zero any more.
    b = next(value for name, value in adapter.policy.named_parameters() if "lora_B" in name)
    torch.nn.init.constant_(b, 1e-3)
    adapter.policy.save_adapter(tmp_path / "sft")
    tuned = {"backbone": str(tmp_path / "sft")}
    message = "kl_reference='adapter_off' is the policy without its LoRA adapter, and this adapter was trained before"
    model = make("ppo", kl_coef=0.1, policy_kwargs=tuned)
    with pytest.raises(BadValue, match=message) as caught:
        model.learn(1)
    assert "kl_reference='copy'" in str(caught.value)
    assert "merge_adapter" in str(caught.value)
    # Both pieces of advice work: the KL to the policy at the start is 0.
    copied = make("ppo", kl_coef=0.1, kl_reference="copy", policy_kwargs=tuned)
    copied.learn(1)
    assert rows(copied)[0] == pytest.approx(0.0, abs=1e-6)
    model.policy.merge_adapter()
    model.policy.save_pretrained(tmp_path / "merged")
    anew = {"backbone": str(tmp_path / "merged"), "backbone_kwargs": LORA_ONLY}
    merged = make("ppo", kl_coef=0.1, policy_kwargs=anew)
    merged.learn(1)
    assert rows(merged)[0] == pytest.approx(0.0, abs=1e-6)


def test_while_the_critic_warms_up_the_reference_is_left_alone():
    model = make("ppo", kl_coef=0.1, critic_warmup_updates=1)
    model.learn(1)
    assert rows(model) == []
    model.learn(1, reset_num_timesteps=False)
    assert rows(model) == [0.0]


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_a_copy_takes_memory_for_what_trains_alone(quantization: str | None):
    options = {**LORA["backbone_kwargs"], "quantization": quantization}
    policy = make("ppo", policy_kwargs={**LORA, "backbone_kwargs": options}).policy
    reference = Reference(policy, "copy")

    def memory(one: Any, *, trained: bool) -> set[int]:
        names = [name for name, p in policy.named_parameters() if p.requires_grad]
        return {x.data_ptr() for name, x in one.state_dict().items() if (name in names) == trained}

    assert memory(reference._policy, trained=False) == memory(policy, trained=False)
    assert not memory(reference._policy, trained=True) & memory(policy, trained=True)
    assert any(p.requires_grad for p in policy.parameters())
    assert not any(p.requires_grad for p in reference._policy.parameters())
