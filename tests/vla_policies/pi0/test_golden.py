"""Every tensor of the golden fixtures, in the order in which an implementation goes wrong."""

import pytest
import torch
from torch import Tensor

from vla_policies.actions.flow import flow_times, step_mean, time_embedding
from vla_policies.modules.streams import Prefix
from vla_policies.pi0.processor import resize_with_pad

from .conftest import Golden

# Features and states are held to 2e-5, what is integrated from them to 1e-4.
CLOSE, INTEGRATED = 2e-5, 1e-4


@pytest.fixture(scope="module")
def prefix(golden: Golden) -> tuple[Tensor, Prefix]:
    """Embedded prefix and what the layers made of it, all three cameras, absent ones masked."""
    tensors, vlm = golden.tensors, golden.backbone.network.vlm
    with torch.no_grad():
        x_BLW, mask_BL = vlm.embed(
            tensors["pixel_values"], tensors["image_masks"], tensors["tokens"], tensors["token_mask"]
        )
        return x_BLW, vlm(x_BLW, mask_BL, with_hidden=True)


def assert_close(got: Tensor, expected: Tensor, atol: float) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


def test_pixels_are_exact(golden: Golden) -> None:
    image_BHWC = golden.tensors["images_uint8"][:, 0]
    got = golden.backbone.processor.pixels(image_BHWC, "image")
    assert torch.equal(got, golden.tensors["pixel_values"][:, 0])


def test_resize_with_pad_is_exact(golden: Golden) -> None:
    image_BCHW = golden.tensors["resize.input_uint8"].permute(2, 0, 1)[None]
    got = resize_with_pad(image_BCHW.float() / 255.0 * 2.0 - 1.0, 56)[0].permute(1, 2, 0)
    assert_close(got, golden.tensors["resize.out_float"], 1e-6)


@torch.no_grad()
def test_image_features(golden: Golden) -> None:
    got = golden.backbone.network.vlm.image_tokens(golden.tensors["pixel_values"][:, 0])
    assert_close(got, golden.tensors["image_features_cam0"], CLOSE)


def test_prefix_embeddings(golden: Golden, prefix: tuple[Tensor, Prefix]) -> None:
    assert_close(prefix[0], golden.tensors["prefix_embs"], CLOSE)
    assert torch.equal(prefix[1].mask_BL, golden.tensors["prefix_pad_mask"])


def test_prefix_hidden_states_and_cache(golden: Golden, prefix: tuple[Tensor, Prefix]) -> None:
    read = prefix[1]
    real_BL = golden.tensors["prefix_pad_mask"]
    assert read.hidden_BLW is not None
    assert_close(read.hidden_BLW[real_BL], golden.tensors["prefix_hidden"][real_BL], CLOSE)
    for name, layer in (("kv0", read.layers[0]), ("kvlast", read.layers[-1])):
        for part, got in (("key", layer.key_BCLF), ("value", layer.value_BCLF)):
            assert_close(got[:, 0][real_BL], golden.tensors[f"{name}.{part}"][:, 0][real_BL], CLOSE)


@torch.no_grad()
def test_suffix_at_the_first_step(golden: Golden) -> None:
    tensors = golden.tensors
    got, condition = golden.backbone.network.embed_suffix(tensors["noise"], torch.ones(3), tensors.get("state"))
    assert_close(got, tensors["suffix_embs_t1"], CLOSE)
    if "adarms_cond_t1" in tensors:
        assert condition is not None
        assert_close(condition, tensors["adarms_cond_t1"], CLOSE)
    else:
        assert condition is None


@torch.no_grad()
def test_every_denoising_step_from_the_given_state(golden: Golden, prefix: tuple[Tensor, Prefix]) -> None:
    tensors, network = golden.tensors, golden.backbone.network
    for step, time in enumerate(flow_times(10)[:-1].tolist()):
        hidden = network.hidden(prefix[1], tensors["x_t"][:, step], torch.full((3,), time), tensors.get("state"))
        assert_close(network.velocity(hidden, 50), tensors["v_t"][:, step], INTEGRATED)


@torch.no_grad()
@pytest.mark.parametrize(("num_steps", "name"), [(10, "actions"), (4, "actions_4steps")])
def test_actions_from_the_given_noise(golden: Golden, prefix: tuple[Tensor, Prefix], num_steps: int, name: str) -> None:
    tensors, network = golden.tensors, golden.backbone.network
    x_BHD = tensors["noise"]
    for step, time in enumerate(flow_times(num_steps)[:-1].tolist()):
        if num_steps == 10:
            assert_close(x_BHD, tensors["x_t"][:, step], INTEGRATED)
        time_B = torch.full((3,), time)
        hidden = network.hidden(prefix[1], x_BHD, time_B, tensors.get("state"))
        x_BHD = step_mean(x_BHD, network.velocity(hidden, 50), time_B, 1.0 / num_steps)
    assert_close(x_BHD, tensors[name], INTEGRATED)


@torch.no_grad()
@pytest.mark.parametrize(("samples", "cameras"), [((0, 1), 2), ((2,), 3)])
def test_an_absent_camera_equals_a_masked_one(golden: Golden, samples: tuple[int, ...], cameras: int) -> None:
    inputs = golden.rows(*samples, cameras=cameras)
    index = list(samples)
    chain = golden.backbone.integrate(inputs, golden.tensors["noise"][index], 10)
    assert_close(chain[:, :10], golden.tensors["x_t"][index], INTEGRATED)
    assert_close(chain[:, -1], golden.tensors["actions"][index], INTEGRATED)


@torch.no_grad()
def test_flow_matching_loss(golden: Golden, prefix: tuple[Tensor, Prefix]) -> None:
    tensors = golden.tensors
    time_B = tensors["train.time"]
    width = golden.backbone.config.network.expert.width
    assert_close(time_embedding(time_B, width), tensors["train.time_embedding_f64"], 1e-12)
    # Sample 2 has all three cameras; the network's own path through `matching_loss` needs no mask.
    inputs = golden.rows(2, cameras=3)
    got = golden.backbone.matching_loss(inputs, tensors["train.actions"][2:], tensors["noise"][2:], time_B[2:])
    assert_close(got, tensors["train.loss_elementwise"][2:], INTEGRATED)
    noisy = time_B[:, None, None] * tensors["noise"] + (1 - time_B[:, None, None]) * tensors["train.actions"]
    network = golden.backbone.network
    velocity = network.velocity(network.hidden(prefix[1], noisy, time_B, tensors.get("state")), 50)
    loss = (velocity - (tensors["noise"] - tensors["train.actions"])).square()
    assert_close(loss, tensors["train.loss_elementwise"], INTEGRATED)
