"""`zoo.train` on a Ray cluster: a placement group, an actor for each process, which meet as a launcher's would.

    python scripts/ray_train.py --num-processes 16 -- --algo ppo --env LIBERO-130 --policy openvla-oft -f /shared/logs
    python scripts/ray_train.py --num-processes 4 --gpus-per-process 0 -- --env Toy-Reach          # on CPUs
    python scripts/ray_train.py --num-processes 16 --max-restarts 3 -- ... --resume auto      # survives a lost node

The cluster is the running one (`ray start`, or RAY_ADDRESS), else this machine. Every node needs vla-zoo and the same
log folder. An actor that fails, or whose node is lost, ends the others; with `--max-restarts` they begin again, and
`--resume auto` goes on from the last checkpoint. `pip install ray` first; nothing else here needs it.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


@ray.remote
class Process:
    """One process of the run, on the node and with the GPUs that Ray gave it."""

    def place(self) -> tuple[str, str, list[int]]:
        """Return the node's address and id, and the numbers of the actor's GPUs."""
        context = ray.get_runtime_context()
        return ray.util.get_node_ip_address(), context.get_node_id(), [int(gpu) for gpu in ray.get_gpu_ids()]

    def free_port(self) -> int:
        """Return a port of this node that nobody listens on."""
        with socket.socket() as listener:
            listener.bind(("", 0))
            return int(listener.getsockname()[1])

    def train(self, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run `zoo.train`; return its exit code. It ends with the actor."""
        command = [sys.executable, "-m", "zoo.train", *arguments]
        with subprocess.Popen(command, env={**os.environ, **environment}, text=True) as self.process:
            return self.process.wait()


def environments(places: Sequence[tuple[str, str, Sequence[int]]], port: int) -> list[dict[str, str]]:
    """Return what each process needs to meet the others, from the places of all, rank by rank."""
    found = []
    for rank, (_, node, gpus) in enumerate(places):
        of_node = [number for number, place in enumerate(places) if place[1] == node]
        found.append(
            {
                "MASTER_ADDR": places[0][0],
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "WORLD_SIZE": str(len(places)),
                "LOCAL_RANK": str(of_node.index(rank)),
                "LOCAL_WORLD_SIZE": str(len(of_node)),
            }
        )
        if gpus:  # All of the node's, of which each process takes that of its LOCAL_RANK.
            found[-1]["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for number in of_node for gpu in places[number][2])
    return found


def attempt(num_processes: int, cpus: float, gpus: float, arguments: Sequence[str]) -> bool:
    """Run all processes once; return whether each of them ended well."""
    bundle = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
    group = placement_group([bundle] * num_processes, strategy="PACK")
    try:
        ray.get(group.ready())
        actors = [
            Process.options(  # type: ignore[attr-defined]
                num_cpus=cpus,
                num_gpus=gpus,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
            ).remote()
            for index in range(num_processes)
        ]
        places = ray.get([actor.place.remote() for actor in actors])
        starts = environments(places, ray.get(actors[0].free_port.remote()))
        running = [actor.train.remote(arguments, start) for actor, start in zip(actors, starts, strict=True)]
        while running:
            (ended,), running = ray.wait(running, num_returns=1)
            if code := ray.get(ended):
                print(f"a process ended with exit code {code}", file=sys.stderr)
                return False
        return True
    except ray.exceptions.RayActorError as error:
        print(f"a process or its node was lost: {error}", file=sys.stderr)
        return False
    finally:
        remove_placement_group(group)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-processes", type=int, required=True, metavar="N", help="of the run, one for each GPU")
    parser.add_argument("--gpus-per-process", type=float, default=1, metavar="N", help="0: on CPUs (default: 1)")
    parser.add_argument("--cpus-per-process", type=float, default=1, metavar="N", help="its simulators' (default: 1)")
    parser.add_argument("--max-restarts", type=int, default=0, metavar="N", help="of all processes (default: 0)")
    parser.add_argument("arguments", nargs="+", metavar="-- FLAGS", help="of zoo.train")
    args = parser.parse_args()
    ray.init()
    for _ in range(args.max_restarts + 1):
        if attempt(args.num_processes, args.cpus_per_process, args.gpus_per_process, args.arguments):
            return 0
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
