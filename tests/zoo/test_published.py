"""`zoo.published`, and `--published` of `zoo.evaluate` and `zoo.train`."""

from __future__ import annotations

from pathlib import Path

import pytest

from vla_gym.errors import BadValue, MissingDependency, UnknownName
from zoo import evaluate, published, train
from zoo.config.published import published_rows


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path_factory.mktemp("cache")))


def test_it_lists_every_row_and_what_was_reproduced(capsys: pytest.CaptureFixture[str]) -> None:
    assert published.run([]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in published_rows())
    assert f"0 of {len(published_rows())} rows reproduced here" in out
    assert published.run(["mt50-pi0-ppo"]) == 0
    assert "figure       very hard: 84 %" in capsys.readouterr().out
    with pytest.raises(UnknownName, match="Did you mean 'mt50-pi0-ppo'"):
        published.run(["mt50-pi0-pp"])


def test_the_dry_run_of_an_evaluation_prints_the_whole_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.run(["--published", "libero-130-grpo", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "sampled (do_sample true), temperature 1.6" in out
    assert "2 x 6,500 start states = 13,000 episodes" in out
    assert "512 steps, 15 settle steps (protocol rlinf)" in out
    assert "RLinf/RLinf-OpenVLAOFT-LIBERO-130: not cached, a download of a size not known offline" in out
    assert "hardware     the source's: 8 GPUs" in out
    assert "update       1 epochs x at most 16 minibatches of 16384 decisions" in out


def test_an_adapters_model_is_named_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.run(["--published", "plate25-oft-base", "--dry-run", "--eval-episodes", "4"]) == 0
    out = capsys.readouterr().out
    assert "RLinf/RLinf-OpenVLAOFT-ManiSkill-Base-Lora" in out
    assert "RLinf/RLinf-OpenVLAOFT-ManiSkill-Base-Main" in out
    assert "(64 of its " in out


def test_the_dry_run_of_a_training_run_names_row_weights_and_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.run(["--published", "mt50-pi0-ppo", "--dry-run", "--seed", "0"]) == 0
    out = capsys.readouterr().out
    assert "published    mt50-pi0-ppo: easy 92.1 %" in out
    assert "start        RLinf/RLinf-Pi0-MetaWorld-SFT: not cached" in out
    assert "hardware     the source's" in out


@pytest.mark.parametrize(
    ("command", "argv", "message"),
    [
        (evaluate, ["--published", "libero-130-grpo", "--temperature", "1"], "--temperature is the protocol's"),
        (evaluate, ["--published", "libero-130-grpo", "--env", "Toy-Reach"], "is of LIBERO-130, got --env Toy-Reach"),
        (evaluate, ["--dry-run", "--policy", "nano"], "give a row of zoo.published with it"),
        (train, ["--published", "libero-130-base"], "was not trained by reward"),
        (train, ["--published", "libero-pi0-ppo"], "say which with --env LIBERO-Spatial, LIBERO-Object"),
        (train, ["--published", "mt50-pi0-ppo", "--algo", "grpo"], "is --algo ppo, got grpo"),
        (train, ["--published", "mt50-pi0-ppo", "-i", "logs/x"], "begins a run, and -i logs/x goes on with one"),
        (train, ["--published", "mt50-pi0-ppo", "--policy", "nano"], "trains pi0, and 'nano' is read as nano"),
    ],
)
def test_what_contradicts_a_row_is_refused(command: object, argv: list[str], message: str) -> None:
    with pytest.raises(BadValue, match=message):
        command.run(argv)  # type: ignore[attr-defined]


def test_boxes_are_not_compared_with_published_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MANISKILL_ASSET_DIR", raising=False)
    monkeypatch.setenv("MS_ASSET_DIR", str(tmp_path))
    monkeypatch.setenv("VLA_ZOO_CACHE", str(tmp_path))
    tiny = ["-params", "policy_kwargs:{backbone_kwargs: {size: tiny}}"]
    with pytest.raises(MissingDependency, match=r"published files are missing .* and stand_ins is false"):
        evaluate.run(["--published", "plate25-oft-base", "--policy", "openvla-oft", *tiny])


def test_rows_without_weights_ask_for_yours(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadValue, match=r"no weights of 'mt50-smolvla' .* give yours with -i RUN or --policy NAME"):
        evaluate.run(["--published", "mt50-smolvla"])
    assert evaluate.run(["--published", "libero-pi0-ppo", "--dry-run"]) == 0
    assert "python -m zoo.train --published libero-pi0-ppo" in capsys.readouterr().out
