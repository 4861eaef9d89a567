"""Our ManiSkill against the bare simulator and the usual adapter: `python -m benchmarks.maniskill`.

Each side plays the same task on as many processes as cores, one slot each, ours 8 environments each:

    ours        `vla_gym.make_vec`, 8 actions per decision, one image per decision
    bare        ManiSkill's environment in a loop: controller and physics of every step, as many images as ours,
                and nothing else (no success, no reward, no observation, no processes that talk)
    usual       `gymnasium.make` with `obs_mode="rgb"` in `AsyncVectorEnv`: an image, state and reward every step
    one core    ours with all its processes on a single core, for the scaling over cores

Sides run in turn, each in processes of its own, so a drift of the machine's speed hits all of them; medians and
ratios are printed. Episodes last as long as the measurement, so no reset falls into it. The first image of a
process is left out as well: with upstream's own shaders and no GPU it takes seven seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from typing import Any

from benchmarks.harness import (
    CHUNK,
    ENVS_PER_WORKER,
    Figures,
    actions,
    in_turn,
    measure_bare_slots,
    measure_side,
    play,
    print_sides,
    seconds,
    stay_on_one_core,
    step_by_step,
    wall_and_cpu,
)
from vla_gym.adapters.maniskill.tasks import CONTROL_MODE, TASKS, maniskill_benchmark

DIMS = 7
ENDLESS = 1_000_000


def upstream_options(size: int) -> dict[str, Any]:
    """Keyword arguments of `gymnasium.make` that both upstream sides share."""
    from vla_gym.adapters.maniskill.simulator import backends
    from vla_gym.system.vulkan import sapien_device

    return {
        "num_envs": 1,
        "control_mode": CONTROL_MODE,
        "sim_backend": "physx_cpu",
        "render_backend": backends("physx_cpu", sapien_device(os.environ))[1],
        "sensor_configs": {"width": size, "height": size},
        "max_episode_steps": ENDLESS,
        "disable_env_checker": True,
    }


def measure_ours(task: str, decisions: int, slots: int, size: int) -> Figures:
    """Rate of all environments, seconds until the first observation, seconds per reset of one, memory of a worker."""
    import vla_gym

    num_envs = slots * ENVS_PER_WORKER
    benchmark = maniskill_benchmark(f"ManiSkill/{task}")
    endless = tuple(dataclasses.replace(one, horizon=ENDLESS) for one in benchmark.tasks)
    start = time.perf_counter()
    envs = vla_gym.make_vec(
        dataclasses.replace(benchmark, tasks=endless),
        num_envs=num_envs,
        chunk=CHUNK,
        image_size=size,
        num_workers=slots,
        autoreset_mode="disabled",
    )
    envs.reset()
    begin = time.perf_counter() - start
    resets = [seconds(envs.reset) for _ in range(5)]
    played = play(envs, actions(decisions, num_envs, DIMS))
    return {**played, "begin s": begin, "reset s": statistics.median(resets) / ENVS_PER_WORKER}


def measure_bare(task: str, decisions: int, slots: int, size: int) -> Figures:
    """See `run_bare_slot`."""
    return measure_bare_slots("maniskill", decisions, slots, ["--task", task, "--size", size])


def run_bare_slot(task: str, slot: int, decisions: int, size: int) -> None:
    """Controller, physics and images of one slot with nothing around them; prints `wall_and_cpu`."""
    import gymnasium
    import mani_skill.envs  # noqa: F401  registers its ids

    options = upstream_options(size)
    made: Any = gymnasium.make(f"{task}-v1", obs_mode="none", reward_mode="none", **options)
    env = made.unwrapped
    env.reset(seed=[0])
    camera = env._sensors["base_camera"].camera

    def render() -> None:
        env.scene.update_render(update_sensors=True, update_human_render_cameras=False)
        camera.take_picture()
        camera.get_picture(["Color"])[0].numpy()

    render()
    chosen = actions(decisions, slot + 1, DIMS)[:, slot]

    def play_all() -> None:
        for action_KA in chosen:
            for action_A in action_KA:
                env._step_action(action_A[None])
            render()

    print(json.dumps(wall_and_cpu(play_all)))


def measure_usual(task: str, decisions: int, slots: int, size: int) -> Figures:
    """Rate and memory of what most projects build from Gymnasium's and ManiSkill's parts."""
    import gymnasium

    options = upstream_options(size)

    def build() -> gymnasium.Env[Any, Any]:
        import mani_skill.envs  # noqa: F401  registers its ids
        from mani_skill.utils.wrappers.gymnasium import CPUGymWrapper

        return CPUGymWrapper(gymnasium.make(f"{task}-v1", obs_mode="rgb", **options))

    envs = gymnasium.vector.AsyncVectorEnv([build] * slots, context="spawn")
    envs.reset(seed=0)
    return step_by_step(envs, actions(decisions, slots, DIMS), resets=5)


def measure_one_core(task: str, decisions: int, slots: int, size: int) -> Figures:
    """Ours, this process and its workers together on one core."""
    stay_on_one_core()
    return measure_ours(task, decisions, slots, size)


SIDES = {"ours": measure_ours, "bare": measure_bare, "usual": measure_usual, "one core": measure_one_core}


def compare(args: argparse.Namespace) -> None:
    """Alternate the sides, print medians and ratios."""
    benchmark, options = maniskill_benchmark(f"ManiSkill/{args.task}"), ["--task", args.task, "--size", args.size]

    def run_side(side: str) -> Figures:
        return measure_side("maniskill", side, benchmark, args.decisions, args.slots, options)

    median = in_turn(list(SIDES), args.rounds, run_side)
    print(f"ManiSkill {args.task}, {args.size} px, {args.slots} slots, {args.rounds} rounds")
    print_sides(median)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=tuple(TASKS), default="PickCube")
    parser.add_argument("--decisions", type=int, default=25, help="measured per environment and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=os.cpu_count())
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--side", choices=tuple(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--bare-slot", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bare_slot is not None:
        run_bare_slot(args.task, args.bare_slot, args.decisions, args.size)
    elif args.side:
        print(json.dumps(SIDES[args.side](args.task, args.decisions, args.slots, args.size)))
    else:
        compare(args)


if __name__ == "__main__":
    main()
