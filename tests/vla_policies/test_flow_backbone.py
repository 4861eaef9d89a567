"""A flow whose velocity is known: x times a learnable number, so that every probability can be checked."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vla_gym.errors import BadValue
from vla_policies import Conventions, VLAPolicy
from vla_policies.actions.flow import FlowSettings, flow_sde_law
from vla_policies.actions.sampling import Sampling
from vla_policies.flow_backbone import Denoised, FlowBackbone
from vla_policies.types import PolicyInputs

CONVENTIONS = Conventions(cameras=("image",), image_size=4, state_dim=0, chunk=2, action_dim=3)
HORIZON, WIDTH = 5, 4
INPUTS = PolicyInputs(
    pixels_BMCHW=torch.zeros(6, 1, 3, 4, 4),
    text_BL=torch.zeros(6, 1, dtype=torch.int64),
    text_mask_BL=torch.ones(6, 1, dtype=torch.bool),
    state_BS=None,
)
SCHEMES = ("flow_sde", "flow_cps", "flow_noise")


class LinearFlow(FlowBackbone):
    """velocity = gain * x, standard deviation exp(log_std), value = bias."""

    family: ClassVar[str] = "linear"
    default_conventions: ClassVar[Conventions] = CONVENTIONS

    def __init__(self, flow: FlowSettings, conventions: Conventions = CONVENTIONS) -> None:
        super().__init__(conventions, flow, horizon=HORIZON, flow_width=WIDTH)
        self.gain = nn.Parameter(torch.tensor(0.3))
        self.log_std = nn.Parameter(torch.tensor(-2.0))
        self.bias = nn.Parameter(torch.tensor(0.5))
        self.encodings = 0

    @classmethod
    def fresh(cls, conventions: Conventions, options: Mapping[str, Any]) -> Self:
        return cls(FlowSettings(), conventions)

    @classmethod
    def from_config(cls, conventions: Conventions, config: Mapping[str, Any], where: str) -> Self:
        return cls(FlowSettings(), conventions)

    def config_json(self) -> dict[str, Any]:
        return {}

    def value_parameters(self) -> Iterator[nn.Parameter]:
        yield self.bias

    def prepare(self, obs: Mapping[str, Tensor]) -> PolicyInputs:
        return INPUTS

    def encode(self, inputs: PolicyInputs) -> int:
        self.encodings += 1
        return len(inputs.pixels_BMCHW)

    def denoise(self, context: int, x_BHD: Tensor, time_B: Tensor) -> Denoised:
        return Denoised(self.gain * x_BHD, x_BHD)

    def learned_std(self, hidden_BHE: Tensor) -> Tensor:
        return self.log_std.exp().expand_as(hidden_BHE)

    def value_of(self, context: int) -> Tensor:
        return self.bias.expand(context)

    def to_env(self, x_BHD: Tensor, inputs: PolicyInputs) -> Tensor:
        return x_BHD[:, :2, :3].clamp(-1.0, 1.0)


def act(flow: LinearFlow, *, deterministic: bool = False):
    torch.manual_seed(0)
    with torch.no_grad():
        return flow.act(INPUTS, Sampling(), deterministic=deterministic)


def test_flow_sde_draws_one_step_for_each_sample_and_scores_it_alone() -> None:
    flow = LinearFlow(FlowSettings(num_steps=4))
    sample = act(flow)
    chain, step_B = sample.record["chain"], sample.record["step"]
    assert chain.shape == (6, 5, HORIZON, WIDTH)
    assert len(step_B.unique()) > 1
    std_J, pull_J = (law.float() for law in flow_sde_law(4, 0.5))
    for row, step in enumerate(step_B.tolist()):
        for j in range(4):
            x, time = chain[row, j], 1.0 - j / 4
            mean = x - 0.25 * 0.3 * x
            if j != step:
                torch.testing.assert_close(chain[row, j + 1], mean)
                continue
            mean = mean - pull_J[j] * (x + (1.0 - time) * 0.3 * x)
            expected = torch.distributions.Normal(mean, std_J[j]).log_prob(chain[row, j + 1])
            torch.testing.assert_close(sample.logprob_BKA[row], expected[:2, :3])


def test_flow_noise_scores_all_steps_jointly() -> None:
    sample = act(LinearFlow(FlowSettings(num_steps=3, scheme="flow_noise")))
    chain = sample.record["chain"]
    law = torch.distributions.Normal(chain[:, :-1] * (1.0 - 0.3 / 3), np.exp(-2.0))
    expected = law.log_prob(chain[:, 1:])[:, :, :2, :3].sum(dim=1)
    torch.testing.assert_close(sample.logprob_BKA, expected)
    mean = act(LinearFlow(FlowSettings(num_steps=3, scheme="flow_noise", joint="mean")))
    torch.testing.assert_close(mean.logprob_BKA, expected / 4)


def test_flow_noise_entropy_by_hand() -> None:
    flow = LinearFlow(FlowSettings(num_steps=3, scheme="flow_noise"))
    entropy = flow.evaluate(INPUTS, act(flow).record, Sampling()).entropy_BKA
    torch.testing.assert_close(entropy, torch.full((6, 2, 3), 3 * (1.4189385 - 2.0)))


def test_flow_sde_can_leave_the_last_step_alone() -> None:
    flow = LinearFlow(FlowSettings(num_steps=2, last_step_random=False))
    assert (act(flow).record["step"] == 0).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_deterministic_decisions_follow_the_ode(scheme: str) -> None:
    flow = LinearFlow(FlowSettings(num_steps=4, scheme=scheme))
    first, second = act(flow, deterministic=True), flow.act(INPUTS, Sampling(), deterministic=True)
    assert torch.equal(first.action_BKA, second.action_BKA)
    assert torch.equal(first.action_BKA, first.action_BKA[:1].expand(6, -1, -1))
    noise = first.record["chain"][:, 0]
    torch.testing.assert_close(first.record["chain"], flow.integrate(INPUTS, noise, 4))
    torch.testing.assert_close(first.record["chain"][:, -1], noise * (1.0 - 0.3 / 4) ** 4)
    result = flow.evaluate(INPUTS, first.record, Sampling())
    assert torch.equal(result.logprob_BKA, first.logprob_BKA)


def test_deterministic_decisions_may_start_from_fresh_noise() -> None:
    flow = LinearFlow(FlowSettings(eval_noise="random"))
    assert not torch.equal(
        act(flow, deterministic=True).action_BKA, flow.act(INPUTS, Sampling(), deterministic=True).action_BKA
    )


def test_matching_loss_by_hand() -> None:
    # x_t = 0.5 * 2 + 0.5 * 4 = 3, velocity 0.9, target 2 - 4 = -2: (2.9)^2.
    noise, action = torch.full((6, HORIZON, WIDTH), 2.0), torch.full((6, HORIZON, WIDTH), 4.0)
    loss = LinearFlow(FlowSettings()).matching_loss(INPUTS, action, noise, torch.full((6,), 0.5))
    torch.testing.assert_close(loss, torch.full_like(loss, 2.9**2))


def test_token_settings_and_long_chunks_are_refused() -> None:
    with pytest.raises(BadValue, match="temperature, top_k and greedy are for action tokens"):
        LinearFlow(FlowSettings()).act(INPUTS, Sampling(temperature=1.6), deterministic=False)
    long = Conventions(cameras=("image",), image_size=4, state_dim=0, chunk=6, action_dim=3)
    with pytest.raises(BadValue, match="predicts 5 actions of up to 4 dims; the environment wants chunks of 6 x 3"):
        LinearFlow(FlowSettings(), long)


def test_stable_baselines3_cannot_score_bare_actions(
    make_policy: Callable[..., VLAPolicy], make_obs: Callable[..., dict[str, np.ndarray]]
) -> None:
    policy = make_policy(backbone="nano-flow", backbone_kwargs={"size": "tiny"})
    obs = policy.obs_to_tensor(make_obs(2))[0]
    actions, values, log_prob = policy(obs)
    assert (actions.shape, values.shape, log_prob.shape) == ((2, 2, 4), (2, 1), (2,))
    with pytest.raises(BadValue, match=r"use zoo\.PPO or zoo\.GRPO"):
        policy.evaluate_actions(obs, actions)
