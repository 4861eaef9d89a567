"""What a task's folder says of its start regions; compiling itself is held to upstream in `test_libero_identity`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vla_gym.errors import BadValue

pytest.importorskip("mujoco")
from vla_gym.adapters import libero_compile


def refuse(domain: object) -> None:
    raise NotImplementedError("LIBERO's odd sampler of cup_1 has no counterpart here")


def test_a_sampler_without_counterpart_leaves_the_published_start_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / libero_compile.SCENE).write_text("{}")
    monkeypatch.setattr(libero_compile, "bddl_file", lambda suite, task: tmp_path / "task.bddl")
    monkeypatch.setattr(libero_compile, "_upstream_domain", lambda bddl: None)
    monkeypatch.setattr(libero_compile, "read_start_regions", refuse)
    libero_compile.compile_to("libero_90", "cup", folder)
    assert "odd sampler" in json.loads((folder / libero_compile.REGIONS).read_text())["refused"]
    monkeypatch.setattr(libero_compile, "_folder_with", lambda file, suite, task: folder)
    with pytest.raises(BadValue, match=r"odd sampler of cup_1 .* libero_90/cup .*sampled_starts: 0"):
        libero_compile.start_regions("libero_90", "cup")
