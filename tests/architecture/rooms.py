"""The rooms of the three packages, lowest first, and the tree as it is."""

from __future__ import annotations

from pathlib import Path

from import_graph import arrows, module_files

ROOT = Path(__file__).parents[2]

ROOMS = {
    "vla_gym": (
        *("errors", "reading", "rotations", "specs", "observation", "simulator", "system", "workers"),
        *("adapters", "registry", "gymnasium_envs", "vector", "make", "single_env", "checks", "video", "plugins"),
    ),
    "vla_policies": (
        *("types", "devices", "checkpoint_io", "conventions", "model_folder"),
        *("actions", "processing", "modules", "graphs", "backbone"),
        *("lora_backbone", "flow_backbone", "vlm_flow"),
        *("nano", "openvla", "pi0", "smolvla"),
        *("registry", "resolver", "loading", "steering", "footprint", "policy"),
    ),
    "zoo": (
        *("yaml_text", "files", "config", "evaluation", "distributed", "runs", "rollout", "hub", "experts"),
        *("demonstrations", "imitation", "algorithms", "off_policy", "training"),
        *("diagnostics", "agents", "serving", "cli"),
    ),
}
"""Package -> its folders and files: a room imports what stands before it. `zoo`'s command modules and each package's
`__init__` stand above all of these."""

FAMILIES = ("nano", "openvla", "pi0", "smolvla")
"""Folders of `vla_policies` that do not import each other."""

MODULES = module_files(ROOT)
SOURCES = {name: path.read_text(encoding="utf-8") for name, path in MODULES.items()}
ARROWS = arrows(SOURCES)
COMMANDS = {
    name for name, path in MODULES.items() if path.parent == ROOT / "zoo" and '__name__ == "__main__"' in SOURCES[name]
}
"""Modules that are run with `python -m zoo.NAME`."""
