"""Memory estimates against what is really allocated, and against sums by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.zoo.stand_ins import toy_config
from vla_gym import VLAVectorEnv, make_vec
from vla_gym.errors import BadValue
from vla_gym.registry import find_benchmark
from vla_policies import VLAPolicy
from zoo import PPO
from zoo.config.batch_plan import solve
from zoo.config.memory_plan import (
    GIB,
    Need,
    Rank,
    check_quantization,
    drawing_needs,
    evaluation_needs,
    fastest_fit,
    needs,
    policy_footprint,
    policy_needs,
    rollout_needs,
    simulator_needs,
    total,
)
from zoo.config.run_config import RunConfig
from zoo.off_policy.qc import QC
from zoo.off_policy.recap import RECAP
from zoo.off_policy.replay import Replay

TOY = toy_config(
    n_timesteps=1000,
    num_envs=4,
    env_options={"chunk": 4, "image_size": 32},
    policy_kwargs={"backbone_kwargs": {"size": "tiny"}},
    algo_kwargs={"n_steps": 3, "batch_size": 12, "n_epochs": 1},
)


@pytest.fixture
def envs() -> Iterator[VLAVectorEnv]:
    made = make_vec("Toy-Reach", 4, chunk=4, image_size=32, seed=0)
    yield made
    made.close()


def test_the_rollout_buffer_and_the_policy_are_as_large_as_estimated(envs: VLAVectorEnv):
    model = PPO(
        "VLAPolicy",
        envs,
        **TOY.algo_kwargs,
        seed=0,
        policy_kwargs={"backbone": "nano", "backbone_kwargs": {"size": "tiny"}},
    )
    model.learn(1)
    buffer = model.chunk_buffer
    plan, benchmark = solve(TOY), TOY.benchmark
    held = [one for one in vars(buffer).values() if isinstance(one, torch.Tensor)]
    held += [*buffer.obs.values(), *buffer.record.values()]
    real = sum(one.numel() * one.element_size() for one in held)
    assert total(rollout_needs(plan, TOY, benchmark), "host") == pytest.approx(real, rel=0.01)
    parameters = sum(one.numel() for one in model.policy.parameters())
    buffers = sum(one.nbytes for one in model.policy.buffers())
    assert total(policy_needs(plan, TOY, Rank(passes=False)), "device") == 16 * parameters + buffers


def test_grpo_that_resamples_holds_one_round_more():
    def held(**algo_kwargs: object) -> int:
        options = {"chunk": 4, "image_size": 32, "group_size": 2}
        kwargs = {"rollouts_per_update": 3, "batch_size": 12, **algo_kwargs}
        config = replace(TOY, algo="grpo", env_options=options, algo_kwargs=kwargs)
        return total(rollout_needs(solve(config), config, config.benchmark), "host")

    # Three rounds are kept; a fourth is where new groups are tried.
    assert 3 * held(resample_dead_groups=2) == 4 * held()


@pytest.mark.parametrize(
    ("episodes", "rounds", "ranks", "needed"),
    [
        (100, 1, 1, "8 simulators of evaluations in 2 workers"),
        (3, 2, 1, "6 simulators of evaluations in 2 workers"),
        (1, 1, 1, "1 simulators of evaluations in 1 workers"),
        (3, 1, 2, "2 simulators of evaluations in 2 workers"),  # of four on each rank
        (0, 1, 1, None),
    ],
)
def test_evaluations_have_simulators_of_their_own(episodes: int, rounds: int, ranks: int, needed: str | None) -> None:
    config = toy_config(
        env="LIBERO-130",
        num_envs=8,
        eval_episodes=episodes,
        env_options={"chunk": 8},
        eval_options={"eval_env": "LIBERO-Spatial", "eval_rounds": rounds},
    )
    lines = evaluation_needs(solve(config, num_ranks=ranks), config, 2)
    assert [line.what for line in lines] == ([needed] if needed else [])
    # They stay while the run trains on, so both are counted.
    assert all(line in needs(solve(config, num_ranks=ranks), config, 2, Rank(passes=False)) for line in lines)


@pytest.mark.parametrize(
    ("env", "held"),
    [
        ("LIBERO-Object", 1.2e9 + 9 * 0.07e9 + 39 * 0.01e9),  # ten tasks, each with its model
        ("LIBERO-Spatial", 1.2e9 + 3 * 0.07e9 + 39 * 0.01e9),  # ten tasks of four models
        ("LIBERO-130", 1.2e9 + 34 * 0.07e9 + 39 * 0.01e9),  # 130 tasks of 35 models
        ("LIBERO-Goal-PRO-swap", 1.2e9 + 9 * 0.07e9 + 39 * 0.01e9),  # models not counted: one for each task
    ],
)
def test_slots_that_play_the_same_model_share_it(env: str, held: float) -> None:
    options = {"chunk": 8}
    config = toy_config(env=env, num_envs=40, env_options=options)
    (need,) = simulator_needs(config.benchmark, 40, 1)
    assert need.size == round(held)


@pytest.mark.parametrize(
    ("env", "held"),
    [
        ("LIBERO-Goal", 0.45e9),
        ("LIBERO-Spatial", 0.45e9 + 3 * 0.09e9),
        ("LIBERO-130", 1.6e9),  # its 35 models share most textures
        ("LIBERO-130/3", 0.45e9),  # one task has one model
        ("MetaWorld-MT50", 0.3e9),
    ],
)
def test_textures_and_meshes_of_each_process_that_renders_are_on_the_card(env: str, held: float) -> None:
    (need,) = drawing_needs(find_benchmark(env), 4)
    assert (need.where, need.size) == ("device", round(4 * held))


def oft(**options: object) -> RunConfig:
    return toy_config(
        env="LIBERO-Spatial",
        policy="openvla-oft",
        num_envs=8,
        env_options={"chunk": 8},
        policy_kwargs={"backbone_kwargs": {"size": "tiny", **options}},
        algo_kwargs={"n_steps": 4, "batch_size": 16},
    )


LORA = {"lora": {"rank": 4}}


def named(lines: list[Need]) -> dict[str, int]:
    return {line.what.split(":")[0].split(",")[0]: line.size for line in lines}


def test_what_learns_is_counted_where_it_learns():
    config = oft(**LORA)
    plan = solve(config, num_ranks=4)
    sizes = named(policy_needs(plan, config, Rank(passes=False)))
    deciding = named(policy_needs(plan, config, Rank(roles=frozenset({"rollout"}), passes=False)))
    replicated = named(policy_needs(plan, config, Rank(num_learners=4, passes=False)))
    assert sizes["Adam's two moments"] == 2 * sizes["gradients"] == 2 * sizes["weights"]
    assert "gradients" not in deciding
    assert replicated["gradients on their way to other ranks (DDP)"] == sizes["gradients"]
    assert policy_needs(plan, config, Rank(roles=frozenset({"env"}))) == []


def test_shards_are_float32_masters_gradients_and_moments():
    config = oft()
    plan = solve(config, num_ranks=4)
    (line,) = (
        line
        for line in policy_needs(plan, config, Rank(num_learners=4, sharded=True, passes=False))
        if line.what.startswith("shard of masters")
    )
    trained = next(
        line for line in policy_needs(plan, config, Rank(passes=False)) if line.what.startswith("weights, trained")
    )
    # 16 bits while acting; 4 numbers of 32 bits for each while learning, a quarter of them here.
    count = int(trained.what.split(":")[1].split()[0].replace(",", ""))
    assert line.size == -(-count * 16 // 4)


@pytest.mark.parametrize(("algo", "lora"), [("ppo", {}), ("grpo", LORA)])
def test_a_reference_that_is_copied_takes_what_trains_once_more(algo: str, lora: dict[str, object]):
    def sizes(**settings: object) -> dict[str, int]:
        own = {"ppo": {"n_steps": 4}, "grpo": {}}[algo]
        options = {"chunk": 8, "group_size": {"ppo": 1, "grpo": 8}[algo]}
        kwargs = {"batch_size": 16, **own, **settings}
        config = replace(oft(**lora), algo=algo, env_options=options, algo_kwargs=kwargs)
        return named(policy_needs(solve(config), config, Rank(passes=False)))

    copied, name = sizes(kl_coef=0.1, kl_reference="copy"), "the reference policy's own weights"
    assert copied[name] == copied["gradients"]
    assert name not in sizes()
    assert name not in sizes(kl_coef=0.1)


def test_the_networks_that_judge_are_counted_as_they_are_built(envs: VLAVectorEnv) -> None:
    kwargs = {"backbone": "nano", "backbone_kwargs": {"size": "tiny"}}
    built = (
        QC("VLAPolicy", envs, seed=0, num_critics=3, policy_kwargs=kwargs),
        RECAP("VLAPolicy", envs, seed=0, policy_kwargs=kwargs),
    )
    critics, values = (sum(p.numel() for p in network.parameters()) for network in (built[0].critic, built[1].values))

    def sizes(algo: str, **own: object) -> dict[str, int]:
        config = replace(TOY, algo=algo, algo_kwargs={"n_steps": 3, "batch_size": 12, **own})
        return named(policy_needs(solve(config), config, Rank(passes=False)))

    # float32: a critic, its target, its gradient and two moments; a value function has no target.
    assert sizes("qc", num_critics=3)["critics"] == 5 * 4 * critics
    assert sizes("recap")["value function"] == 4 * 4 * values


def test_a_policy_that_is_steered_alone_needs_no_gradients() -> None:
    def sizes(imitate: str) -> dict[str, int]:
        kwargs = {"n_steps": 4, "batch_size": 16, "imitate": imitate}
        config = replace(oft(), algo="qc", algo_kwargs=kwargs)
        return named(policy_needs(solve(config), config, Rank()))

    learns, frozen = sizes("all"), sizes("none")
    assert {"gradients", "Adam's two moments"} <= learns.keys()
    assert not {"gradients", "Adam's two moments"} & frozen.keys()
    assert frozen["at the peak"] < learns["at the peak"]


def test_passes_honour_recomputing():
    def passes(**options: object) -> int:
        config = oft(**LORA, **options)
        return total(policy_needs(solve(config), config, Rank()), "device")

    assert passes(recompute=True) < passes(recompute=False)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("openvla-oft", {"lora": {"rank": 2, "targets": ["q_proj"]}}),
        pytest.param("pi0", {}, marks=pytest.mark.thorough),
        pytest.param("smolvla", {"train_expert_only": True}, marks=pytest.mark.thorough),
    ],
)
def test_kept_features_are_counted_at_their_most(family: str, options: dict[str, object]):
    def kept(**more: object) -> int | None:
        kwargs = {"backbone_kwargs": {"size": "tiny", **options, **more}}
        config = replace(TOY, policy=family, policy_kwargs=kwargs)
        return named(policy_needs(solve(config), config, Rank(passes=False))).get("kept features")

    assert kept(cache_features=1.5) == 1.5 * GIB
    assert kept() is None


def test_the_fastest_settings_that_fit_are_taken():
    config = oft(**LORA)
    plan = solve(config)
    whole = total(needs(plan, config, 0), "device")
    best = fastest_fit(plan, config, 0, Rank(), whole)
    assert best is not None
    assert (best.micro_batch_size, best.options, best.size) == (16, {"recompute": False}, whole)
    smaller = fastest_fit(plan, config, 0, Rank(), whole - 1)
    assert smaller is not None
    assert (smaller.micro_batch_size, smaller.options) == (8, {"recompute": False})
    assert fastest_fit(plan, config, 0, Rank(), GIB) is None


def run(policy: str, **kwargs: object) -> RunConfig:
    return toy_config(policy=policy, env_options={"chunk": 4}, policy_kwargs=kwargs)


def test_a_published_checkpoint_has_its_familys_network_and_an_unknown_one_none():
    options = {"size": "tiny", "lora": {"rank": 8}}
    known = policy_footprint(run("org/model", family="openvla-oft", backbone_kwargs=options))
    assert known is policy_footprint(run("openvla-oft", backbone_kwargs=options))
    assert policy_footprint(run("org/model")) is None


def test_quantised_weights_that_would_train_are_refused_early():
    with pytest.raises(BadValue, match="quantization: nf4"):
        check_quantization(run("openvla-oft", backbone_kwargs={"quantization": "nf4"}))
    check_quantization(run("openvla-oft", backbone_kwargs={"quantization": "nf4", "lora": {"rank": 4}}))
    check_quantization(run("org/adapter", base="org/model", backbone_kwargs={"quantization": "nf4"}))


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


def test_a_replay_lies_on_the_disk() -> None:
    config = toy_config(algo="qc", n_timesteps=10_000, num_envs=2, env_options={"chunk": 4})
    (need,) = rollout_needs(solve(config), config, config.benchmark)
    # 2,500 decisions: an image of 32 x 32 x 3, two numbers of state, the sentence, 4 x 2 actions, 4 rewards, the rest.
    assert (need.where, need.size) == ("disk", 2_500 * (3_072 + 8 + 352 + 4 * 8 + 4 * 4 + 35))
    replay = Replay(config.observation_layout, num_envs=2, chunk=4, action_dim=2, capacity=10)
    assert sum(column[0].nbytes for column in replay.columns.values()) == need.size / 2_500
