"""From a policy's name, folder or Hub id to the recipe that fits it; downloads nothing but a Hub id."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue, shown, unknown_name
from vla_gym.reading import read_json_object
from vla_gym.registry import find_benchmark
from zoo.runs.shipped_agents import local_or_shipped

_LENGTHS = ("state_dim", "action_dim")
_CHOICES = ("family", "unnorm_key", "revision")
"""Settings of a policy that choose among, or within, published checkpoints."""
_HUB_ID = "a Hub id"


@dataclass(frozen=True, kw_only=True)
class PolicyChoice:
    """A policy name, resolved; nothing heavy has been loaded for it."""

    name: str
    """As the policy class takes it: a family name, or a checkpoint folder."""
    family: str
    """The family whose hyperparameters fit."""
    env_options: Mapping[str, Any]
    """Keyword arguments of `make_vec` that a checkpoint asks for; empty for fresh weights."""
    fixed: Collection[str] | None
    """The `backbone_kwargs` of a hyperparameter entry that a checkpoint fixes, so that they do not apply: all (None) in
    a checkpoint of this package, `lora` in an adapter from elsewhere."""
    lengths: Mapping[str, int] = field(default_factory=dict)
    """`state_dim` and `action_dim` of the environment that this package's checkpoint was made for; empty for others."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """The family's own settings: a checkpoint's, or the `backbone_kwargs` of fresh weights."""


def resolve_policy(
    name: str, *, suite: str | None = None, settings: Mapping[str, Any] | None = None, to_act: bool = False
) -> PolicyChoice:
    """Resolve a family name, a checkpoint folder or a Hub id (which is downloaded).

    `suite` and `settings` (the user's `policy_kwargs`) choose between the ways to read a published checkpoint; with
    `to_act` it is read as its makers trained it.
    Raises `UnknownName` or `BadValue` for what is none of them.
    """
    from vla_policies.registry import FAMILIES, family_class

    given = settings or {}
    if not name.strip():
        raise unknown_name("policy", name, FAMILIES)
    if name in FAMILIES:
        _check_family_choices(name, given)
        return PolicyChoice(name=name, family=name, env_options={}, fixed=(), model=given.get("backbone_kwargs") or {})
    folder = local_or_shipped(name)
    if not folder.is_dir():
        if "/" not in name:
            raise unknown_name("policy", name, FAMILIES)
        from vla_policies.loading import find_checkpoint

        found = find_checkpoint(name, revision=given.get("revision"))
        assert found is not None, "a family was handled above"
        folder = found
    stored = _read_config(folder)
    lengths: Mapping[str, int] = {}
    if "family" in stored:
        family, fits, model = str(stored["family"]), False, stored.get("model", {})
        reads_state = False  # an agent of this package says so in its run's options
        cameras, chunk = stored["conventions"]["cameras"], stored["conventions"]["chunk"]
        lengths = {key: stored["conventions"][key] for key in _LENGTHS if key in stored["conventions"]}
        if family not in FAMILIES:
            raise unknown_name(f"policy family (in {folder / 'config.json'})", family, FAMILIES)
        _check_choices(name, family, given, what="a folder" if local_or_shipped(name).is_dir() else _HUB_ID)
    else:
        from vla_policies.backbone import Request
        from vla_policies.loading import as_trained, read_header

        request = Request(
            family=given.get("family"),
            unnorm_key=given.get("unnorm_key"),
            suite=suite,
            options=given.get("backbone_kwargs") or {},
        )
        header = read_header(folder, as_trained(folder, request) if to_act else request)
        family, cameras, chunk = header.family, header.conventions.cameras, header.conventions.chunk
        fits, model = family_class(family).fits_environment, header.model
        reads_state = bool(header.conventions.state_dim)
    return PolicyChoice(
        # A Hub id is of use to others, the path of its copy here is not.
        name=str(folder) if local_or_shipped(name).is_dir() else name,
        family=family,
        env_options={}
        if fits
        else {"chunk": chunk, "wrist_camera": "wrist_image" in cameras, **({"state": True} if reads_state else {})},
        fixed=_fixed(folder, stored),
        lengths=lengths,
        model=model,
    )


def _fixed(folder: Path, stored: Mapping[str, Any]) -> Collection[str] | None:
    if stored:
        return None if "family" in stored else ()
    # An adapter: the package's own file says how it was trained.
    return None if (folder / "vla_zoo.json").is_file() else ("lora",)


def _check_family_choices(name: str, given: Mapping[str, Any]) -> None:
    """Raise for settings that choose within a checkpoint if the family's name stands for fresh weights."""
    from vla_policies.registry import family_class

    if any(given.get(key) is not None for key in _CHOICES):  # the class brings torch
        family = family_class(name)
        fresh = family.published is None or family.wants_fresh(given.get("backbone_kwargs") or {})
        _check_choices(name, name, given if fresh else {"family": given.get("family")}, what="fresh weights")


def _check_choices(name: str, family: str, given: Mapping[str, Any], *, what: str) -> None:
    """Raise for another family than it is, and for statistics and revisions where `name` has none."""
    from vla_policies.registry import family_class

    wanted, key, revision = (given.get(choice) for choice in _CHOICES)
    if wanted is not None and family_class(wanted).family != family:
        raise BadValue(f"policy '{name}' is of family '{family}', got family='{wanted}'; leave family out")
    if key is not None:
        raise BadValue(
            f"policy '{name}' ({what}) has no action statistics to choose from, got unnorm_key='{key}'; leave it out"
        )
    if revision is not None and what != _HUB_ID:
        raise BadValue(f"policy '{name}' is {what}, only Hub ids have revisions, got revision='{revision}'")


def _read_config(folder: Path) -> Mapping[str, Any]:
    """Return `config.json` of a policy's folder, checked if it has this package's layout; {} of an adapter's."""
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        return {}
    try:
        stored = read_json_object(folder / "config.json")
        if "family" in stored or not {"model_type", "type", "action_horizon"} & set(stored):
            _ = stored["family"], stored["conventions"]["cameras"], stored["conventions"]["chunk"]
    except (ValueError, LookupError, TypeError) as error:
        raise BadValue(
            f"policy folder '{folder}' has no readable config.json with 'family' and 'conventions': "
            f"{error if isinstance(error, BadValue) else shown(error)}"
        ) from error
    found: Mapping[str, Any] = stored
    return found


def suite_of(env: str) -> str | None:
    """Return the one suite of the environment's tasks; None for several."""
    suites = {task.suite for task in find_benchmark(env).tasks}
    return suites.pop() if len(suites) == 1 else None


def over_recipe(recipe: Mapping[str, Any], policy: PolicyChoice, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's settings as they fit the policy, with the user's over them."""
    tuned = {**recipe, **policy.env_options}
    fresh = dict(tuned.get("policy_kwargs", {}))
    options = fresh.pop("backbone_kwargs", {})
    if policy.fixed is not None:
        options = {name: value for name, value in options.items() if name not in policy.fixed}
        fresh |= {"backbone_kwargs": options} if options else {}
    tuned["policy_kwargs"] = fresh
    return _merge(tuned, overrides)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge with `above` winning; of two mappings (policy_kwargs, env_kwargs) the keys, one level deep."""
    merged = dict(below)
    for name, value in above.items():
        if name in ("policy_kwargs", "env_kwargs"):
            value = {**merged.get(name, {}), **value}
        merged[name] = value
    return merged
