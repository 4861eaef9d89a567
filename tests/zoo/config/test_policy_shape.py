"""Which network a run is planned with."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.zoo.stand_ins import toy_config
from vla_gym.errors import BadValue
from vla_policies import VLAPolicy
from zoo.config.policy_shape import check_network, check_quantization, policy_footprint
from zoo.config.run_config import RunConfig


def run(policy: str, **kwargs: object) -> RunConfig:
    return toy_config(policy=policy, env_options={"chunk": 4}, policy_kwargs=kwargs)


def test_a_published_checkpoint_has_its_familys_network_and_an_unknown_one_none():
    options = {"size": "tiny", "lora": {"rank": 8}}
    known = policy_footprint(run("org/model", family="openvla-oft", backbone_kwargs=options))
    assert known is policy_footprint(run("openvla-oft", backbone_kwargs=options))
    assert policy_footprint(run("org/model")) is None


def test_quantised_weights_that_would_train_are_refused_early():
    with pytest.raises(BadValue, match="all of them train; add an adapter: -params 'policy_kwargs:"):
        check_quantization(run("openvla-oft", backbone_kwargs={"quantization": "nf4"}), sharded=False)
    adapted = run("openvla-oft", backbone_kwargs={"quantization": "nf4", "lora": {"rank": 4}})
    check_quantization(adapted, sharded=False)
    onto_adapter = run("org/adapter", family="openvla-oft", base="org/model", backbone_kwargs={"quantization": "nf4"})
    check_quantization(onto_adapter, sharded=False)
    with pytest.raises(BadValue, match="FSDP2 shards weights that train"):
        check_quantization(adapted, sharded=True)


@pytest.mark.parametrize("family", ["smolvla", "pi0", "nano"])
def test_families_that_cannot_quantise_say_who_can(family: str):
    options = {"quantization": "int8", "lora": {"rank": 4}}
    for config in (run(family, backbone_kwargs=options), run("org/model", family=family, backbone_kwargs=options)):
        with pytest.raises(
            BadValue, match=f"is not for family '{family}', only for openvla, openvla-oft: leave it out"
        ):
            check_quantization(config, sharded=False)


@pytest.mark.parametrize("options", [{}, {"lora": {"rank": 4}}])
def test_a_folder_here_is_planned_as_it_is(tmp_path: Path, options: dict[str, object]):
    policy = VLAPolicy.from_pretrained("openvla-oft", backbone_kwargs={"size": "tiny"}, device="cpu")
    policy.save_pretrained(tmp_path / "base")
    folder = tmp_path / "base"
    if options:
        adapted = VLAPolicy.from_pretrained(folder, backbone_kwargs=options, device="cpu")
        adapted.save_adapter(tmp_path / "adapter")
        policy, folder = adapted, tmp_path / "adapter"
    counted = policy_footprint(run(str(folder)))
    assert counted is not None
    assert counted.num_trained == sum(p.numel() for p in policy.parameters() if p.requires_grad)


STEPS = {"reward_level": "action", "value_level": "action", "logprob_level": "action"}


@pytest.mark.parametrize(
    ("policy", "options", "settings", "says"),
    [
        ("nano", {}, {"kl_coef": 0.1}, "no LoRA adapter to switch off"),
        ("nano", {}, {"kl_coef": 0.1, "kl_reference": "copy"}, None),
        ("openvla-oft", {"lora": {"rank": 4}}, {"kl_coef": 0.1}, None),
        ("org/adapter", {}, {"kl_coef": 0.1}, None),
        ("nano", {}, STEPS, r"lacks\..*\(chunk 4\)"),
        ("openvla-oft", {"value_outputs": 4}, STEPS, None),
    ],
)
def test_settings_that_the_network_cannot_meet_are_refused_early(
    policy: str, options: dict[str, object], settings: dict[str, object], says: str | None
):
    config = dataclasses.replace(run(policy, backbone_kwargs=options), algo_kwargs=settings)
    if says is None:
        return check_network(config)
    with pytest.raises(BadValue, match=says):
        check_network(config)
    return None
