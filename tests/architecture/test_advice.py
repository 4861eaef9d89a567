"""No command gives advice that another refuses: it goes through the parser of the command it names or is shown by."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import pytest
from advice import HOLE, Message, command_lines, flags, messages, settings, taken
from rooms import ARROWS, SOURCES
from rooms import COMMANDS as PROGRAMS

from vla_gym.errors import VLAZooError
from zoo.cli.acting import given_settings
from zoo.cli.arguments import OneLineParser, key_values
from zoo.config.run_config import known_settings
from zoo.config.settings import check_fields

COMMANDS = {name for name in PROGRAMS if name != "zoo.__main__"}
"""Those with flags of their own; `python -m zoo` hands all of its on."""
MESSAGES = [message for name, source in SOURCES.items() for message in messages(name, source)]
ROLLOUTS = ("zoo.evaluate", "zoo.enjoy", "zoo.record_video", "zoo.collect")
TRAINING = ("zoo.train", "zoo.plan", "zoo.optimize")
"""zoo.optimize takes the flags of zoo.train behind `--`."""
FOREIGN = {
    *("--num_processes", "--config_file", "--cpu", "--logdir"),  # accelerate, tensorboard
    *("--short", "--show-toplevel"),  # git
    *("--no-deps", "--upgrade", "--index-url", "--help", "--version", "--yes"),  # pip, argparse, apt-get
    *("--socket", "--memory"),  # of a worker process, which this package starts itself
}
"""Flags of other programs."""
SHOWN_BY: dict[str, tuple[str, ...]] = {
    "vla_gym.workers.process_pool": (),
    "vla_policies.recognition": (*TRAINING, "zoo.sft", "zoo.serve", *ROLLOUTS),
    "zoo.algorithms.learner:_shard": TRAINING,
    "zoo.cli.acting": ROLLOUTS,
    "zoo.cli.agent": ROLLOUTS,
    "zoo.cli.arguments:key_values": ("zoo.train", "zoo.sft", *ROLLOUTS),
    "zoo.cli.run_choice": ROLLOUTS[:3],
    "zoo.cli.served_agent": ROLLOUTS,
    "zoo.compare:_flags_of": (),  # flags of an evaluation that it puts together
    "zoo.cli.follow_flags": TRAINING,
    "zoo.cli.run_flags:resolve_resumed_finetuning": ("zoo.sft",),
    "zoo.config.batch_plan:check_dealing": ("zoo.sft",),
    "zoo.config.batch_plan:check_division": TRAINING,
    "zoo.config.evaluation_options:check_same_robot": (*TRAINING, "zoo.sft"),
    "zoo.config.gym_packages": (*TRAINING, "zoo.sft", "zoo.doctor", *ROLLOUTS),
    "zoo.config.run_config:check_arithmetic": (*TRAINING, "zoo.sft", *ROLLOUTS),
    "zoo.config.tracking": TRAINING,
    "zoo.distributed.placement": TRAINING,
    "zoo.evaluation.evaluator:tasks_of": (*TRAINING, "zoo.sft"),
    "zoo.evaluation.statistics:compare": ("zoo.compare",),
    "zoo.evaluation.statistics:first_rounds": ("zoo.compare",),
    "zoo.hub.download:remote_resume_point": TRAINING,
    "zoo.runs.lookup:check_command": (*TRAINING, "zoo.sft"),
    "zoo.runs.lookup:find_resume_point": (*TRAINING, "zoo.sft"),
    "zoo.runs.lookup:policy_folder": ROLLOUTS,
    "zoo.runs.trackers": TRAINING,
    "zoo.serving.access:server_tls": ("zoo.serve",),
    "zoo.serving.access:check_address": ("zoo.serve",),
    "zoo.serving.access:read_token": (*ROLLOUTS, "zoo.compare", "zoo.serve"),
    "zoo.serving.address": (*ROLLOUTS, "zoo.compare"),
    "zoo.serving.client": (*ROLLOUTS, "zoo.compare"),
    "zoo.serving.declaration:check_environment": (*ROLLOUTS, "zoo.compare"),
    "zoo.training.setup:make_model": TRAINING,
}
"""Module, or one of its functions -> the commands that show its messages: each of them takes what these advise. Of
other modules' advice it is asked that some command takes it that imports them, directly or not."""


def parser_of(command: str) -> OneLineParser:
    """The command's parser; `prog` names it."""
    found: OneLineParser = import_module(command).parser()
    return found


def reached() -> dict[str, set[str]]:
    """Module -> the commands that import it, directly or not: those that may show its messages."""
    below: dict[str, set[str]] = {}
    for arrow in ARROWS:
        below.setdefault(arrow.source, set()).add(arrow.target)
    found: dict[str, set[str]] = {}
    for command in COMMANDS:
        seen, todo = {command}, [command]
        while todo:
            for target in below.get(todo.pop(), set()) - seen:
                seen.add(target)
                todo.append(target)
        for module in seen:
            found.setdefault(module, set()).add(command)
    return found


REACHED = reached()


def named() -> Iterator[tuple[Message, str, list[str]]]:
    """Messages that name a command, with the command and the words behind it."""
    for message in MESSAGES:
        for name, words in command_lines(message.text):
            if f"zoo.{name}" in COMMANDS:
                yield message, f"zoo.{name}", words


def told(message: Message) -> tuple[str, ...] | None:
    """The commands that show a message, where the table says."""
    return SHOWN_BY.get(f"{message.module}:{message.function}", SHOWN_BY.get(message.module))


def showing(message: Message) -> set[str]:
    """The commands that may show a message."""
    commands = told(message)
    return REACHED.get(message.module, set()) if commands is None else set(commands)


def options_of(command: str) -> set[str]:
    """The flags of a command."""
    own = set(parser_of(command)._option_string_actions)
    return own | options_of("zoo.train") if command == "zoo.optimize" else own


OPTIONS = {command: options_of(command) for command in COMMANDS}


def refused(message: Message) -> Iterator[str]:
    """The flags of a message that a command lacks: one that it names, else one that shows it."""
    commands = {f"zoo.{name}" for name, _ in command_lines(message.text)} & COMMANDS
    for flag in flags(message.text):
        if flag in FOREIGN or any(flag in OPTIONS[name] for name in commands):
            continue
        lacking = sorted(name for name in showing(message) if flag not in OPTIONS[name])
        if lacking and (told(message) is not None or len(lacking) == len(showing(message))):
            yield f"{', '.join(lacking)}: no {flag}: {message}"


def check_settings_of(message: Message) -> None:
    """Raise for values of `-params` in a message that a command refuses: one that it names, else one that shows it."""
    values = [value for value in settings(message.text) if HOLE not in value]
    named = {f"zoo.{name}" for name, _ in command_lines(message.text)} & COMMANDS
    for command in named or set(told(message) or ()) or showing(message) & {"zoo.evaluate", "zoo.train"}:
        if command in ROLLOUTS:
            given_settings(values)
        elif command in TRAINING:
            check_fields({**known_settings("grpo"), **known_settings("ppo")}, key_values(values), "-params")


@pytest.mark.parametrize(("message", "command", "words"), [pytest.param(*one, id=str(one[0])[:90]) for one in named()])
def test_a_command_line_in_a_message_is_one(message: Message, command: str, words: list[str]) -> None:
    parser = parser_of(command)
    line = taken(parser, words)
    if line and "..." not in line:
        parser.parse(line)


def test_every_flag_in_a_message_is_one_of_each_command_that_shows_it() -> None:
    assert [line for message in MESSAGES for line in refused(message)] == []


def test_every_setting_in_a_message_is_taken_by_each_command_that_shows_it() -> None:
    quoting = [message for message in MESSAGES if settings(message.text)]
    assert len(quoting) >= 5
    for message in quoting:
        check_settings_of(message)


def test_the_table_names_what_is_there() -> None:
    places = {message.module for message in MESSAGES} | {f"{m.module}:{m.function}" for m in MESSAGES}
    assert [place for place in SHOWN_BY if place not in places] == []
    assert {command for commands in SHOWN_BY.values() for command in commands} <= COMMANDS


def test_the_guards_can_fail() -> None:
    def said(text: str, module: str = "zoo.evaluate", function: str = "run") -> Message:
        return Message(module, function, 1, text)

    assert list(refused(said("leave --stochastic out, or --rounds 7 in"))) == []
    assert len(list(refused(said("give it with --save-freq 7")))) == 1
    (wrong,) = refused(said("resume with -i 7, or try --unnorm-key 7", "zoo.train"))
    assert wrong.startswith("zoo.optimize, zoo.plan, zoo.train")
    (wrong,) = refused(said("try --load-best", "zoo.evaluation.statistics", "compare"))
    assert wrong.startswith("zoo.compare: no --load-best")
    assert list(refused(said("python -m zoo.sft --dataset 7", "zoo.collect"))) == []
    for params in ("'policy_kwargs:{heads: l1}'", "lerning_rate:1", "'policy_kwargs:{value_lr: 1.0}'"):
        with pytest.raises(VLAZooError):
            check_settings_of(said(f"open it with -params {params}"))
    check_settings_of(said("open it with -params 'policy_kwargs:{backbone_kwargs: {head: l1}}'"))
    (one,) = messages("zoo.x", "def f(a):\n    'doc'\n    raise E(f'go on with: python -m zoo.train{a} -i {a} -n {a}')")
    assert (one.function, one.text) == ("f", "go on with: python -m zoo.train -i 7 -n 7")
    assert list(command_lines(one.text)) == [("train", ["-i", "7", "-n", "7"])]
    assert list(command_lines("write one with: python -m zoo.evaluate -i RUN -o 7; or not")) == [
        ("evaluate", ["-i", "RUN", "-o", "7"])
    ]
    assert taken(parser_of("zoo.train"), ["--env", "7", "on", "--nothing"]) == ["--env", "7"]
    with pytest.raises(LookupError, match=r"zoo\.train has no --eval-episode"):
        taken(parser_of("zoo.train"), ["--eval-episode", "7"])
