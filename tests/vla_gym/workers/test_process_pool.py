"""Workers that die, raise and hang, and what is left of them afterwards."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_simulator import scripted_benchmark

from tests.vla_gym.conftest import trace
from vla_gym import VLAVectorEnv, WorkerFailed, WorkerRestarted, make_vec

pytestmark = pytest.mark.processes

Make = Callable[..., VLAVectorEnv]
Alive = Callable[[int], bool]
QUIET = np.zeros((3, 5, 2), dtype=np.float32)


def trigger(slot: int) -> np.ndarray:
    """Actions that set off the failure of one slot in its second step."""
    action = QUIET.copy()
    action[slot, 1, 0] = 1.0
    return action


def failing(make: Make, failure: str, **options: Any) -> VLAVectorEnv:
    """Three slots in two workers: slot 0, and slots 1 and 2."""
    benchmark = scripted_benchmark((9, 9, 9), failure=failure)
    return make(benchmark, 3, chunk=5, schedule="grid", num_workers=2, **options)


SAYS = {"raise": "raised ZeroDivisionError", "die": "killed by SIGKILL", "hang": "hung for 1 s"}


def test_processes_and_this_process_give_the_same_numbers(make: Make) -> None:
    def played(num_workers: int) -> list[Any]:
        envs = make("Toy-Reach", 5, chunk=3, num_workers=num_workers)
        envs.reset(seed=3)
        return trace(envs, 30)

    assert played(2) == played(5) == played(0)


SLOT_2 = "Scripted, slot 2, task 2 (task_2), trial 0, during step"


@pytest.mark.parametrize(
    ("failure", "slot", "words"),
    [
        # The file stands at the traceback's end, from the worker's stderr.
        ("raise", 2, ["raised ZeroDivisionError: the arm fell off", SLOT_2, "scripted_simulator.py"]),
        ("die", 1, ["killed by SIGKILL", "slot 1", "slot 2", "about to die"]),
        ("hang", 0, ["hung for 0.5 s", "slot 0"]),
    ],
)
def test_a_failure_says_where_and_what_and_ends_all_workers(
    make: Make, alive: Alive, failure: str, slot: int, words: list[str]
) -> None:
    envs = failing(make, failure, step_timeout=0.5 if failure == "hang" else 60.0)
    envs.reset()
    pids = envs.worker_pids
    with pytest.raises(WorkerFailed) as caught:
        envs.step(trigger(slot))
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message
    assert envs.closed
    assert not any(map(alive, pids))


def test_a_simulator_that_cannot_be_built(make: Make) -> None:
    with pytest.raises(WorkerFailed, match=r"RuntimeError: cannot be built.*Scripted, starting"):
        failing(make, "unbuildable")


@pytest.mark.parametrize(
    "failure",
    ["die", pytest.param("raise", marks=pytest.mark.thorough), pytest.param("hang", marks=pytest.mark.thorough)],
)
def test_restart_loses_the_worker_s_episodes_only(make: Make, failure: str) -> None:
    options = {"on_worker_error": "restart", "autoreset_mode": "disabled"}
    envs = failing(make, failure, **options, step_timeout=1.0)
    envs.reset()
    before = envs.worker_pids
    with pytest.warns(WorkerRestarted, match=rf"{SAYS[failure]}.*Scripted, slot 1, task 1 \(task_1\), trial 0.*lost"):
        _, reward, terminated, truncated, infos = envs.step(trigger(1))
    assert envs.worker_pids[0] == before[0]
    assert envs.worker_pids[1] != before[1]
    assert infos["lost"].tolist() == [False, True, True]
    assert truncated.tolist() == [False, True, True]
    assert not terminated.any()
    assert infos["executed"].tolist() == [5, 0, 0]
    assert reward.tolist() == [0, 0, 0]
    assert "episode" not in infos  # lost episodes are not counted
    _, infos = envs.reset(options={"reset_mask": np.array([False, True, True])})
    assert not infos["lost"].any()
    obs, *_, infos = envs.step(QUIET)
    assert obs["state"].tolist() == [[9], [5], [5]]
    assert infos["episode"]["length"].tolist() == [9, 0, 0]


def test_restarting_has_an_end(make: Make) -> None:
    envs = failing(make, "bad reset", on_worker_error="restart")
    with pytest.warns(WorkerRestarted), pytest.raises(WorkerFailed, match="cannot be reset"):
        envs.reset()


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
@pytest.mark.parametrize("group_size", [1, 2])
def test_a_grid_with_losses_still_visits_every_cell(make: Make, mode: str, group_size: int) -> None:
    benchmark = scripted_benchmark((2, 3, 4), failure="raise", num_trials=3)
    options = {"schedule": "grid", "group_size": group_size, "autoreset_mode": mode}
    envs = make(benchmark, 4, chunk=5, on_worker_error="restart", **options)
    _, infos = envs.reset()
    finished: list[tuple[int, int]] = []
    for step in range(60):
        cells = list(zip(infos["task_id"].tolist(), infos["trial_id"].tolist(), strict=True))
        action = np.zeros((4, 5, 2), dtype=np.float32)
        action[step % 4, 1, 0] = float(step % 3 == 0)  # now and then one slot's worker fails
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WorkerRestarted)
            _, _, terminated, _, infos = envs.step(action)
        finished += [
            cell for cell, done, held in zip(cells, terminated, envs.idle, strict=True) if done and cell[0] >= 0
        ]
        if mode == "disabled" and envs.finished.any():
            _, infos = envs.reset(options={"reset_mask": envs.finished})
        if envs.idle.all():
            break
    assert envs.idle.all()
    every = [(task, trial) for task in range(3) for trial in range(3)]
    assert sorted(finished) == sorted(every * group_size)


def test_a_lost_episode_in_a_saved_state(make: Make) -> None:
    envs = failing(make, "die", on_worker_error="restart", autoreset_mode="disabled")
    envs.reset()
    with pytest.warns(WorkerRestarted):
        envs.step(trigger(1))
    other = failing(make, "", autoreset_mode="disabled")
    _, infos = other.load_state_dict(envs.state_dict())
    assert infos["lost"].tolist() == [False, True, True]
    assert other.finished.tolist() == [False, True, True]


def run_script(body: str, **options: Any) -> subprocess.Popen[str]:
    """A program that makes two workers, prints their ids, then runs `body`."""
    script = f"""
        import os, signal, sys, time
        sys.path.insert(0, {str(Path(__file__).parents[1])!r})
        import numpy as np
        from scripted_simulator import scripted_benchmark
        from vla_gym import make_vec
        envs = make_vec(scripted_benchmark(failure="hang"), 2, num_workers=2)
        envs.reset()
        print(*envs.worker_pids, flush=True)
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script) + textwrap.dedent(body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        **options,
    )


def gone(pids: list[int], alive: Alive, seconds: float = 10.0) -> bool:
    """Whether all end within `seconds`. Orphans are reaped by whoever adopts them, so zombies count as ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(alive(pid) and not zombie(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize(
    ("body", "send"),
    [
        ("os._exit(0)", None),
        ("envs.step(np.ones((2, 1, 2)))", signal.SIGINT),  # Ctrl-C while workers hang in a step
        ("envs.step(np.ones((2, 1, 2)))", signal.SIGKILL),
        pytest.param("", None, marks=pytest.mark.thorough),  # the program forgets to close
        pytest.param("raise SystemExit(3)", None, marks=pytest.mark.thorough),
        pytest.param("time.sleep(60)", signal.SIGTERM, marks=pytest.mark.thorough),
    ],
)
def test_no_worker_outlives_the_program(body: str, send: signal.Signals | None, alive: Alive) -> None:
    program = run_script(body)
    assert program.stdout is not None
    pids = [int(word) for word in program.stdout.readline().split()]
    assert len(pids) == 2
    if send is not None:
        time.sleep(0.5)
        program.send_signal(send)
    program.communicate(timeout=20)
    assert gone(pids, alive)


def test_close_is_quick_and_final_and_gives_everything_back(alive: Alive) -> None:
    def held() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/fd")), maps.count("memfd:vla-gym")

    def use() -> None:
        envs = make_vec("Toy-Reach", 4, num_workers=2)
        envs.reset()
        envs.step(np.zeros((4, 1, 2), dtype=np.float32))
        assert held()[1] > before[1]
        pids, began = envs.worker_pids, time.monotonic()
        envs.close()
        assert time.monotonic() - began < 4.0  # under the grace: the workers end by themselves
        assert not any(map(alive, pids))
        envs.close()

    gc.collect()  # environments that earlier tests left to the collector
    before = held()
    use()
    gc.collect()
    assert held() == before
