from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zoo import enjoy
from zoo.record_video import video_name


@pytest.mark.parametrize(
    ("policy", "name"), [("nano", "enjoy-nano-Toy-Reach-1"), ("some/folder", "enjoy-folder-Toy-Reach-1")]
)
def test_films_of_different_agents_have_different_names(policy: str, name: str) -> None:
    plan: Any = SimpleNamespace(policy=policy, env="Toy-Reach/1")
    assert video_name(plan, "enjoy") == name


def test_a_film_can_be_drawn_larger_than_the_policy_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sides: list[int] = []

    def remember(image: Any, instruction: str, *, success: bool, over: bool) -> Any:
        sides.append(len(image))
        return caption(image, instruction, success=success, over=over)

    from vla_gym.video import caption

    monkeypatch.setattr("vla_gym.video.caption", remember)
    film = tmp_path / "film.mp4"
    flags = ["--env", "Toy-Reach", "--policy", "nano", "--episodes", "2", "--device", "cpu"]
    assert enjoy.run([*flags, "--video-size", "240", "-o", str(film)]) == 0
    assert film.stat().st_size > 1000
    assert set(sides) == {240}
