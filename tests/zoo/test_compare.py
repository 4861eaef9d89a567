"""`zoo.compare` on files as `zoo.evaluate` writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from vla_gym.errors import BadValue
from zoo.compare import run


def write(path: Path, solved: str, *, deterministic: bool = True) -> str:
    episodes = [
        {"task_id": 0, "start_state": f"{path.stem[-1]}{k}", "success_once": letter == "x"}
        for k, letter in enumerate(solved)
    ]
    facts = {"env": "Toy-Reach/0", "summary": "Toy-Reach/0, as it was", "deterministic": deterministic}
    path.write_text(json.dumps({**facts, "episodes": episodes, "tasks": [{"name": "reach-red"}]}))
    return str(path)


def write_tasks(path: Path, solved: Mapping[int, str]) -> str:
    """Several tasks: id -> outcomes."""
    episodes = [
        {"task_id": task, "start_state": f"{task}{k}", "success_once": letter == "x"}
        for task, letters in solved.items()
        for k, letter in enumerate(letters)
    ]
    facts = {"env": "Toy-Reach", "summary": "Toy-Reach, as it was", "deterministic": True}
    tasks = [{"name": f"task-{task}"} for task in solved]
    path.write_text(json.dumps({**facts, "episodes": episodes, "tasks": tasks}))
    return str(path)


def test_several_tasks_get_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = write_tasks(tmp_path / "sft.json", {0: "------", 2: "xx"})
    after = write_tasks(tmp_path / "ppo.json", {0: "xxxxxx", 2: "x-"})
    assert run(["--before", before, "--after", after]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[4:-1]]
    assert lines[0][:3] == ["task", "before", "after"]
    # Six coins: p = 2 / 64, twice that for being one of two.
    assert lines[1:] == [["task-0", "0/6", "6/6", "6", "0", "0.062"], ["task-2", "2/2", "1/2", "0", "1", "1"]]


@pytest.mark.parametrize(
    "change",
    [
        {"tasks": [{"name": "a"}, {"name": "b"}]},
        {"tasks": [[]]},
        {"episodes": [{"task_id": [], "start_state": "a", "success_once": True}]},
        {"episodes": [{"task_id": 0, "start_state": {}, "success_once": True}]},
        {"episodes": [{"task_id": 0, "start_state": "a", "success_once": True, "round": []}]},
    ],
)
def test_records_of_another_shape_are_refused(change: dict[str, object], tmp_path: Path) -> None:
    after = write(tmp_path / "after.json", "x")
    record = json.loads(Path(after).read_text())
    (tmp_path / "before.json").write_text(json.dumps({**record, **change}))
    with pytest.raises(BadValue, match=r"before.json"):
        run(["--before", str(tmp_path / "before.json"), "--after", after])


def test_a_record_without_start_states_cannot_be_played_again(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="--before does not say which start states were played"):
        run(["--before", write(tmp_path / "before.json", "x"), "--policy", "nano"])


def test_two_splits_of_each_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = [write(tmp_path / "sft_1.json", "x---"), write(tmp_path / "sft_2.json", "-x")]
    after = [write(tmp_path / "ppo_1.json", "xxxx"), write(tmp_path / "ppo_2.json", "-x")]
    assert run(["--before", *before, "--after", *after]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[0] == "33.3%"
    assert lines[1].endswith("2/6    before")
    assert lines[2].endswith("5/6    after")
    assert lines[3].startswith("3 start states gained, 0 lost: p = 0.25 ")
    assert lines[3].endswith("the intervals overlap")
    assert lines[4:] == ["protocol: Toy-Reach/0, as it was"]


def test_deterministic_and_sampled_actions_are_not_compared(tmp_path: Path) -> None:
    files = [write(tmp_path / "a_1.json", "x"), write(tmp_path / "b_1.json", "x", deterministic=False)]
    with pytest.raises(BadValue, match="--stochastic"):
        run(["--before", files[0], "--after", files[1]])


def test_a_trained_agents_summary_is_told_from_results(tmp_path: Path) -> None:
    """The hint does not write over the file that came with it."""
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"test": {"summary": "as it was", "success": {"success": 0.5}, "tasks": []}}))
    with pytest.raises(BadValue, match=r"holds no episodes, .* -o NEW.json"):
        run([str(tmp_path), str(tmp_path)])


def test_what_was_measured_otherwise_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def measured(name: str, words: str, horizon: int, options: Mapping[str, object]) -> str:
        file = Path(write(tmp_path / name, "x-"))
        task = {"name": "reach-red", "instruction": words, "horizon": horizon}
        record = json.loads(file.read_text())
        file.write_text(json.dumps({**record, "protocol": {"tasks": [task], "options": options}}))
        return str(file)

    before = measured("a_1.json", "reach it", 12, {})
    assert run(["--before", before, "--after", before]) == 0
    assert "warning" not in capsys.readouterr().out
    assert run(["--before", before, "--after", measured("b_1.json", "touch it", 20, {"render_quality": "fast"})]) == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    says = "the two sides had other {}, which may explain the difference: '{}' before, '{}' after"
    assert warnings == [
        "warning: " + says.format("words", "reach-red: reach it", "reach-red: touch it"),
        "warning: " + says.format("horizons", "reach-red: 12 steps", "reach-red: 20 steps"),
        "warning: " + says.format("options", "{}", '{"render_quality": "fast"}'),
    ]


@pytest.mark.parametrize(
    "flags",
    [
        ["--before", "a"],
        ["a"],
        ["a", "b", "c"],
        ["a", "b", "--policy", "nano"],
        ["a", "b", "--before", "c"],
        ["--before", "a", "--after", "b", "--policy", "nano"],
        ["--before", "a", "b", "--policy", "nano"],
        ["--before", "a", "--after", "b", "--num-envs", "2"],
    ],
)
def test_flags_that_do_not_go_together(flags: list[str]) -> None:
    with pytest.raises(BadValue, match=r"give both|goes with --policy"):
        run(flags)


def test_a_run_folder_stands_for_its_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, solved in (("sft", "x---"), ("ppo", "xxx-")):
        (tmp_path / name).mkdir()
        Path(write(tmp_path / "run_1.json", solved)).rename(tmp_path / name / "results.json")
    assert run([str(tmp_path / "sft"), str(tmp_path / "ppo")]) == 0
    assert "2 start states gained, 0 lost" in capsys.readouterr().out
    # Where one was never evaluated: the last evaluations of their training, which is said.
    (tmp_path / "ppo" / "results.json").rename(tmp_path / "ppo" / "evaluation.json")
    Path(write(tmp_path / "run_1.json", "----")).rename(tmp_path / "sft" / "evaluation.json")
    assert run([str(tmp_path / "sft"), str(tmp_path / "ppo")]) == 0
    out = capsys.readouterr().out
    assert "3 start states gained, 0 lost" in out
    assert "ppo/evaluation.json' is the last evaluation of training" in out
    with pytest.raises(BadValue, match=r"no results of vla-zoo evaluate in .*results.json") as raised:
        run(["--before", str(tmp_path), "--after", str(tmp_path)])
    assert str(raised.value).endswith(f"write one with: vla-zoo evaluate -i {tmp_path}")
    with pytest.raises(BadValue, match=r"write one with: vla-zoo evaluate -i RUN -o .*none.json"):
        run(["--before", str(tmp_path / "none.json"), "--after", str(tmp_path)])


def test_results_of_the_one_side_are_not_written_over_by_the_other(tmp_path: Path) -> None:
    file = write(tmp_path / "a_1.json", "x")
    record = json.loads(Path(file).read_text())
    record |= {"env": "Toy-Reach", "protocol": {"split": "train"}}
    record["episodes"] = [{**one, "trial_id": 0} for one in record["episodes"]]
    Path(file).write_text(json.dumps(record))
    with pytest.raises(BadValue, match=r"-o .*a_1\.json holds the results of --before; give another -o"):
        run(["--before", file, "--policy", "nano", "-o", str(tmp_path / "." / "a_1.json")])


def test_rounds_are_paired_by_start_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two rounds of each start state, solved in as many as the digit says."""

    def rounds(name: str, solved: str) -> str:
        file = Path(write(tmp_path / name, solved))
        record = json.loads(file.read_text())
        record["episodes"] = [
            {**episode, "round": number, "success_once": number < int(wins)}
            for episode, wins in zip(record["episodes"], solved, strict=True)
            for number in range(2)
        ]
        file.write_text(json.dumps(record))
        return str(file)

    before, after = rounds("a_1.json", "000000"), rounds("b_1.json", "222221")
    assert run(["--before", before, "--after", after]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[0] == "91.7%"
    assert lines[2].endswith("11/12    after")
    # Six coins, not eleven: p = 2 / 64.
    assert lines[3].startswith(
        "6 start states gained in more of 2 rounds, 0 lost: p = 0.031 (sign flips of start states"
    )
    assert run(["--before", before, "--after", after, "--rounds", "1"]) == 0
    assert "6 start states gained, 0 lost: p = 0.031 (McNemar" in capsys.readouterr().out
    once = write(tmp_path / "c_1.json", "xxxxxx")
    with pytest.raises(BadValue, match=r"here are \[1, 2\]. Compare the first with --rounds 1"):
        run(["--before", before, "--after", once])
    assert run(["--before", before, "--after", once, "--rounds", "1"]) == 0
    with pytest.raises(BadValue, match="--rounds 3 is more than the 2 that were played; at most --rounds 2"):
        run(["--before", before, "--after", after, "--rounds", "3"])


def test_sides_that_were_read_differently_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name, noise, commit in (("a_1.json", "fixed", "1"), ("b_1.json", "random", "2")):
        files.append(write(tmp_path / name, "xx--"))
        record = json.loads(Path(files[-1]).read_text())
        read_as = {"family": "pi0", "eval_noise": noise, "commit": commit}
        Path(files[-1]).write_text(json.dumps({**record, "read_as": read_as}))
    assert run(files) == 0
    out = capsys.readouterr().out
    assert "warning: the two sides had other readings of the policy" in out
    assert "'eval_noise fixed' before, 'eval_noise random' after" in out
    assert "commit" not in out
