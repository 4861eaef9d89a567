"""Our Meta-World against the bare simulator and the usual adapter: `python -m benchmarks.metaworld`.

Each side plays the same tasks on as many processes as cores, one slot each, ours 8 environments each:

    ours        `vla_gym.make_vec`, 8 actions per decision, one image per decision
    bare        `mj_step` in a loop without rewards, observations or processes that talk; the same images
    usual       `gymnasium.make` with `AddRenderObservation` in `AsyncVectorEnv`: an image every step
    one core    ours with all its processes on a single core, for the scaling over cores

Sides run in turn, each in processes of its own, so a drift of the machine's speed hits all of them; medians and
ratios are printed. The time of a step depends on the task little, on the image much: see `--quality`, `--size`.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
from typing import Any

import numpy as np

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
from vla_gym.adapters.metaworld.tasks import metaworld_benchmark

TASKS = ("pick-place", "door-open")
"""Played by the slots in turn: one with a costly reward, one with a cheap one."""
DIMS = 4
PROTOCOL = "lerobot"
"""Episodes of 500 steps: no reset falls into the measured time."""


def measure_ours(decisions: int, slots: int, size: int, quality: str) -> Figures:
    """Rates of all environments, seconds per reset of one on the same task and on another, memory of a worker."""
    import vla_gym

    num_envs = slots * ENVS_PER_WORKER
    options: dict[str, Any] = {"protocol": PROTOCOL, "render_quality": quality}
    envs = vla_gym.make_vec(
        "MetaWorld-MT50",
        num_envs=num_envs,
        chunk=CHUNK,
        image_size=size,
        num_workers=slots,
        autoreset_mode="disabled",
        **options,
    )
    names = [task.name for task in envs.benchmark.tasks]
    ids = np.array([names.index(TASKS[env % len(TASKS)]) for env in range(num_envs)])

    def restart(task_id: np.ndarray, trial: int) -> None:
        everyone = np.ones(num_envs, dtype=bool)
        trials = np.full(num_envs, trial)
        envs.reset(options={"reset_mask": everyone, "task_id": task_id, "trial_id": trials})

    restart(ids, 0)
    switch = [seconds(functools.partial(restart, (ids + away) % len(names), 0)) for away in (3, 4, 5)]
    restart(ids, 0)
    same = [seconds(functools.partial(restart, ids, trial)) for trial in (1, 2, 0)]
    played = play(envs, actions(decisions, num_envs, DIMS))
    each = {"reset s": statistics.median(same), "switch s": statistics.median(switch)}
    return {**played, **{name: took / ENVS_PER_WORKER for name, took in each.items()}}


def measure_bare(decisions: int, slots: int, size: int, quality: str) -> Figures:
    """See `run_bare_slot`."""
    return measure_bare_slots("metaworld", decisions, slots, ["--size", size, "--quality", quality])


def run_bare_slot(slot: int, decisions: int, size: int, quality: str) -> None:
    """Physics and images of one slot with nothing around them; prints `wall_and_cpu`."""
    import metaworld
    import mujoco

    task = f"{TASKS[slot % len(TASKS)]}-v3"
    benchmark = metaworld.MT1(task, seed=42)
    env = benchmark.train_classes[task]()
    env.set_task(benchmark.train_tasks[0])
    env.reset()
    model, data = env.model, env.data
    renderer = mujoco.Renderer(model, size, size)
    if quality == "fast":
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
    renderer.update_scene(data, "corner4")
    renderer.render()
    chosen = actions(decisions, slot + 1, DIMS)[:, slot]

    def play_all() -> None:
        for action_KA in chosen:
            for action in action_KA:
                env.set_xyz_action(action[:3])
                data.ctrl[:] = action[3], -action[3]
                mujoco.mj_step(model, data, nstep=env.frame_skip)
            mujoco.mj_forward(model, data)
            renderer.update_scene(data, "corner4")
            renderer.render()

    print(json.dumps(wall_and_cpu(play_all)))
    renderer.close()


def measure_usual(decisions: int, slots: int, size: int, quality: str) -> Figures:
    """Rates and memory of what most projects build from Gymnasium's parts; it has full images only."""
    import gymnasium
    from gymnasium.wrappers import AddRenderObservation

    if quality != "full":
        raise ValueError(f"the usual adapter has full images only, got {quality}")

    def build(slot: int) -> gymnasium.Env[Any, Any]:
        import metaworld  # noqa: F401  registers its ids

        task = f"{TASKS[slot % len(TASKS)]}-v3"
        images: dict[str, Any] = {"render_mode": "rgb_array", "camera_name": "corner4", "width": size, "height": size}
        env = gymnasium.make("Meta-World/MT1", env_name=task, seed=42, disable_env_checker=True, **images)
        return AddRenderObservation(env, render_only=True)

    # Forked workers hang: the parent has rendered an image, and the threads of its software renderer are not copied.
    envs = gymnasium.vector.AsyncVectorEnv([functools.partial(build, slot) for slot in range(slots)], context="spawn")
    envs.reset()
    return step_by_step(envs, actions(decisions, slots, DIMS), resets=2)


def measure_one_core(decisions: int, slots: int, size: int, quality: str) -> Figures:
    """Ours, this process and its workers together on one core."""
    stay_on_one_core()
    return measure_ours(decisions, slots, size, quality)


SIDES = {"ours": measure_ours, "bare": measure_bare, "usual": measure_usual, "one core": measure_one_core}


def compare(args: argparse.Namespace, quality: str) -> None:
    """Alternate the sides, print medians and ratios."""
    sides = [side for side in SIDES if quality == "full" or side != "usual"]
    benchmark, options = metaworld_benchmark("MetaWorld-MT50"), ["--size", args.size, "--quality", quality]

    def run_side(side: str) -> Figures:
        return measure_side("metaworld", side, benchmark, args.decisions, args.slots, options)

    median = in_turn(sides, args.rounds, run_side)
    print(f"Meta-World, {args.size} px, {quality} images, {args.slots} slots, {args.rounds} rounds")
    print_sides(median)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--decisions", type=int, default=20, help="measured per environment and round, at most 60")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=os.cpu_count())
    parser.add_argument("--size", type=int, default=480)
    parser.add_argument("--quality", choices=("full", "fast", "both"), default="both")
    parser.add_argument("--side", choices=tuple(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--bare-slot", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bare_slot is not None:
        run_bare_slot(args.bare_slot, args.decisions, args.size, args.quality)
    elif args.side:
        print(json.dumps(SIDES[args.side](args.decisions, args.slots, args.size, args.quality)))
    else:
        for quality in ("full", "fast") if args.quality == "both" else (args.quality,):
            compare(args, quality)


if __name__ == "__main__":
    main()
