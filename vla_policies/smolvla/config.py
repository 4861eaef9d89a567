"""The config of a SmolVLA checkpoint: sizes, preprocessing, reinforcement learning. Plain data.

Defaults are those of `lerobot/smolvla_base`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vla_gym.errors import BadValue
from vla_policies.actions.flow import FlowSettings
from vla_policies.modules.lora_config import LoraSettings
from vla_policies.modules.streams import GemmaShape
from vla_policies.processing.statistics import Statistics
from vla_policies.vlm_flow.config import FlowLearning, FlowPreprocessing, FlowShape, Part, VLMFlowConfig, check_streams

VLM_NAME = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"
"""Repository of the vision-language model that the published weights are cut from."""


@dataclass(frozen=True, kw_only=True)
class VisionShape:
    """SigLIP: fields of transformers' `SmolVLMVisionConfig`; all blocks and the last norm are used."""

    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    patch_size: int = 16
    image_size: int = 512
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6


@dataclass(frozen=True, kw_only=True)
class LlamaShape(GemmaShape):
    """One Llama stream."""

    num_heads: int = 15
    num_kv_heads: int = 5
    head_dim: int = 64
    norm_epsilon: float = 1e-5
    """Epsilon of the RMS norms."""


@dataclass(frozen=True, kw_only=True)
class NetworkShape(FlowShape):
    """Sizes of the network; as many actions are decoded as are executed, `horizon` or fewer."""

    vision: VisionShape = field(default_factory=VisionShape)
    """The image tower."""
    pixel_shuffle: int = 4
    """Side of the squares of patches that become one token."""
    picture_size: int | None = 512
    """Side that images are resized to, padded above and on the left; None = they are taken as they are."""
    text: LlamaShape = field(default_factory=lambda: LlamaShape(width=960, mlp_dim=2560, depth=16))
    """The stream that reads images, text and state."""
    vocab_size: int = 49280
    """Rows of the token table."""
    image_brackets: tuple[int, int] | None = None
    """Tokens (fake image, global image) around every image: fake, global before it, fake after it; None = none."""
    empty_blocks: int = 0
    """Absent cameras of which the brackets, not the image, are read; without brackets nothing of them is."""
    expert: LlamaShape = field(default_factory=lambda: LlamaShape(width=720, mlp_dim=2048, depth=16))
    """The stream that denoises actions; layer j reads the text layer j text.depth / expert.depth."""
    joint_layers: tuple[int, ...] = (0, 2, 4, 6, 8, 10, 12, 14)
    """Expert layers whose tokens attend to the prefix and, causally, to each other; others to the prefix alone."""

    may_be_zero: ClassVar[tuple[str, ...]] = ("empty_blocks",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_streams(self.text, self.expert, ("num_heads", "num_kv_heads", "head_dim"), "text")
        if self.text.depth % self.expert.depth or self.expert.width % 2:
            raise BadValue(
                "the expert's layers must divide the text model's and its width must be even, got "
                f"{self.expert.depth} layers of {self.text.depth}, width {self.expert.width}"
            )
        side = self.vision.patch_size * self.pixel_shuffle
        for name, size in (("image_size", self.vision.image_size), ("picture_size", self.picture_size)):
            if size is not None and (size % side or size < side):
                raise BadValue(f"{name} must be a multiple of patch_size x pixel_shuffle = {side}, got {size}")

    @property
    def image_size(self) -> int:
        return self.vision.image_size if self.picture_size is None else self.picture_size

    @property
    def vlm_width(self) -> int:
        return self.text.width

    @property
    def text_layer_of(self) -> tuple[int, ...]:
        """Text layer that every expert layer reads."""
        return tuple(range(0, self.text.depth, self.text.depth // self.expert.depth))


@dataclass(frozen=True, kw_only=True)
class Preprocessing(FlowPreprocessing):
    """Preprocessing and postprocessing: properties of a checkpoint."""

    use_statistics: bool = True
    """False takes states and actions as they are: for weights whose statistics are of another robot."""
    # `tokenizer`: folder or Hub id of the vision-language model whose tokenizer reads the text, or "words".

    def statistics(self, part: Part) -> Statistics | None:
        return super().statistics(part) if self.use_statistics else None


@dataclass(frozen=True, kw_only=True)
class Learning(FlowLearning):
    """Heads and trainable parts."""

    value_feature: Literal["state", "expert", "prefix"] = "state"
    """The critic's input: the state token after the VLM's last norm, which has seen everything; the mean over the
    expert's tokens at t = 1 and x = 0; or the mean over the VLM's image and text tokens, which have not seen the
    state."""
    train_state_proj: bool = True
    """Whether the state's projection is trained; its gradient passes through the VLM's layers."""
    freeze_vision_encoder: bool = True
    """Whether the image tower stays fixed where the VLM is trained."""
    lora: LoraSettings | None = None
    """Adapters that are trained instead of weights; None = none."""


@dataclass(frozen=True, kw_only=True)
class SmolVLAConfig(VLMFlowConfig):
    """Config of one checkpoint."""

    title: ClassVar[str] = "SmolVLA"
    settable: ClassVar[tuple[str, ...]] = ("use_statistics",)

    network: NetworkShape
    preprocessing: Preprocessing
    learning: Learning
    published: Mapping[str, Any] = field(default_factory=dict)
    """Settings of lerobot's `config.json`, as far as it knows them, for writing it again."""
    rename_map: Mapping[str, str] = field(default_factory=dict)
    """Names of lerobot's observations -> those of `published`, for writing its preprocessor again."""


def tiny_config(action_width: int = 32) -> SmolVLAConfig:
    """Some hundred thousand parameters, random weights, all trained, hashed words: for trials without a download.

    Where `action_width` is the arm's, no noise of padding hides the little that a small network sees of an action.
    """
    heads = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
    return SmolVLAConfig(
        network=NetworkShape(
            vision=VisionShape(
                hidden_size=48,
                intermediate_size=96,
                num_hidden_layers=2,
                num_attention_heads=3,
                patch_size=16,
                image_size=64,
            ),
            pixel_shuffle=2,
            picture_size=64,
            text=LlamaShape(width=64, mlp_dim=128, depth=2, **heads),
            vocab_size=1024,
            expert=LlamaShape(width=48, mlp_dim=256, depth=2, **heads),
            joint_layers=(0,),
            horizon=16,
            action_width=action_width,
        ),
        preprocessing=Preprocessing(),
        learning=Learning(value_hidden=(64, 32), train_expert_only=False, freeze_vision_encoder=False),
        flow=FlowSettings(),
    )
