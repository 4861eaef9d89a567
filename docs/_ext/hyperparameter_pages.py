"""Every setting with type and default, from the records that check them, and every recipe of `hyperparams/*.yml`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from sphinx.pycode import ModuleAnalyzer
from tables import cell, code, table

from zoo.config.algorithm_configs import GRPOConfig, PPOConfig, SFTConfig
from zoo.config.run_config import EnvOptions, OptimizerOptions, PolicyOptions, RunConfig
from zoo.config.settings import defaults_of

RECORDS = {
    "Every run": RunConfig,
    "PPO": PPOConfig,
    "GRPO": GRPOConfig,
    "Supervised fine-tuning": SFTConfig,
    "The environment": EnvOptions,
    "The policy": PolicyOptions,
    "The optimiser": OptimizerOptions,
}
"""Heading -> the record of its settings."""
NOT_SETTINGS = {"algo_kwargs", "env_options", "entry", "env", "algo"}
FILES = {"ppo": "PPO", "grpo": "GRPO", "agents": "Trained agents"}
"""File of `hyperparams/` -> heading."""


def pages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield (name, Markdown) of the page of settings and of one page per file."""
    yield "hyperparameters/settings.md", settings_page()
    for name, title in FILES.items():
        file = root / "hyperparams" / f"{name}.yml"
        yield f"hyperparameters/{name}.md", recipes_page(title, file.read_text(encoding="utf-8"), file.name)


def settings_page() -> str:
    """Return every setting that `-params` and the YAML files know."""
    text = [
        "# Every setting\n",
        "Written from the records that check them. `-params name:value` and the YAML files take these names; "
        "[algorithms](../../../algorithms.md) explains PPO's and GRPO's at length.\n",
    ]
    for title, record in RECORDS.items():
        text += [f"## {title}\n", table(("setting", "type", "default", "means"), settings(record))]
    return "\n".join(text)


def settings(record: type) -> Iterator[tuple[str, str, str, str]]:
    """Yield (name, type, default, meaning) of a record's fields."""
    defaults = defaults_of(record) if hasattr(record, "__dataclass_fields__") else {}
    for name, (annotation, meaning) in documented_fields(record).items():
        if name not in NOT_SETTINGS:
            default = code(yaml_value(defaults[name])) if name in defaults else ""
            yield code(name), code(annotation), default, cell(meaning)


def documented_fields(record: type) -> dict[str, tuple[str, str]]:
    """Return field -> (annotation, docstring) of a record; what is said of a base class's field holds."""
    found: dict[str, tuple[str, str]] = {}
    for cls in reversed(record.__mro__):
        if cls.__module__.split(".")[0] != "zoo":
            continue
        analyzer = ModuleAnalyzer.for_module(cls.__module__)
        analyzer.analyze()
        for (owner, name), annotation in analyzer.annotations.items():
            if owner == cls.__qualname__ and not annotation.startswith("ClassVar"):
                said = " ".join(analyzer.attr_docs.get((owner, name), []))
                found[name] = (annotation, said or found.get(name, ("", ""))[1])
    return found


def recipes_page(title: str, text: str, file: str) -> str:
    """Return the recipes of one file, a table each; its first comment says what they are."""
    comment = re.match(r"(#.*\n)+", text)
    intro = " ".join(line.strip("# ") for line in comment.group(0).splitlines()) if comment else ""
    parts = [f"# Recipes: {title}\n", f"Written from `hyperparams/{file}`. {intro}\n"]
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
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")
