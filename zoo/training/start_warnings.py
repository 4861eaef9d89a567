"""What is unusual about a run, said before it starts: it may still be what the user wants."""

from __future__ import annotations

import logging
import os

from vla_gym.system.limits import main_memory
from vla_policies.registry import FAMILIES, family_class
from zoo.config.batch_plan import benchmark_of
from zoo.config.memory_plan import GIB, Rank, needs, total
from zoo.config.run_config import RunConfig
from zoo.distributed.placement import ALL
from zoo.runs.lookup import ResumePoint
from zoo.runs.shipped_agents import agents_for
from zoo.training.run_plan import RunPlan, memory_lines

_logger = logging.getLogger(__name__)


def log_plan(plan: RunPlan, resume: ResumePoint | None) -> None:
    """Log what the run comes to, and what is unusual about it."""
    _logger.info("\n".join([*plan.arithmetic(), *memory_lines(plan)]))
    for sentence in start_warnings(plan, resume):
        _logger.warning("warning: %s", sentence)


def start_warnings(plan: RunPlan, resume: ResumePoint | None) -> list[str]:
    """Return the sentences that apply to a run which goes on from `resume`, or begins."""
    config = plan.config
    found = [short_of_a_rollout(plan, 0 if resume is None else resume.step), short_of_memory(plan, main_memory())]
    if resume is None:
        found.insert(0, hopeless_start(config))
    return [sentence for sentence in found if sentence is not None]


def hopeless_start(config: RunConfig) -> str | None:
    """Fresh weights on a simulated robot that pays for success alone: chance hardly ever solves such a task."""
    benchmark = benchmark_of(config)
    if config.policy not in FAMILIES or benchmark.extra is None:
        return None  # Toy-Reach, and benchmarks from elsewhere, may well be solved by chance
    if not family_class(config.policy).wants_fresh(config.backbone_kwargs):
        return None
    options = benchmark.simulator_kwargs
    if options.get("task_reward") == "dense":
        return None
    remedies = ["demonstrations (zoo.collect --expert, then zoo.sft)"]
    if agents := agents_for(config.env):
        agent = next((agent for agent in agents if "/sft/" in agent), agents[0])
        remedies.insert(0, f"a trained agent (--policy {agent})")
    pays = " Or pay for progress: -params 'env_kwargs:{task_reward: dense}'." if "task_reward" in options else ""
    return (
        f"'{config.policy}' means fresh weights, and {config.env} pays for success alone, which chance hardly ever "
        f"reaches there: expect 0 %. Start from {' or '.join(remedies)}.{pays}"
    )


def short_of_a_rollout(plan: RunPlan, done: int) -> str | None:
    """-n is less than what is collected for one update, and more than what was done."""
    left, rollout = plan.config.n_timesteps - done, plan.batch.simulator_steps
    if left >= rollout or left <= 0:
        return None
    smaller = "rollouts_per_update or group_size" if plan.config.algo == "grpo" else "n_steps"
    return (
        f"{left} simulator steps are less than one rollout: the run makes a whole one, of up to {rollout:,}. For less, "
        f"lower --num-envs or {smaller} (-params)"
    )


def short_of_memory(plan: RunPlan, available: int) -> str | None:
    """The processes on this machine plan for more main memory than its `available` bytes."""
    config = plan.config
    if config.placement != ALL:
        return None  # ranks differ, and the plan is of one that does everything
    lines = needs(plan.batch, config, plan.num_workers, Rank(passes=False))
    places = ["host", "device"] if config.device == "cpu" else ["host"]
    needed = sum(total(lines, place) for place in places) * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if needed <= available:
        return None
    return (
        f"the plan comes to {needed / GIB:.1f} GiB of main memory, this machine has {available / GIB:.1f} GiB: lower "
        "--num-envs, n_steps, chunk or image_size (-params), or evaluate afterwards (--eval-episodes 0); zoo.plan "
        "counts without starting"
    )
