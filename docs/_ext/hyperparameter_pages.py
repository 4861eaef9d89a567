"""Every setting with type and default, from the records that check them, and every recipe of `hyperparams/*.yml`."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from sphinx.pycode import ModuleAnalyzer
from tables import cell, code, table

from vla_policies.actions.flow import FlowSettings
from vla_policies.nano.config import NanoConfig
from vla_policies.smolvla.config import Learning as SmolVLALearning
from vla_policies.vlm_flow.config import FlowLearning
from zoo.config.algorithm_configs import DSRLConfig, GRPOConfig, PPOConfig, QCConfig, RecapConfig, SFTConfig
from zoo.config.run_config import EnvOptions, OptimizerOptions, PolicyOptions, RunConfig
from zoo.config.settings import Range, annotations_of, defaults_of

RECORDS = {
    "Every run": RunConfig,
    "PPO": PPOConfig,
    "GRPO": GRPOConfig,
    "QC": QCConfig,
    "RECAP": RecapConfig,
    "DSRL": DSRLConfig,
    "Supervised fine-tuning": SFTConfig,
    "The environment": EnvOptions,
    "The policy": PolicyOptions,
    "The optimiser": OptimizerOptions,
}
"""Heading -> the record of its settings."""
BACKBONES = {
    "`nano`, and the trunk of `nano-flow`": NanoConfig,
    "How `nano-flow`, `pi0`, `pi05` and `smolvla` denoise": FlowSettings,
    "What `pi0` and `pi05` train": FlowLearning,
    "What `smolvla` trains": SmolVLALearning,
}
"""Heading -> the record of a model family's `backbone_kwargs`."""
BACKBONES_INTRO = (
    "They stand in `policy_kwargs`: `-params 'policy_kwargs:{backbone_kwargs: {num_steps: 5}}'`. Defaults are those of "
    "fresh weights (of `pi05`: `value_feature: prefix`, `value_hidden: [1024, 512, 256]`); a checkpoint has its own. "
    "`size` chooses fresh weights: `tiny`, `small` (the default) or `base` of `nano` and `nano-flow`, which sets "
    "width, heads, depth and readers; `tiny` or `full` of `pi0`, `pi05` and `smolvla`. "
    "[Models](../../../models.md#settings-of-openvla-and-openvla-oft) has the settings of `openvla` and `openvla-oft`, "
    "[flow policies](../../../flow-policies.md) explains those of flow heads.\n"
)
NOT_SETTINGS = {"algo_kwargs", "env_options", "entry", "env", "algo"}
NAMES = {
    int: "whole number",
    float: "number",
    bool: "true, false",
    str: "text",
    types.NoneType: "null",
    Mapping: "mapping",
    Sequence: "list",
}
"""Python's types in words."""
OFF_POLICY = {"qc": "QC", "recap": "RECAP", "dsrl": "DSRL"}
FILES = {"ppo": "PPO", "grpo": "GRPO", **OFF_POLICY, "agents": "Trained agents"}
"""File of `hyperparams/` -> heading."""
INCLUDED = {"ppo": "PPO", "grpo": "GRPO", **OFF_POLICY, "sft": "Supervised fine-tuning"}
"""Table that a page of the guides includes -> its record's heading."""
HEAD = ("setting", "type", "default", "means")


def pages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield (name, Markdown) of the page of settings, of the tables that guides include, and of one page per file."""
    yield "hyperparameters/settings.md", settings_page()
    for name, title in INCLUDED.items():
        yield f"hyperparameters/parameters/{name}.md", table(HEAD, settings(RECORDS[title]))
    for name, title in FILES.items():
        file = root / "hyperparams" / f"{name}.yml"
        yield f"hyperparameters/{name}.md", recipes_page(title, file.read_text(encoding="utf-8"), file.name)


def settings_page() -> str:
    """Return every setting that `-params` and the YAML files know."""
    text = [
        "# Every setting\n",
        "Written from the records that check them. `-params name:value` and the YAML files take these names; "
        "[PPO](../../../ppo.md), [GRPO](../../../grpo.md) and [what both share](../../../algorithms.md) explain.\n",
    ]
    for title, record in RECORDS.items():
        text += [f"## {title}\n", table(HEAD, settings(record))]
    text += ["## The network: `backbone_kwargs`\n", BACKBONES_INTRO]
    for title, record in BACKBONES.items():
        text += [f"### {title}\n", table(HEAD, settings(record))]
    return "\n".join(text)


def settings(record: type) -> Iterator[tuple[str, str, str, str]]:
    """Yield (name, type, default, meaning) of a record's fields."""
    defaults = defaults_of(record) if hasattr(record, "__dataclass_fields__") else {}
    meanings = documented_fields(record)
    for name, annotation in annotations_of(record).items():
        if name not in NOT_SETTINGS:
            default = code(yaml_value(defaults[name])) if name in defaults else ""
            yield code(name), cell(type_words(annotation)), default, cell(meanings.get(name, ""))


def type_words(annotation: Any) -> str:
    """Return an annotation in words: "whole number, at least 1", "number or schedule", "token, action or chunk"."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        limit = arguments[1]
        return f"{type_words(arguments[0])}{range_words(limit) if isinstance(limit, Range) else f', {limit.words}'}"
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_words(argument) for argument in arguments))
    if origin is Literal:
        return ", ".join(map(str, arguments))
    if origin is tuple and Ellipsis in arguments:
        return f"list of {type_words(arguments[0])}s"
    if origin is tuple:
        return f"{len(arguments)} x {type_words(arguments[0])}"
    if is_dataclass(annotation):
        return "mapping"
    return NAMES.get(origin or annotation) or str(getattr(annotation, "__name__", annotation))


def range_words(allowed: Range) -> str:
    """Return which numbers are allowed, with a leading comma."""
    if allowed.low > -math.inf and allowed.high < math.inf:
        return f", {allowed.low:.12g} to {allowed.high:.12g}"
    ends = ((allowed.low, "at least"), (allowed.above, "above"), (allowed.high, "at most"))
    return "".join(f", {words} {end:.12g}" for end, words in ends if math.isfinite(end))


def documented_fields(record: type) -> dict[str, str]:
    """Return field -> docstring of a record; what is said of a base class's field holds."""
    found: dict[str, str] = {}
    for cls in reversed(record.__mro__):
        if cls.__module__.split(".")[0] in ("zoo", "vla_policies"):
            analyzer = ModuleAnalyzer.for_module(cls.__module__)
            analyzer.analyze()
            docs = {
                name: " ".join(lines) for (owner, name), lines in analyzer.attr_docs.items() if owner == cls.__name__
            }
            found |= docs
    return found


def recipes_page(title: str, text: str, file: str) -> str:
    """Return the recipes of one file, a table each; its first comment says what they are."""
    comment = re.match(r"(#.*\n)+", text)
    intro = " ".join(line.strip("# ") for line in comment.group(0).splitlines()) if comment else ""
    parts = [f"# Recipes: {title}\n", f"Written from `hyperparams/{file}`. {cell(intro)}\n"]
    for key, entry in yaml.safe_load(text).items():
        parts += [f"## {key}\n", f"{cell(entry['source'])}\n" if "source" in entry else ""]
        rows = [(code(name), code(yaml_value(value))) for name, value in flat(entry)]
        parts.append(table(("setting", "value"), rows))
    return "\n".join(parts)


def flat(entry: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (name, value), the keys of nested mappings behind a dot; schedules stay mappings."""
    for name, value in entry.items():
        if name == "source":
            continue
        if isinstance(value, dict) and "schedule" not in value and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def yaml_value(value: object) -> str:
    """Return a value as one would write it in YAML."""
    if not isinstance(value, bool | int | float | str | list | tuple | dict | type(None)):
        return "{}"
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000)
    return text.removesuffix("\n").removesuffix("\n...")
