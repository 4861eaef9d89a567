"""Accelerate reads every configuration that ships, and each says what its name says."""

from __future__ import annotations

from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file

FOLDER = Path(__file__).parents[2] / "hyperparams" / "accelerate"
WANTED = {
    "cpu": ("MULTI_GPU", 1, 2, "no"),
    "one_gpu": ("NO", 1, 1, "no"),
    "one_node": ("MULTI_GPU", 1, 8, "no"),
    "one_node_fsdp2": ("FSDP", 1, 8, "bf16"),
    "two_nodes": ("MULTI_GPU", 2, 16, "no"),
    "two_nodes_fsdp2": ("FSDP", 2, 16, "bf16"),
}


def test_every_file_is_known_here() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(WANTED)


@pytest.mark.parametrize("name", WANTED)
def test_accelerate_reads_it(name: str) -> None:
    config = load_config_from_file(str(FOLDER / f"{name}.yaml"))
    kind, machines, processes, precision = WANTED[name]
    assert str(config.distributed_type).endswith(kind)
    assert (config.num_machines, config.num_processes) == (machines, processes)
    assert config.mixed_precision == precision
    assert config.use_cpu == (name == "cpu")
    assert ("fsdp_version" in (config.fsdp_config or {})) == (kind == "FSDP")
