"""OpenVLA: one action of 7 tokens, decoded one after the other with a key-value cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from vla_gym.errors import BadValue
from vla_policies.actions.noise import TORCH_NOISE, Noise
from vla_policies.actions.sampling import (
    ActionTokenDistribution,
    ChunkDistribution,
    Sampling,
    token_log_probs,
)
from vla_policies.backbone import Backbone
from vla_policies.conventions import Conventions
from vla_policies.devices import upload
from vla_policies.openvla.config import OpenVLAConfig, Settings
from vla_policies.openvla.family import OpenVLAFamily
from vla_policies.openvla.llama import KVCache, Segment, decode_after, decode_step, prefill, run_layers
from vla_policies.types import ActionSample, Evaluation, PolicyInputs, is_padded


@dataclass(frozen=True)
class Prompt:
    """Images and text of B observations as one sequence: BOS, patches, the other words, padding."""

    segment: Segment
    """Causal, positions counting up; padding stands at the end, where no real token attends to it."""
    last_B: Tensor
    """Index of each row's last token, from which the first action token is predicted."""
    padded: bool
    """Whether any row has padding."""


class OpenVLABackbone(OpenVLAFamily):
    """Action tokens one by one: acting generates, scoring runs the drawn tokens in one pass.

    Log-probabilities always come from that one pass over the drawn tokens after the prompt. While acting the
    prompt's key-value cache exists, so this costs one more step; a decision scored again by the same weights then
    gives the same bits, which step-by-step logits would not.
    """

    family: ClassVar[str] = "openvla"
    published: ClassVar[str | None] = "openvla/openvla-7b"
    default_conventions: ClassVar[Conventions] = Conventions(
        cameras=("image",), image_size=224, state_dim=0, chunk=1, action_dim=7
    )
    base_settings: ClassVar[Settings] = Settings()

    def __init__(self, conventions: Conventions, config: OpenVLAConfig, where: str) -> None:
        if conventions.chunk != 1 or config.settings.action_dims is not None:
            raise BadValue(
                "OpenVLA decides one action, whose numbers depend on one another: chunk must be 1 and action_dims "
                f"null, got {conventions.chunk} and {config.settings.action_dims}"
            )
        super().__init__(conventions, config, where)

    @torch.no_grad()
    def act(
        self, inputs: PolicyInputs, sampling: Sampling, *, deterministic: bool, noise: Noise = TORCH_NOISE
    ) -> ActionSample:
        prompt = self._prompt(inputs)
        dims = self.conventions.action_dim
        x_BLD, cache = prefill(self.network.language_model.model, prompt.segment, room=dims - 1)
        hidden_BD = self._last_hidden(prompt, x_BLD)
        token_BA = self._generate(prompt, cache, hidden_BD, sampling, deterministic=deterministic, noise=noise)
        _, distribution = self._teacher_forced(prompt, token_BA, sampling, (cache, hidden_BD))
        token_BKA = token_BA[:, None]
        return ActionSample(
            action_BKA=self.codec.decode(token_BKA),
            logprob_BKA=distribution.token_log_prob(token_BKA),
            value_B=self.state_values(hidden_BD),
            record={"token": token_BKA},
        )

    def evaluate(self, inputs: PolicyInputs, record: Mapping[str, Tensor], sampling: Sampling) -> Evaluation:
        prompt = self._prompt(inputs)
        token_BKA = record["token"].long()
        hidden_BD, distribution = self._teacher_forced(prompt, token_BKA[:, 0], sampling)
        return Evaluation(
            logprob_BKA=distribution.token_log_prob(token_BKA),
            entropy_BKA=distribution.token_entropy(),
            value_B=self.state_values(hidden_BD),
        )

    def value(self, inputs: PolicyInputs) -> Tensor:
        prompt = self._prompt(inputs)
        x_BLD = run_layers(self.network.language_model.model, prompt.segment, self.network.checkpoint_fn())
        return self.state_values(self._last_hidden(prompt, x_BLD))

    def distribution(self, inputs: PolicyInputs, sampling: Sampling) -> GeneratedDistribution:
        return GeneratedDistribution(self, inputs, sampling)

    def record_of(self, action_BKA: Tensor) -> Mapping[str, Tensor]:
        return {"token": self.codec.encode(action_BKA)}

    # Pieces ---------------------------------------------------------------------------------------

    def _prompt(self, inputs: PolicyInputs) -> Prompt:
        patch_BPD = self.encode_images(inputs)
        word_BLD = self.network.embed_tokens(inputs.text_BL)
        x_BLD = torch.cat([word_BLD[:, :1], patch_BPD, word_BLD[:, 1:]], dim=1)
        # Rows share their places, and with them one rotary table.
        position_1L = torch.arange(x_BLD.shape[1], device=x_BLD.device)[None]
        return Prompt(
            segment=Segment(x_BLD, position_1L, mask=None, causal=True),
            last_B=upload(patch_BPD.shape[1] + inputs.text_mask_BL.sum(dim=1) - 1, x_BLD.device),
            padded=is_padded(inputs.text_mask_BL),
        )

    def _last_hidden(self, prompt: Prompt, x_BLD: Tensor) -> Tensor:
        rows = torch.arange(len(x_BLD), device=x_BLD.device)
        return self.network.final_norm(x_BLD[rows, prompt.last_B])

    def _generate(
        self,
        prompt: Prompt,
        cache: KVCache,
        hidden_BD: Tensor,
        sampling: Sampling,
        *,
        deterministic: bool,
        noise: Noise,
    ) -> Tensor:
        """Tokens `[B, A]`, each drawn given those before it."""
        tokens: list[Tensor] = []
        for index in range(self.conventions.action_dim):
            if tokens:
                step = self._suffix(prompt, tokens[-1][:, None], after=index - 1)
                x_BLD = decode_step(self.network.language_model.model, step, cache, after=index - 1)
                hidden_BD = self.network.final_norm(x_BLD[:, -1])
            logits_BKAV = self.network.action_logits(hidden_BD)[:, None, None]
            drawn = ActionTokenDistribution(token_log_probs(logits_BKAV, sampling), self.codec, sampling.greedy)
            tokens.append(drawn.draw(deterministic, noise)[:, 0, 0])
        return torch.stack(tokens, dim=1)

    def _suffix(self, prompt: Prompt, token_BT: Tensor, after: int) -> Segment:
        """T drawn tokens that follow the prompt and `after` others, and attend to all of them."""
        count, length = token_BT.shape[1], prompt.segment.x_BLD.shape[1]
        place = torch.arange(count, device=token_BT.device) + after
        mask = None
        if prompt.padded or count > 1:
            real_BL = prompt.segment.position_BL <= prompt.last_B[:, None]
            drawn_TS = torch.arange(after + count, device=token_BT.device) <= place[:, None]
            mask = torch.cat(
                [
                    real_BL[:, None, None].expand(-1, 1, count, length),
                    drawn_TS.expand(len(token_BT), 1, -1, -1),
                ],
                dim=-1,
            )
        x_BTD = self.network.embed_tokens(token_BT + self.network.first_action_id)
        return Segment(x_BTD, prompt.last_B[:, None] + 1 + place, mask)

    def _teacher_forced(
        self,
        prompt: Prompt,
        token_BA: Tensor,
        sampling: Sampling,
        cached: tuple[KVCache, Tensor] | None = None,
    ) -> tuple[Tensor, ActionTokenDistribution]:
        """Hidden state at the prompt's end `[B, D]`, and the distributions the tokens were drawn from.

        `cached` holds the prompt's cache and that hidden state where acting has them.
        """
        cache, hidden_BD = (None, None) if cached is None else cached
        suffix = self._suffix(prompt, token_BA[:, :-1], after=0)
        model = self.network.language_model.model
        x_BLD, suffix_x = decode_after(model, prompt.segment, suffix, cache, self.network.checkpoint_fn())
        if hidden_BD is None:
            assert x_BLD is not None
            hidden_BD = self._last_hidden(prompt, x_BLD)
        hidden_BAD = torch.cat([hidden_BD[:, None], self.network.final_norm(suffix_x)], dim=1)
        log_probs_BKAV = token_log_probs(self.network.action_logits(hidden_BAD)[:, None], sampling)
        return hidden_BD, ActionTokenDistribution(log_probs_BKAV, self.codec, sampling.greedy)


class GeneratedDistribution(ChunkDistribution):
    """Distribution over actions whose tokens depend on one another, in environment actions as Stable-Baselines3's.

    It holds no table of log-probabilities: every method runs the network on the observations.
    """

    def __init__(self, backbone: Backbone, inputs: PolicyInputs, sampling: Sampling) -> None:
        super().__init__()
        self._backbone = backbone
        self._inputs = inputs
        self._sampling = sampling

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability of env actions (`[B, K, A]` or flat), float32 `[B]`, with gradients."""
        conventions = self._backbone.conventions
        action_BKA = actions.reshape(-1, conventions.chunk, conventions.action_dim)
        record = self._backbone.record_of(action_BKA)
        return self._backbone.evaluate(self._inputs, record, self._sampling).logprob_BKA.sum(dim=(1, 2))

    def entropy(self) -> None:
        """None: it has no closed form; SB3 then estimates it from log-probabilities of samples."""

    def sample(self) -> Tensor:
        """Env actions drawn at random, float32 `[B, K, A]`."""
        return self._act(deterministic=False)

    def mode(self) -> Tensor:
        """Env actions of tokens each the likeliest given those before, float32 `[B, K, A]`."""
        return self._act(deterministic=True)

    def _act(self, *, deterministic: bool) -> Tensor:
        with torch.no_grad():
            return self._backbone.act(self._inputs, self._sampling, deterministic=deterministic).action_BKA

    def proba_distribution(self, inputs: PolicyInputs, sampling: Sampling) -> Self:
        self._inputs, self._sampling = inputs, sampling
        return self
