"""Messages between two processes: whole, in order, of every type that a rollout has."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TALK = textwrap.dedent("""
    import sys, torch, torch.distributed as dist
    from zoo.distributed.channel import Channel
    rank, file = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    channel = Channel()
    if rank == 0:
        for number in range(3):
            tensors = {"a": torch.arange(3) + 10 * number, "b": torch.zeros(0, 2), "scalar": torch.tensor(0.5)}
            tensors |= {"strided": torch.arange(6).reshape(2, 3).T, "flags": torch.tensor([[True], [False]])}
            tensors |= {str(dtype): torch.ones(2, dtype=dtype) for dtype in (torch.uint8, torch.bfloat16)}
            channel.send(1, {"number": number, "words": "höher"}, tensors)
        print(channel.receive(1))
    else:
        for number in range(3):
            metadata, tensors = channel.receive(0)
            assert metadata == {"number": number, "words": "höher"}, metadata
            assert tensors["a"].tolist() == [10 * number + place for place in range(3)], tensors
            assert tensors["b"].shape == (0, 2)
            assert tensors["scalar"].shape == () and tensors["scalar"] == 0.5
            assert tensors["strided"].tolist() == [[0, 3], [1, 4], [2, 5]]
            assert tensors["flags"].tolist() == [[True], [False]]
            assert all(tensors[str(dtype)].dtype == dtype for dtype in (torch.uint8, torch.bfloat16))
        channel.send(0, ["done"])
    channel.wait()
    dist.destroy_process_group()
""")


@pytest.mark.slow
def test_messages_arrive_whole_and_in_order(tmp_path: Path) -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", TALK, str(rank), str(tmp_path / "meeting")],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [run.communicate(timeout=120)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    assert "(['done'], {})" in said[0]
