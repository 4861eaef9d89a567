"""The heads of OpenVLA-OFT's own fine-tunes: continuous actions by regression, proprioception as one token."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

NUM_BLOCKS = 2


class ResidualBlock(nn.Module):
    """x + ReLU(Linear(LayerNorm(x)))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ffn = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.ffn(x)


class ResidualMLP(nn.Module):
    """LayerNorm, Linear, ReLU, two residual blocks, LayerNorm, Linear."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(inputs)
        self.fc1 = nn.Linear(inputs, width)
        self.mlp_resnet_blocks = nn.ModuleList(ResidualBlock(width) for _ in range(NUM_BLOCKS))
        self.layer_norm2 = nn.LayerNorm(width)
        self.fc2 = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """`[..., inputs]` to `[..., outputs]`."""
        x = functional.relu(self.fc1(self.layer_norm1(x)))
        for block in self.mlp_resnet_blocks:
            x = block(x)
        return self.fc2(self.layer_norm2(x))


class RegressionHead(nn.Module):
    """Hidden states of one chunk step's A slots to A numbers in about [-1, 1] (trained with the L1 loss)."""

    def __init__(self, width: int, action_dim: int) -> None:
        super().__init__()
        self.action_dim = action_dim
        self.model = ResidualMLP(action_dim * width, width, action_dim)

    def forward(self, hidden_BSD: Tensor) -> Tensor:
        """Hidden states of S = K * A slots `[B, S, D]` to numbers `[B, K, A]`."""
        hidden = hidden_BSD.to(self.model.fc1.weight.dtype)
        return self.model(hidden.unflatten(1, (-1, self.action_dim)).flatten(2))


class ProprioProjector(nn.Module):
    """The normalised state to one token."""

    def __init__(self, state_dim: int, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(state_dim, width)
        self.fc2 = nn.Linear(width, width)

    def forward(self, state_BS: Tensor) -> Tensor:
        """`[B, S]` to `[B, D]`, exact GELU between."""
        return self.fc2(functional.gelu(self.fc1(state_BS.to(self.fc1.weight.dtype))))
