"""Launchers' commands in the docs: the launcher's own parser takes them, and `zoo.train` the rest."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from accelerate.commands.launch import launch_command_parser
from torch.distributed.run import get_args_parser

from zoo.cli.main import COMMANDS
from zoo.train import parser

ROOT = Path(__file__).parents[2]
LAUNCHERS: dict[str, Callable[[list[str]], Namespace]] = {
    "accelerate launch": lambda words: launch_command_parser().parse_args(words),
    "torchrun": lambda words: get_args_parser().parse_args(words),
}
VALUES = {
    "NODE0": "127.0.0.1",
    "JOB_COMPLETION_INDEX": "0",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NUM_GPUS_PER_NODE": "8",
}


def shown() -> list[tuple[str, str, str]]:
    """(page, launcher, words after it) of every command in the docs that names a module."""
    found = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
        text = re.sub(r"\n {14}(?=\S)", " ", text)  # a folded block of Kubernetes' YAML
        for launcher in LAUNCHERS:
            for rest in re.findall(rf"{launcher} ((?:--?\w[^`\n]*? )*?-m zoo\.[^`\n]*)", text):
                found.append((page.name, launcher, re.sub(r"\$?\b(\w+)\b", lambda m: VALUES.get(m[1], m[0]), rest)))
    return found


@pytest.mark.parametrize(("page", "launcher", "rest"), shown())
def test_a_launcher_takes_the_command(page: str, launcher: str, rest: str) -> None:
    args = LAUNCHERS[launcher](shlex.split(rest))
    assert args.module
    assert args.training_script.removeprefix("zoo.") in COMMANDS, page
    if args.training_script == "zoo.train" and "..." not in args.training_script_args:
        parser().parse(args.training_script_args)
    if launcher == "torchrun":
        return
    # Without either, one process a machine is started, each of which trains alone.
    assert args.config_file or args.multi_gpu
    assert not args.config_file or (ROOT / args.config_file).is_file()


def test_commands_are_found() -> None:
    assert {launcher for _, launcher, _ in shown()} == LAUNCHERS.keys()
    assert len(shown()) > 8


def test_the_kubernetes_job_is_yaml_that_restarts() -> None:
    (block,) = re.findall(r"```yaml\n(apiVersion.*?)```", (ROOT / "docs/scale-out.md").read_text(), re.DOTALL)
    service, job = yaml.safe_load_all(block)
    assert service["spec"]["selector"]["job-name"] == job["metadata"]["name"]
    pod = job["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "OnFailure"
    assert "--resume auto" in pod["containers"][0]["args"][0]
