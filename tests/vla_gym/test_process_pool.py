"""Workers that die, raise and hang, and what is left of them afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_simulator import scripted_benchmark

from vla_gym import VLAVectorEnv, WorkerFailed, make_vec

Make = Callable[..., VLAVectorEnv]
Alive = Callable[[int], bool]
QUIET = np.zeros((3, 5, 2), dtype=np.float32)


def trigger(slot: int) -> np.ndarray:
    """Actions that set off the fate of one slot in its second step."""
    action = QUIET.copy()
    action[slot, 1, 0] = 1.0
    return action


def doomed(make: Make, fate: str, **options: Any) -> VLAVectorEnv:
    """Three slots in two workers: slot 0, and slots 1 and 2."""
    benchmark = scripted_benchmark((9, 9, 9), fate=fate)
    return make(benchmark, 3, chunk=5, schedule="grid", num_workers=2, **options)


def numbers(envs: VLAVectorEnv, steps: int) -> list[Any]:
    obs, _ = envs.reset(seed=3)
    rng = np.random.default_rng(0)
    trace: list[Any] = []
    for _ in range(steps):
        obs, reward, terminated, _, infos = envs.step(rng.uniform(-1, 1, (5, 3, 2)))
        trace += [obs["image"].tobytes(), obs["state"].tobytes(), obs["instruction"], reward.tolist()]
        trace += [terminated.tolist(), infos["start_state"].tolist(), infos["step_rewards"].tolist()]
    return trace


def test_processes_and_this_process_give_the_same_numbers(make: Make) -> None:
    local = numbers(make("Toy-Reach", 5, chunk=3), 30)
    for num_workers in (1, 2, 5):
        assert numbers(make("Toy-Reach", 5, chunk=3, num_workers=num_workers), 30) == local


def test_slots_are_dealt_in_adjacent_blocks(make: Make) -> None:
    envs = make("Toy-Reach", 5, num_workers=2)
    assert [worker.slots for worker in envs._pool._workers] == [(0, 1), (2, 3, 4)]  # type: ignore[attr-defined]
    assert len(set(envs.worker_pids)) == 2
    assert os.getpid() not in envs.worker_pids


def test_an_exception_says_where_and_what(make: Make, alive: Alive) -> None:
    envs = doomed(make, "raise")
    envs.reset()
    pids = envs.worker_pids
    with pytest.raises(WorkerFailed) as caught:
        envs.step(trigger(2))
    message = str(caught.value)
    assert "raised ZeroDivisionError: the arm fell off" in message
    assert "Scripted, slot 2, task 2 (task_2), trial 0, during step" in message
    assert "scripted_simulator.py" in message  # the traceback's end, from the worker's stderr
    assert "\n" not in message
    assert envs.closed
    assert not any(map(alive, pids))


def test_a_killed_worker_is_named_with_its_last_words(make: Make, alive: Alive) -> None:
    envs = doomed(make, "die")
    envs.reset()
    pids = envs.worker_pids
    with pytest.raises(WorkerFailed, match=r"killed by SIGKILL.*slot 1.*slot 2.*about to die"):
        envs.step(trigger(1))
    assert not any(map(alive, pids))


def test_a_hung_worker_is_given_up(make: Make, alive: Alive) -> None:
    envs = doomed(make, "hang", step_timeout=0.5)
    envs.reset()
    pids = envs.worker_pids
    with pytest.raises(WorkerFailed, match=r"hung for 0.5 s.*slot 0"):
        envs.step(trigger(0))
    assert not any(map(alive, pids))


def test_a_worker_killed_from_outside(make: Make) -> None:
    envs = doomed(make, "")
    envs.reset()
    os.kill(envs.worker_pids[0], signal.SIGKILL)
    with pytest.raises(WorkerFailed, match=r"worker 0 .* killed by SIGKILL"):
        envs.step(QUIET)


def test_a_simulator_that_cannot_be_built(make: Make) -> None:
    with pytest.raises(WorkerFailed, match=r"RuntimeError: cannot be built.*Scripted, starting"):
        doomed(make, "unbuildable")


@pytest.mark.parametrize("fate", ["raise", "die", "hang"])
def test_restart_loses_the_worker_s_episodes_only(make: Make, fate: str) -> None:
    options = {"on_worker_error": "restart", "autoreset_mode": "disabled"}
    envs = doomed(make, fate, **options, step_timeout=1.0)
    envs.reset()
    before = envs.worker_pids
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


def test_restart_in_this_process(make: Make) -> None:
    benchmark = scripted_benchmark((9, 9, 9), fate="raise")
    envs = make(benchmark, 3, chunk=5, schedule="grid", on_worker_error="restart")
    envs.reset()
    assert envs.step(trigger(1))[4]["lost"].tolist() == [False, True, False]
    obs, *_, infos = envs.step(QUIET)
    assert infos["trial_id"].tolist() == [0, 1, 0]
    assert obs["state"].tolist() == [[9], [0], [9]]


def test_raise_in_this_process(make: Make) -> None:
    envs = make(scripted_benchmark((9, 9, 9), fate="raise"), 3, chunk=5)
    envs.reset()
    with pytest.raises(WorkerFailed, match=r"slot 1.*ZeroDivisionError: the arm fell off"):
        envs.step(trigger(1))
    assert envs.closed


def test_restart_during_a_partial_reset_loses_the_neighbour_too(make: Make) -> None:
    envs = doomed(make, "", on_worker_error="restart", autoreset_mode="disabled")
    envs.reset()
    envs.step(QUIET)
    os.kill(envs.worker_pids[1], signal.SIGKILL)
    envs.reset(options={"reset_mask": np.array([False, False, True])})  # done again by the new worker
    obs, *_, infos = envs.step(QUIET)
    assert infos["lost"].tolist() == [False, True, False]
    assert infos["executed"].tolist() == [4, 0, 5]
    assert obs["state"][2].tolist() == [5]


def test_restarting_has_an_end(make: Make) -> None:
    with pytest.raises(WorkerFailed, match="cannot be reset"):
        doomed(make, "bad reset", on_worker_error="restart").reset()


def test_a_lost_episode_in_a_saved_state(make: Make) -> None:
    envs = doomed(make, "die", on_worker_error="restart", autoreset_mode="disabled")
    envs.reset()
    envs.step(trigger(1))
    other = doomed(make, "", autoreset_mode="disabled")
    _, infos = other.load_state_dict(envs.state_dict())
    assert infos["lost"].tolist() == [False, True, True]
    assert other.finished.tolist() == [False, True, True]


def test_close_is_quick_and_final(alive: Alive) -> None:
    envs = make_vec("Toy-Reach", 4, num_workers=2)
    envs.reset()
    pids = envs.worker_pids
    began = time.monotonic()
    envs.close()
    assert time.monotonic() - began < 4.0  # under the grace: the workers end by themselves
    assert not any(map(alive, pids))
    envs.close()


def run_script(body: str, **options: Any) -> subprocess.Popen[str]:
    """A program that makes two workers, prints their ids, then runs `body`."""
    script = f"""
        import os, signal, sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import numpy as np
        from scripted_simulator import scripted_benchmark
        from vla_gym import make_vec
        envs = make_vec(scripted_benchmark(fate="hang"), 2, num_workers=2)
        envs.reset()
        print(*envs.worker_pids, flush=True)
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script) + textwrap.dedent(body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        **options,
    )


def gone(pids: list[int], alive: Alive, seconds: float = 10.0) -> bool:
    """Have all ended within `seconds`? Orphans are reaped by whoever adopts them, so zombies count as ended."""
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
        ("", None),  # the program forgets to close
        ("raise SystemExit(3)", None),
        ("os._exit(0)", None),
        ("envs.step(np.ones((2, 1, 2)))", signal.SIGINT),  # Ctrl-C while workers hang in a step
        ("time.sleep(60)", signal.SIGTERM),
        ("envs.step(np.ones((2, 1, 2)))", signal.SIGKILL),
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


def test_ctrl_c_reaches_the_whole_terminal_group_and_the_program_stays_in_charge(alive: Alive) -> None:
    body = """
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            print(envs.step(np.zeros((2, 1, 2)))[4]["executed"].tolist(), flush=True)
    """
    program = run_script(body, start_new_session=True)
    assert program.stdout is not None
    pids = [int(word) for word in program.stdout.readline().split()]
    time.sleep(0.5)
    os.killpg(program.pid, signal.SIGINT)
    out, err = program.communicate(timeout=20)
    assert out.strip() == "[1, 1]", err
    assert gone(pids, alive)


def test_a_fork_leaves_the_workers_alone(make: Make) -> None:
    envs = make("Toy-Reach", 2, num_workers=1)
    envs.reset()
    child = os.fork()
    if child == 0:
        envs.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert envs.step(np.zeros((2, 2)))[4]["executed"].tolist() == [1, 1]
