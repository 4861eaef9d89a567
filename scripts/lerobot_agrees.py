"""Whether lerobot opens a SmolVLA that this project saved, and predicts the same chunk of actions.

    python scripts/lerobot_agrees.py write POLICY FOLDER      here: saves it, observations, noise and our chunk
    python scripts/lerobot_agrees.py read FOLDER              where lerobot is installed: opens it and compares

The two run in environments of their own, as lerobot 0.4.4 wants an older transformers. It ends with exit status 1 where
the chunks differ by more than `TOLERANCE` of an action's range.

transformers 4.55 to 4.57 give every patch in float32 the place before its own. Both figures are printed: lerobot with
places as in training, which must agree, and lerobot as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

TOLERANCE = 1e-5
"""Largest difference, of the largest action."""
TENSORS, TASKS = "expected.safetensors", "tasks.json"
SENTENCES = ("pick up the black bowl and place it on the plate", "open")


def write(policy_name: str, folder: Path) -> None:
    """Save a policy in `folder`/policy, and beside it two observations, noise, and the chunk predicted from them."""
    from vla_gym.observation import encode_instruction
    from vla_policies import VLAPolicy
    from vla_policies.smolvla.model import SmolVLABackbone

    policy = VLAPolicy.from_pretrained(policy_name, device="cpu")
    backbone, conventions = policy.backbone, policy.conventions
    if not isinstance(backbone, SmolVLABackbone):
        raise SystemExit(f"'{policy_name}' is of family '{backbone.family}', not smolvla")
    policy.save_pretrained(folder / "policy")
    config = json.loads((folder / "policy" / "config.json").read_text(encoding="utf-8"))
    vlm = Path(backbone.config.preprocessing.tokenizer)
    if vlm.is_dir() and not Path(config["vlm_model_name"]).is_absolute():
        shutil.copytree(vlm, folder / config["vlm_model_name"], dirs_exist_ok=True)
    generator, count = torch.Generator().manual_seed(0), len(SENTENCES)
    # Of other proportions than the network's square: resizing and padding are compared, too.
    images = {
        camera: torch.randint(0, 256, (count, 48, 80, 3), dtype=torch.uint8, generator=generator)
        for camera in conventions.cameras
    }
    state_BS = torch.randn(count, conventions.state_dim, generator=generator)
    shape = backbone.config.network
    noise_BHD = torch.randn(count, shape.horizon, shape.action_width, generator=generator)
    instruction = torch.stack([torch.from_numpy(encode_instruction(sentence)) for sentence in SENTENCES])
    with torch.no_grad():
        inputs = backbone.prepare({**images, "state": state_BS, "instruction": instruction})
        chain_BJHD = backbone.integrate(inputs, noise_BHD, backbone.flow.num_steps)
        chunk_BHA = backbone.processor.to_robot(chain_BJHD[:, -1])
    images = {f"image{number}": images[camera] for number, camera in enumerate(conventions.cameras)}
    tensors = {**images, "state": state_BS, "noise": noise_BHD, "chunk": chunk_BHA}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / TENSORS)
    (folder / TASKS).write_text(json.dumps(SENTENCES), encoding="utf-8")
    print(f"{folder}: chunks of {tuple(chunk_BHA.shape)}, largest action {chunk_BHA.abs().max():.3g}")


def read(folder: Path) -> int:
    """Open the policy with lerobot and compare; return the exit status."""
    # The VLM's folder may be named by a path from here.
    os.chdir(folder)
    expected = load_file(TENSORS)
    tasks = json.loads(Path(TASKS).read_text(encoding="utf-8"))
    as_it_is = _lerobot_chunk(expected, tasks)
    _places_as_in_training()
    chunk = _lerobot_chunk(expected, tasks)
    largest = float(expected["chunk"].abs().max())
    difference, shifted = (float((got - expected["chunk"]).abs().max()) / largest for got in (chunk, as_it_is))
    print(f"chunks {tuple(chunk.shape)}: largest difference {difference:.2g} of the largest action {largest:.3g}")
    print(f"without integer patch places (a fault of transformers 4.55 to 4.57): {shifted:.2g}")
    return int(not difference <= TOLERANCE)


def _lerobot_chunk(expected: dict[str, Tensor], tasks: list[str]) -> Tensor:
    """The chunk that lerobot predicts, in the units of the data."""
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.policies.factory import make_pre_post_processors
    from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy

    config = PreTrainedConfig.from_pretrained("policy")
    config.device = "cpu"
    policy = SmolVLAPolicy.from_pretrained("policy", config=config).float().eval()
    before, after = make_pre_post_processors(config, pretrained_path="policy")
    cameras = [name for name in config.image_features if "empty_camera" not in name]
    images = [expected[name] for name in sorted(expected) if name.startswith("image")]
    batch = {
        camera: image_BHWC.permute(0, 3, 1, 2).float() / 255.0
        for camera, image_BHWC in zip(cameras, images, strict=False)
    }
    batch = before({**batch, "observation.state": expected["state"], "task": tasks})
    with torch.no_grad():
        chunk: Tensor = after(policy.predict_action_chunk(batch, noise=expected["noise"].clone()))
    return chunk


def _places_as_in_training() -> None:
    """Give patches the places 0, 1, 2, ... row by row, which the weights were trained with."""
    from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionEmbeddings

    def forward(self: SmolVLMVisionEmbeddings, pixel_values: Tensor, patch_attention_mask: Tensor) -> Tensor:
        patches: Tensor = self.patch_embedding(pixel_values).flatten(2).transpose(1, 2)
        return patches + self.position_embedding(torch.arange(patches.shape[1]))

    SmolVLMVisionEmbeddings.forward = forward


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    writer = commands.add_parser("write", help="save a policy and what it predicts")
    writer.add_argument("policy", help="folder or Hub id")
    writer.add_argument("folder", type=Path, help="where to")
    commands.add_parser("read", help="open it with lerobot").add_argument("folder", type=Path, help="of `write`")
    args = parser.parse_args()
    if args.command == "read":
        return read(args.folder)
    args.folder.mkdir(parents=True, exist_ok=True)
    write(args.policy, args.folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
