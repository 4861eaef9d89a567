"""What the benchmarks of simulators measure and print."""

from __future__ import annotations

import os
import time

import vla_gym
from benchmarks.harness import actions, play, processor_seconds, wall_and_cpu


def test_processor_time_is_of_work_and_not_of_waiting() -> None:
    def work() -> None:
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass

    before = processor_seconds([os.getpid()])
    wall, cpu = wall_and_cpu(work)
    assert wall >= cpu >= 0.2
    # The system counts in hundredths of a second.
    assert processor_seconds([os.getpid()]) - before >= 0.2 - 0.02
    assert wall_and_cpu(lambda: time.sleep(0.2))[1] < 0.1


def test_our_environments_are_played_to_the_end_and_closed() -> None:
    envs = vla_gym.make_vec("Toy-Reach", num_envs=4, chunk=8, num_workers=2, autoreset_mode="disabled")
    envs.reset()
    workers = list(envs.worker_pids)
    figures = play(envs, actions(300, 4, envs.single_action_space.shape[-1]))
    assert len(workers) == 2
    assert figures["steps/s"] > 0
    assert figures["CPU ms/step"] > 0
    assert 0 <= figures["busy cores"] <= 2
    assert figures["worker MB"] > 1
    assert not any(os.path.exists(f"/proc/{pid}/stat") for pid in workers)
