from __future__ import annotations

from pathlib import Path

import pytest

mujoco = pytest.importorskip("mujoco")

from vla_gym.adapters.mujoco.messages import log_warnings  # noqa: E402

BALL = "<mujoco><worldbody><body><freejoint/><geom size='.1'/></body></worldbody></mujoco>"


def test_an_unstable_simulation_is_logged_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    log_warnings()
    model = mujoco.MjModel.from_xml_string(BALL)
    data = mujoco.MjData(model)
    data.qpos[0] = float("nan")
    mujoco.mj_step(model, data)
    assert "MuJoCo: Nan, Inf or huge value in QPOS" in caplog.text
    assert not list(tmp_path.iterdir())
