"""What the benchmarks of simulators measure and print."""

from __future__ import annotations

import os
import time

from benchmarks.harness import processor_seconds, wall_and_cpu


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
