"""SmolVLA's network: a cut SmolVLM encodes images, text and state; the expert denoises given its keys and values.

Submodules have the names of the published tensors, so that weights and adapters are read and written as they are.
Llama's layers by hand, not transformers' LlamaModel: the expert attends to keys and values of another stream.
Letters as in `modules.streams`; W is the VLM's width, E the expert's, H actions, M cameras, S padded state.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, SmolVLMConfig, SmolVLMVisionConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, rotate_half
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMConnector, SmolVLMVisionTransformer

from vla_policies.devices import constant
from vla_policies.modules.heads import ActionProjections
from vla_policies.modules.streams import KeyValue, Prefix, for_every_head, rotary_embedding, run_prefix
from vla_policies.modules.training import checkpoint_fn
from vla_policies.smolvla.config import LlamaShape, NetworkShape

Rotary = tuple[Tensor, Tensor]
"""Cosines and sines of `modules.streams.rotary_embedding`, float32."""


class Projections(nn.Module):
    """The four layers of an attention; keys and values are made of `source_width` features."""

    def __init__(self, shape: LlamaShape, source_width: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(shape.width, shape.num_heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(source_width, shape.num_kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(source_width, shape.num_kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.num_heads * shape.head_dim, shape.width, bias=False)


class LlamaLayer(nn.Module):
    """A layer whose tokens attend to those of an earlier pass and to each other: of the prefix, or a joint one."""

    def __init__(self, shape: LlamaShape, source_width: int | None = None) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.self_attn = Projections(shape, shape.width if source_width is None else source_width)
        self.mlp = LlamaMLP(
            LlamaConfig(hidden_size=shape.width, intermediate_size=shape.mlp_dim, num_attention_heads=1)
        )
        self.input_layernorm = LlamaRMSNorm(shape.width, eps=shape.norm_epsilon)
        self.post_attention_layernorm = LlamaRMSNorm(shape.width, eps=shape.norm_epsilon)

    def forward(
        self, x_BQD: Tensor, rotary: Rotary, mask_B1QL: Tensor | None, earlier: KeyValue | None = None
    ) -> tuple[Tensor, KeyValue]:
        """The layer's output, and keys and values of these tokens alone.

        `mask_B1QL` is True where a query attends to a key; keys are those of `earlier` followed by these.
        """
        normed = self.input_layernorm(x_BQD)
        own = self._key_value(normed, rotary)
        keys = own if earlier is None else earlier.followed_by(own)
        return self._mix(x_BQD, normed, rotary, keys, mask_B1QL), own

    def key_value(self, x_BQD: Tensor, rotary: Rotary) -> KeyValue:
        """Keys and values alone, when nothing of the layer's output is needed."""
        return self._key_value(self.input_layernorm(x_BQD), rotary)

    def _key_value(self, normed_BQD: Tensor, rotary: Rotary) -> KeyValue:
        key = rotated(self._heads(self.self_attn.k_proj(normed_BQD)), rotary)
        return KeyValue(key, self._heads(self.self_attn.v_proj(normed_BQD)))

    def _heads(self, x_BQF: Tensor) -> Tensor:
        return x_BQF.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _mix(
        self, x_BQD: Tensor, normed_BQD: Tensor, rotary: Rotary, keys: KeyValue, mask_B1QL: Tensor | None
    ) -> Tensor:
        query = rotated(self._heads(self.self_attn.q_proj(normed_BQD)), rotary)
        mixed = functional.scaled_dot_product_attention(
            query,
            for_every_head(keys.key_BCLF, query.shape[1]),
            for_every_head(keys.value_BCLF, query.shape[1]),
            attn_mask=mask_B1QL,
        )
        x_BQD = x_BQD + self.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
        return x_BQD + self.mlp(self.post_attention_layernorm(x_BQD))


class CrossLayer(LlamaLayer):
    """A layer of the expert whose tokens attend to the prefix alone, by projections of its keys and values."""

    run_in_parts = True
    """`project` runs apart from `forward`: FSDP2 leaves the layer in one unit with others (`zoo.distributed.fsdp`)."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__(shape, source_width=shape.num_kv_heads * shape.head_dim)

    def project(self, prefix: KeyValue) -> KeyValue:
        """The prefix's rotated keys, and values, as this layer's: they depend on the prefix alone. Keys are not rotated
        again."""
        weight = self.self_attn.k_proj.weight
        key, value = (
            self._heads(projection(x_BCLF.transpose(1, 2).flatten(2).to(weight.dtype)))
            for projection, x_BCLF in (
                (self.self_attn.k_proj, prefix.key_BCLF),
                (self.self_attn.v_proj, prefix.value_BCLF),
            )
        )
        return KeyValue(key, value)

    def forward(  # type: ignore[override]
        self, x_BQD: Tensor, rotary: Rotary, mask_B1QL: Tensor | None, projected: KeyValue
    ) -> tuple[Tensor, KeyValue]:
        """The layer's output, and `projected` again."""
        return self._mix(x_BQD, self.input_layernorm(x_BQD), rotary, projected, mask_B1QL), projected


def rotated(x_BCQF: Tensor, rotary: Rotary) -> Tensor:
    """Heads turned to their positions, in float32 and back, as in training."""
    cos, sin = (x[:, None] for x in rotary)
    wide = x_BCQF.float()
    return (wide * cos + rotate_half(wide) * sin).to(x_BCQF.dtype)


class TextModel(nn.Module):
    """Token table and Llama layers, as many as were kept."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.text.width)
        self.layers = nn.ModuleList(LlamaLayer(shape.text) for _ in range(shape.text.depth))
        self.norm = LlamaRMSNorm(shape.text.width, eps=shape.text.norm_epsilon)
        # Times sqrt(W), a token begins with features of size 1, as the images' do.
        nn.init.normal_(self.embed_tokens.weight, std=shape.text.width**-0.5)


class VisionLanguageModel(nn.Module):
    """SmolVLM: the image tower, the connector that makes tokens of its patches, the text model."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        self.recompute = False
        vision = SmolVLMVisionConfig(**asdict(shape.vision))
        self.vision_model = SmolVLMVisionTransformer(vision)
        whole = SmolVLMConfig(
            vision_config=vision.to_dict(),
            text_config={"model_type": "llama", "hidden_size": shape.text.width, "num_attention_heads": 1},
            scale_factor=shape.pixel_shuffle,
        )
        self.connector = SmolVLMConnector(whole)
        projection = self.connector.modality_projection.proj
        nn.init.normal_(projection.weight, std=(projection.in_features * shape.text.width) ** -0.5)
        self.text_model = TextModel(shape)

    def image_tokens(self, pixels_BCHW: Tensor) -> Tensor:
        """Images in [-1, 1] to tokens `[B, tokens, W]`, unscaled.

        The tower's own `forward` lets the host wait for a GPU twice: it uploads a mask of patches and asks whether
        that hides any. None is hidden.
        """
        tower, pixels_BCHW = self.vision_model, pixels_BCHW.to(self.connector.modality_projection.proj.weight.dtype)
        rows, columns = (side // tower.patch_size for side in pixels_BCHW.shape[-2:])
        seen_BHW = pixels_BCHW.new_ones((len(pixels_BCHW), rows, columns), dtype=torch.bool)
        x_BPW = tower.embeddings(pixel_values=pixels_BCHW, patch_attention_mask=seen_BHW)
        x_BPW = tower.post_layernorm(tower.encoder(inputs_embeds=x_BPW).last_hidden_state)
        return self.connector(x_BPW)

    def embed(
        self, pixels_BMCHW: Tensor, camera_mask_BM: Tensor | None, text_BL: Tensor, text_mask_BL: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Tokens of all cameras, then of the text, `[B, L, W]`, and which are real, bool `[B, L]`.

        `camera_mask_BM` is False where a camera is absent; None means that all are there.
        """
        num_samples, num_cameras = pixels_BMCHW.shape[:2]
        scale = math.sqrt(self.shape.text.width)
        images = self.image_tokens(pixels_BMCHW.flatten(0, 1)).unflatten(0, (num_samples, num_cameras)) * scale
        if camera_mask_BM is None:
            camera_mask_BM = text_mask_BL.new_ones(num_samples, num_cameras)
        blocks = [(images[:, camera], camera_mask_BM[:, camera]) for camera in range(num_cameras)]
        if self.shape.image_brackets is not None:
            absent = torch.zeros_like(images[:, 0]), torch.zeros_like(camera_mask_BM[:, 0])
            blocks += [absent] * self.shape.empty_blocks
        parts = [part for image_BPW, there_B in blocks for part in self._block(image_BPW, there_B)]
        parts.append((self.text_model.embed_tokens(text_BL) * scale, text_mask_BL))
        return torch.cat([tokens for tokens, _ in parts], dim=1), torch.cat([mask for _, mask in parts], dim=1)

    def forward(self, x_BLW: Tensor, mask_BL: Tensor, *, with_hidden: bool) -> Prefix:
        return run_prefix(
            self.text_model.layers,
            self.text_model.norm,
            x_BLW,
            mask_BL,
            head_dim=self.shape.text.head_dim,
            recompute=self.recompute,
            with_hidden=with_hidden,
            rotary_dtype=torch.float32,
        )

    def read_state(self, prefix: Prefix, state_BW: Tensor, *, with_hidden: bool) -> tuple[Prefix, Tensor | None]:
        """`prefix` with the state's token at its end, and that token after the last norm, `[B, W]`, if requested.

        The state sees images and text, and is seen by neither: the prefix does not depend on it.
        """
        text = self.text_model
        there_B1 = prefix.mask_BL.new_ones(len(state_BW), 1)
        position_B1 = prefix.mask_BL.long().sum(dim=1, keepdim=True)
        rotary = rotary_embedding(position_B1, self.shape.text.head_dim, torch.float32)
        mask_BL = torch.cat([prefix.mask_BL, there_B1], dim=1)
        run = checkpoint_fn(recompute=self.recompute)
        x_B1W, layers = state_BW[:, None], list[KeyValue]()
        for layer, earlier in zip(text.layers, prefix.layers, strict=True):
            assert isinstance(layer, LlamaLayer)
            if len(layers) + 1 == len(text.layers) and not with_hidden:
                layers.append(earlier.followed_by(layer.key_value(x_B1W, rotary)))
                break
            x_B1W, own = run(layer, x_B1W, rotary, mask_BL[:, None, None], earlier)
            layers.append(earlier.followed_by(own))
        hidden_BW = text.norm(x_B1W)[:, 0] if with_hidden else None
        return Prefix(tuple(layers), mask_BL, None), hidden_BW

    def _block(self, image_BPW: Tensor, there_B: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Tokens of one image and which are real: its patches and, real in any case, the brackets around them."""
        num_samples, patches = image_BPW.shape[:2]
        image = (image_BPW, there_B[:, None].expand(num_samples, patches))
        if self.shape.image_brackets is None:
            return [image]
        fake, whole = self.shape.image_brackets

        def bracket(*tokens: int) -> tuple[Tensor, Tensor]:
            ids = constant(tokens, torch.int64, image_BPW.device)
            embedded = self.text_model.embed_tokens(ids).expand(num_samples, -1, -1)
            return embedded, there_B.new_ones(num_samples, len(tokens))

        return [bracket(fake, whole), image, bracket(fake)]


class Expert(nn.Module):
    """The stream that denoises; its tokens are causal among each other."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        self.recompute = False
        joint = set(shape.joint_layers)
        self.layers = nn.ModuleList(
            LlamaLayer(shape.expert) if index in joint else CrossLayer(shape.expert)
            for index in range(shape.expert.depth)
        )
        self.norm = LlamaRMSNorm(shape.expert.width, eps=shape.expert.norm_epsilon)

    def memory(self, prefix: Prefix) -> Prefix:
        """Images, text and state as every layer reads them, once for all denoising steps: the prefix's keys and values
        for joint layers, their own projections of it for cross ones."""
        layers = []
        for layer, text_layer in zip(self.layers, self.shape.text_layer_of, strict=True):
            found = prefix.layers[text_layer]
            layers.append(layer.project(found) if isinstance(layer, CrossLayer) else found)
        return Prefix(tuple(layers), prefix.mask_BL, None)

    def forward(self, x_BHE: Tensor, memory: Prefix) -> Tensor:
        """`[B, H, E]`, after the last norm."""
        num_actions, device = x_BHE.shape[1], x_BHE.device
        place_H = torch.arange(num_actions, device=device)
        start_B1 = memory.mask_BL.long().sum(dim=1, keepdim=True)
        head_dim = self.shape.expert.head_dim
        cross_mask = memory.mask_BL[:, None, None].expand(-1, 1, num_actions, -1)
        causal = (place_H[:, None] >= place_H).expand(len(x_BHE), 1, -1, -1)
        joint = rotary_embedding(start_B1 + place_H, head_dim, torch.float32), torch.cat([cross_mask, causal], dim=-1)
        cross = rotary_embedding(place_H[None], head_dim, torch.float32), cross_mask
        run = checkpoint_fn(recompute=self.recompute)
        for layer, read in zip(self.layers, memory.layers, strict=True):
            rotary, mask = cross if isinstance(layer, CrossLayer) else joint
            x_BHE, _ = run(layer, x_BHE, rotary, mask, read)
        return self.norm(x_BHE)


class SmolVLANetwork(ActionProjections):
    """Velocity of noisy actions, given an observation."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        head = nn.Linear(shape.text.width, shape.vocab_size, bias=False)  # published, and read by nothing
        vlm = nn.ModuleDict({"model": VisionLanguageModel(shape), "lm_head": head.requires_grad_(False)})
        self.vlm_with_expert = nn.ModuleDict({"vlm": vlm, "lm_expert": Expert(shape)})
        self.state_proj = nn.Linear(shape.state_width, shape.text.width)
        periods = (shape.min_period, shape.max_period)
        self.add_projections(shape.expert.width, shape.action_width, adaptive=False, periods=periods)

    @property
    def vlm(self) -> VisionLanguageModel:
        """Images and text to keys and values."""
        return self.vlm_with_expert["vlm"]["model"]  # type: ignore[index]

    @property
    def expert(self) -> Expert:
        """Noisy actions to hidden states."""
        return cast(Expert, self.vlm_with_expert["lm_expert"])

    def read_state(self, prefix: Prefix, state_BS: Tensor, *, with_hidden: bool) -> tuple[Prefix, Tensor | None]:
        """`prefix` with the state's token at its end, and that token's hidden state `[B, W]` if requested."""
        state_BW = self.state_proj(state_BS).to(self.vlm.text_model.embed_tokens.weight.dtype)
        return self.vlm.read_state(prefix, state_BW, with_hidden=with_hidden)

    def hidden(self, memory: Prefix, x_BHD: Tensor, time_B: Tensor) -> Tensor:
        """The expert's tokens after the last norm, `[B, H, E]`."""
        return self.expert(self.embed_actions(x_BHD, time_B)[0], memory)


def initialise(network: SmolVLANetwork) -> None:
    """Random weights whose layers keep the size of their input, so that words meet images from the first update on.

    torch's own make outputs of a third of it, and patches are hardly seen beside the places of the tower.
    """
    vlm = network.vlm
    for layer in network.modules():
        if isinstance(layer, nn.Linear) and layer not in (
            vlm.connector.modality_projection.proj,
            network.action_out_proj,
        ):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    embeddings = vlm.vision_model.embeddings
    nn.init.normal_(embeddings.patch_embedding.weight, std=2.0 * embeddings.patch_embedding.weight[0].numel() ** -0.5)
    nn.init.zeros_(embeddings.patch_embedding.bias)
    nn.init.normal_(embeddings.position_embedding.weight, std=0.5)
