"""`vla-zoo published --submit`: a result of `vla-zoo evaluate --published` becomes a row of `results/`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from vla_gym.errors import VLAZooError
from zoo import published
from zoo.evaluation import reproduced
from zoo.evaluation.published import find_published
from zoo.evaluation.reproduced import Reproduction, reproductions

RESULTS = Path(__file__).parents[3] / "results"
SCHEMA = json.loads((RESULTS / "schema.json").read_text())
ENV = "LIBERO-Spatial"


def episode(task: int, trial: int, *, solved: bool, **other: Any) -> dict[str, Any]:
    ended = {"success_once": solved, "success_at_end": solved, "total_reward": float(solved), "length": 100}
    return {"task_id": task, "trial_id": trial, "start_state": f"{task:08x}{trial:08x}", "round": 0, **ended, **other}


def result(*episodes: dict[str, Any]) -> dict[str, Any]:
    """What `vla-zoo evaluate --published libero-oft-base --env LIBERO-Spatial` writes, as far as it is read."""
    solved = sum(one["success_once"] for one in episodes)
    evaluation = {"sample": False, "temperature": None, "rounds": 1}
    return {
        "published": {
            "name": "libero-oft-base",
            "figures": [{"label": "Spatial", "published": 56.5, "successes": solved, "episodes": len(episodes)}],
        },
        "machine": "16 cores of a processor, 64.0 GiB, one GPU",
        "versions": {"torch": "2.13.0"},
        "results": {
            ENV: {
                "policy": "Haozhan72/Openvla-oft-SFT-libero-spatial-traj1",
                "weights_sha256": "ab" * 32,
                "read_as": {"commit": "cd" * 20},
                "seed": 0,
                "episodes": list(episodes),
                "protocol": {
                    "evaluation": evaluation,
                    "options": {"protocol": "rlinf"},
                    "versions": {"mujoco": "3.3.0"},
                },
            }
        },
    }


def two_of_three() -> dict[str, Any]:
    return result(episode(0, 0, solved=True), episode(0, 1, solved=True), episode(9, 49, solved=False))


@pytest.fixture
def submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Submit a result in an empty folder and return the row."""
    monkeypatch.chdir(tmp_path)

    def submit(content: dict[str, Any]) -> dict[str, Any]:
        Path("mine.json").write_text(json.dumps(content))
        assert published.run(["--submit", "mine.json"]) == 0
        (row,) = Path("results").iterdir()
        assert f"written to {row}" in capsys.readouterr().out
        return dict(json.loads(row.read_text()))

    return submit


def test_a_result_becomes_a_row(submitted: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    row = submitted(two_of_three())
    jsonschema.validate(row, SCHEMA)
    assert row["figures"] == {"Spatial": {"successes": 2, "episodes": 3}}
    assert row["versions"] == {"mujoco": "3.3.0", "torch": "2.13.0"}
    assert row["result_sha256"] == hashlib.sha256(Path("mine.json").read_bytes()).hexdigest()
    assert Path(f"results/libero-oft-base-{row['result_sha256'][:8]}.json").is_file()
    assert not row["whole"]


def test_a_folder_of_weights_goes_by_its_name_alone(submitted: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    content = two_of_three()
    content["results"][ENV] |= {"policy": "/home/me/weights/oft/best", "read_as": {}}
    row = submitted(content)
    assert row["weights"][ENV] == {"policy": "oft", "commit": None, "sha256": "ab" * 32}


def spoiled(*keys: str | int, value: Any) -> dict[str, Any]:
    content = at = two_of_three()
    for key in keys[:-1]:
        at = at[key]  # type: ignore[index]
    at[keys[-1]] = value  # type: ignore[index]
    return content


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({}, "it lacks 'published'"),
        (spoiled("published", "name", value="libero-oft-bas"), "Did you mean 'libero-oft-base'"),
        (spoiled("published", "figures", 0, "successes", value=3), "figures are not those of its episodes"),
        (spoiled("results", ENV, "episodes", 2, "success_once", value=True), "figures are not those of its episodes"),
        (spoiled("results", ENV, "episodes", 2, "trial_id", value=50), "task 9, trial 50, round 0"),
        (spoiled("results", ENV, "episodes", 2, value=episode(0, 1, solved=False)), "is there twice"),
        (spoiled("results", ENV, "episodes", 2, "round", value=1), "round 1"),
        (spoiled("results", ENV, "episodes", 2, "start_state", value=""), "task 9, trial 49"),
        (spoiled("results", ENV, "protocol", "evaluation", "sample", value=True), "with sample False, got True"),
        (spoiled("results", ENV, "protocol", "options", value={"protocol": "lerobot"}), "'protocol': 'rlinf'"),
        (spoiled("results", ENV, "weights_sha256", value=None), "64 hexadecimal digits"),
        (spoiled("results", value={"LIBERO-90": {}}), "is of LIBERO-Spatial, LIBERO-Goal"),
    ],
)
def test_what_does_not_agree_is_refused(content: dict[str, Any], said: str, cwd: Path) -> None:
    Path("mine.json").write_text(json.dumps(content))
    with pytest.raises(VLAZooError) as error:
        published.run(["--submit", "mine.json"])
    assert said in str(error.value)
    assert not Path("results").exists()


def test_the_whole_row_with_the_published_weights_reproduces_it() -> None:
    row = find_published("libero-130-grpo")
    content = json.loads((RESULTS / "template.json").read_text())
    weights = {"LIBERO-130": {"policy": row.weights["LIBERO-130"] + "@main", "commit": "ab" * 20, "sha256": "ab" * 32}}
    one = Reproduction(**{**content, "row": row.name, "whole": True, "weights": weights})
    assert one.reproduces(row)
    for other in ({"policy": "me/mine"}, {"commit": None}):
        mine = {"LIBERO-130": {**weights["LIBERO-130"], **other}}
        assert not Reproduction(**{**content, "whole": True, "weights": mine}).reproduces(row)
    assert not Reproduction(**{**content, "whole": False, "weights": weights}).reproduces(row)


def test_a_result_is_whole_with_every_start_state_of_every_environment(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    one = result(*(episode(task, trial, solved=False) for task in range(10) for trial in range(50)))
    file.write_text(json.dumps(one))
    assert not reproduced.reproduction_of(file).whole, "three environments are missing"
    for label in ("Goal", "Object", "Long"):
        one["results"][f"LIBERO-{label}"] = one["results"][ENV]
        one["published"]["figures"].append({"label": label, "published": 0.0, "successes": 0, "episodes": 500})
    file.write_text(json.dumps(one))
    assert reproduced.reproduction_of(file).whole


def test_rows_are_listed_and_a_damaged_one_is_named(
    submitted: Callable[[dict[str, Any]], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    submitted(two_of_three())
    monkeypatch.setattr(reproduced, "packaged_folder", Path)
    assert published.run([]) == 0
    out = capsys.readouterr().out
    assert "measured: Spatial 2/3 (16 cores of a processor" in out
    assert "0 of " in out.splitlines()[-1], "three episodes are not the row"
    assert published.run(["libero-oft-base"]) == 0
    assert "measured     Spatial 2/3" in capsys.readouterr().out
    (row,) = Path("results").iterdir()
    row.write_text(row.read_text().replace('"whole": false', '"whole": "no"'))
    with pytest.raises(VLAZooError, match=row.name):
        published.run([])


def test_every_row_of_this_repository_is_read() -> None:
    files = sorted(RESULTS.glob("*-????????.json"))
    assert sum(map(len, reproductions().values())) == len(files)
    for file in files:
        jsonschema.validate(json.loads(file.read_text()), SCHEMA)
