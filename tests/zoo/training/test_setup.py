"""What a run measures before it begins."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import vla_gym
from vla_policies import VLAPolicy
from zoo.cli.run_flags import resolve_new_run
from zoo.config.memory_plan import Rank, needs, total
from zoo.distributed.process_group import ProcessGroup
from zoo.train import parser
from zoo.training.run_plan import RunPlan
from zoo.training.setup import keep_stages_that_pay, splitting_pays, use_memory


@pytest.mark.parametrize(
    ("seconds", "pays"), [(lambda num: 0.004, False), (lambda num: 0.001 * num, True)], ids=["launches", "arithmetic"]
)
def test_environments_are_split_where_half_of_them_decide_faster(
    seconds: Callable[[int], float], pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = VLAPolicy.from_pretrained("nano", backbone_kwargs={"size": "tiny"}, device="cpu")
    assert isinstance(splitting_pays(policy, 2), bool)  # its own observations can be decided on

    now = [0.0]

    def predict(obs: dict[str, np.ndarray], *_: Any) -> None:
        now[0] += seconds(len(obs["state"]))

    monkeypatch.setattr(policy, "predict_with_noise", predict)
    monkeypatch.setattr("zoo.training.setup.time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert splitting_pays(policy, 8) == pays
    with closing(vla_gym.make_vec("Toy-Reach", num_envs=8, pipeline_stages=2)) as envs:
        model: Any = SimpleNamespace(policy=policy, envs=envs, process_group=ProcessGroup())
        keep_stages_that_pay(model)
        assert envs.config.pipeline_stages == (2 if pays else 1)


@pytest.mark.parametrize(("spare", "micro", "recompute"), [(0, 16, False), (-1, 8, False), (-(2**28), 1, True)])
def test_what_a_run_does_not_say_follows_from_free_memory(spare: int, micro: int, recompute: bool) -> None:
    options = {"size": "tiny", "lora": {"rank": 4, "targets": ["q_proj"]}}
    settings = ["chunk:8", "n_steps:2", "batch_size:32", f"policy_kwargs:{{backbone_kwargs: {options}}}"]
    config = resolve_new_run(parser().parse(["--env", "Toy-Reach", "--policy", "openvla-oft", "-params", *settings]))
    plan = RunPlan.resolve(config)
    whole = total(needs(plan.batch, config, plan.num_workers, Rank()), "device")
    policy = VLAPolicy.from_pretrained("openvla-oft", backbone_kwargs=options, device="cpu")
    model: Any = SimpleNamespace(policy=policy, process_group=ProcessGroup(), micro_batch_size=None)
    # 16 decisions, of 4 x 4 patches each, 64 bfloat16 numbers wide, are kept: 32 KiB beside what the plan counts.
    use_memory(model, plan, whole + 16 * 16 * 64 * 2 + spare)
    assert (model.micro_batch_size, policy.backbone.network.recompute) == (micro, recompute)
    assert policy.backbone.kept.max_bytes >= 0
