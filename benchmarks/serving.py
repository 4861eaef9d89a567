"""Cost of serving and gain of batches: `python -m benchmarks.serving [--agent agents/sft/LIBERO-Object]`.

Decisions per second of one client, of eight that are answered one by one, and of eight that share batches; then the
time that a decision from a 224 px image takes over loopback, beside the same decision in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from websockets.asyncio.client import connect
from websockets.sync.client import connect as connect_here

from vla_policies import VLAPolicy
from vla_policies.checkpoint_io.json_records import to_json
from zoo.serving.declaration import Declaration
from zoo.serving.openpi import OpenpiServerSession
from zoo.serving.wire import pack_openpi, unpack

CLIENTS, SECONDS, ROUNDS, WARM_UP, PAIRS = 8, 4.0, 5, 5, 300


@contextmanager
def served(agent: str, *flags: str) -> Iterator[str]:
    """The address of a server in a process of its own, on one thread of torch."""
    command = [sys.executable, "-m", "zoo.serve", "-i", agent, "--port", "0", "--device", "cpu", "--num-threads", "1"]
    with subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split(" on ")[1].split(",")[0]
        process.terminate()


def observation(declaration: dict[str, Any]) -> dict[str, Any]:
    """One observation in the protocol's words."""
    names, rng = OpenpiServerSession.NAMES, np.random.default_rng(0)
    shape = (declaration["image_size"], declaration["image_size"], 3)
    obs: dict[str, Any] = {names[key]: rng.integers(0, 256, shape, np.uint8) for key in declaration["cameras"]}
    return {**obs, names["state"]: np.zeros(declaration["state_dim"], np.float32), names["instruction"]: "open it"}


async def client(url: str) -> list[float]:
    """Ask again and again; returns the seconds of each answer."""
    async with connect(url, compression=None, ping_interval=None) as ws:
        message = pack_openpi(observation(unpack(await ws.recv(decode=False))["vla_zoo"]))
        took: list[float] = []
        until = time.perf_counter() + SECONDS
        while time.perf_counter() < until:
            started = time.perf_counter()
            await ws.send(message)
            await ws.recv()
            took.append(time.perf_counter() - started)
        return took[WARM_UP:]


async def clients(url: str, count: int) -> list[float]:
    """Seconds of all answers to some clients that ask at once."""
    return [took for one in await asyncio.gather(*(client(url) for _ in range(count))) for took in one]


def throughput(agent: str) -> None:
    """Print decisions per second and the median wait of a client: medians of rounds in turn, on a busy machine too."""
    rounds: dict[str, list[tuple[float, float]]] = {}
    with served(agent, "--max-batch", "1") as alone, served(agent) as shared:
        for _ in range(ROUNDS):
            for what, count, url in (
                ("one client", 1, shared),
                (f"{CLIENTS} clients, one by one", CLIENTS, alone),
                (f"{CLIENTS} clients, shared batches", CLIENTS, shared),
            ):
                took = asyncio.run(clients(url, count))
                rounds.setdefault(what, []).append((len(took) / SECONDS, 1000 * statistics.median(took)))
    for what, measured in rounds.items():
        rate, wait = (statistics.median(values) for values in zip(*measured, strict=True))
        print(f"{what:<28} {rate:7.1f} decisions/s, median {wait:6.1f} ms")


def overhead(agent: str, side: int) -> None:
    """Print what loopback and the server add to a decision."""
    torch.set_num_threads(1)
    policy = VLAPolicy.from_pretrained(agent, device="cpu")
    names = {name: key for key, name in OpenpiServerSession.NAMES.items()}
    declared = to_json(Declaration(policy=agent, image_size=side, **_shape(policy)))
    obs = {names[name]: value for name, value in observation(declared).items() if name in names}
    message = pack_openpi({OpenpiServerSession.NAMES[key]: value for key, value in obs.items()})
    here, there = [], []
    with served(agent, "--resize") as url, connect_here(url, compression=None) as ws:
        ws.recv()
        for _ in range(PAIRS):  # in turn, so that a busy machine slows both
            started = time.perf_counter()
            policy.predict(obs, deterministic=True)
            decided = time.perf_counter()
            ws.send(message)
            ws.recv()
            here.append(1000 * (decided - started))
            there.append(1000 * (time.perf_counter() - decided))
    more = statistics.median(remote - local for local, remote in zip(here[WARM_UP:], there[WARM_UP:], strict=True))
    print(
        f"{side} px: {statistics.median(here[WARM_UP:]):.1f} ms in this process, "
        f"{statistics.median(there[WARM_UP:]):.1f} ms over loopback, {more:.1f} ms more (medians of {PAIRS} pairs)"
    )


def _shape(policy: VLAPolicy) -> dict[str, Any]:
    own = policy.conventions
    return {"cameras": own.cameras, "state_dim": own.state_dim, "chunk": own.chunk, "action_dim": own.action_dim}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", default="agents/sft/LIBERO-Object")
    args = parser.parse_args()
    throughput(args.agent)
    overhead(args.agent, 224)


if __name__ == "__main__":
    main()
