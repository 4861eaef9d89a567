from __future__ import annotations

import numpy as np
from scripted_simulator import scripted_benchmark

from vla_gym.specs import StartState
from vla_gym.workers.slot_table import SlotTable
from vla_gym.workers.sub_env import SlotReport

START = StartState(task_id=2, trial_id=1)


def test_a_slot_s_life() -> None:
    table = SlotTable(2, scripted_benchmark().tasks)
    assert table.idle.all()
    assert table.instructions() == ("idle", "idle")
    table.begin(1, START, "ab")
    assert table.running.tolist() == [False, True]
    assert table.instructions() == ("idle", "do thing 2")
    assert table.start(1) == START
    action_TA = np.ones((2, 3), dtype=np.float32)
    table.record(1, SlotReport(step_rewards=(0.0, 0.0)), action_TA)
    table.record(1, SlotReport(step_rewards=(1.0,), success=True, terminated=True), action_TA[:1])
    assert table.actions(1, 3).shape == (3, 3)
    assert (table.finished[1], table.running[1]) == (True, False)
    table.begin(1, START, "cd")
    assert table.actions(1, 3).shape == (0, 3)
    assert not table.finished[1]
    table.retire(1)
    assert (table.task_id[1], table.start_state[1], table.idle[1]) == (-1, None, True)
