"""From a policy's name, folder or Hub id to what opens it, and to the recipe's settings that fit it.

Downloads nothing but a Hub id that the user gives; a recipe's own start weights are fetched when a run starts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_gym.errors import BadValue, VLAZooError, shown, unknown_name
from vla_gym.reading import read_json_object, user_path
from vla_policies.checkpoint_io.hub import local_folder, parse_hub_id
from vla_policies.conventions import Conventions
from vla_policies.registry import FAMILIES, family_class
from zoo.config.hyperparams import deep_merge
from zoo.config.settings import yaml_line
from zoo.runs.folder import ADAPTER_CONFIG_FILE, CONFIG_FILE, holds_policy
from zoo.runs.lookup import find_run, of_rounds, policy_folder
from zoo.runs.shipped_agents import local_or_shipped

if TYPE_CHECKING:  # they bring torch
    from vla_policies.backbone import Header
    from vla_policies.checkpoint_folder import Identity

_log = logging.getLogger(__name__)
_LENGTHS = ("state_dim", "action_dim")
_CHOICES = ("family", "unnorm_key", "revision")
"""Settings of a policy that choose among, or within, published checkpoints."""
_HUB_ID = "a Hub id"
StartOf = Callable[[str], Mapping[str, Any]]
"""Family -> the `policy` block (`zoo.config.run_config.StartWeights`) of its recipe; {} = none."""


@dataclass(frozen=True, kw_only=True)
class PolicyChoice:
    """A policy name, resolved; nothing heavy has been loaded for it."""

    name: str
    """As the policy class takes it: a family name, a checkpoint folder or a Hub id."""
    family: str
    """The family whose hyperparameters fit."""
    env_options: Mapping[str, Any]
    """Keyword arguments of `make_vec` that a checkpoint asks for; empty for fresh weights."""
    fixed: Collection[str] | None
    """The `backbone_kwargs` of a hyperparameter entry that a checkpoint fixes, so that they do not apply: all (None) in
    a checkpoint of this package's own layout, `size` in any folder, `lora` in an adapter from elsewhere and for fresh
    weights, which adapt nothing."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """`policy_kwargs` of the recipe's `policy` block, below the user's."""
    takes_any_chunk: bool = False
    """Whether the recipe's chunk is passed on as `backbone_kwargs chunk`, where it is not `chunk`."""
    chunk: int | None = None
    """K that a checkpoint of any chunk takes by itself; None = not known."""
    lengths: Mapping[str, int] = field(default_factory=dict)
    """`state_dim` and `action_dim` of the environment that a checkpoint was made for; empty where any fits."""
    maker: str | None = None
    """Whose program made a published checkpoint that only acts, where that says how it is played."""
    makers_chunk: int | None = None
    """How many actions of a decision that program carries out, where the checkpoint says it."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """The family's own settings: a checkpoint's, or the `backbone_kwargs` of fresh weights."""


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The arguments of `resolve_policy`, beside the name."""

    suite: str | None
    given: Mapping[str, Any]
    """The user's `policy_kwargs`."""
    start_of: StartOf
    action_dim: int | None
    to_act: bool

    @property
    def options(self) -> Mapping[str, Any]:
        """The user's `backbone_kwargs`."""
        return self.given.get("backbone_kwargs") or {}


def resolve_policy(
    name: str,
    *,
    suite: str | None = None,
    settings: Mapping[str, Any] | None = None,
    start_of: StartOf | None = None,
    action_dim: int | None = None,
    to_act: bool = False,
) -> PolicyChoice:
    """Resolve a family name, a checkpoint folder, a run folder (its best policy) or a Hub id (which is downloaded).

    Args:
        name: what the user gave.
        suite: of the environment's tasks; chooses a published checkpoint's statistics of that name.
        settings: the user's `policy_kwargs`, which say how a published checkpoint is read.
        start_of: the recipe's `policy` block, which says it where the user does not.
        action_dim: numbers in an action of the environment. The block's `action_dims` apply where the checkpoint has
            another number of them.
        to_act: read a published checkpoint as its makers trained it.

    Raises `UnknownName` or `BadValue` for a name that means nothing, and for settings that do not fit it.
    """
    asked = _Asked(
        suite=suite,
        given=settings or {},
        start_of=start_of or (lambda _: {}),
        action_dim=action_dim,
        to_act=to_act,
    )
    if not name.strip():
        raise unknown_name("policy", name, FAMILIES)
    if name in FAMILIES:
        block, fresh = asked.start_of(name), _wants_fresh(name, asked.options)
        if "checkpoint" not in block or fresh:
            _check_family_choices(name, asked)
            fixed = ("lora",) if fresh else ()
            return PolicyChoice(name=name, family=name, env_options={}, fixed=fixed, model=asked.options)
        return _start_choice(name, block, asked)
    folder = policy_of(name)
    if folder.is_dir():
        return _of_folder(folder, str(folder), asked)
    if "/" not in name:
        raise unknown_name("policy", name, FAMILIES)
    from vla_policies.checkpoint_folder import find_checkpoint

    found = find_checkpoint(name, revision=asked.given.get("revision"))
    assert found is not None, "a family was handled above"
    # A Hub id is of use to others, the path of its copy here is not.
    return _of_folder(found, name, asked)


def policy_of(name: str) -> Path:
    """Return the folder that a name means, of a run its best policy; it is none where the name means no folder here."""
    folder = local_or_shipped(name)
    return policy_folder(name) if (folder / CONFIG_FILE).is_file() and not holds_policy(folder) else folder


def own_family(name: str) -> str | None:
    """Return the family that a name is, or that a folder in this package's layout says; None of others."""
    if name in FAMILIES:
        return name
    folder = policy_of(name)
    stored = _own_config(folder) if folder.is_dir() else None
    return None if stored is None else str(stored["family"])


# Start weights of a recipe --------------------------------------------------------------------------------


def _start_choice(family: str, block: Mapping[str, Any], asked: _Asked) -> PolicyChoice:
    """The recipe's own checkpoint: read where it is here, else taken as the recipe says it is."""
    checkpoint = str(block["checkpoint"])
    settings = _block_settings(family, block)
    if user_path(checkpoint).is_dir():
        settings.pop("revision", None)
    elif parse_hub_id(checkpoint) is None:
        raise BadValue(f"policy checkpoint '{checkpoint}' is neither a folder here nor a Hub id such as org/model")
    found = local_folder(checkpoint, settings.get("revision"))
    merged = deep_merge(settings, asked.given)
    if found is not None and not _awaits_model(found, merged.get("base")):
        return _of_folder(found, checkpoint, replace(asked, start_of=lambda _: block), settings)
    return PolicyChoice(
        name=checkpoint,
        family=family,
        env_options={},
        fixed=("lora",) if "base" in block else (),
        settings=settings,
        takes_any_chunk=family_class(family).takes_any_chunk,
        model=merged.get("backbone_kwargs", {}),
    )


def _awaits_model(folder: Path, base: str | None) -> bool:
    """Whether the folder holds an adapter alone whose model is a Hub id that has to be fetched."""
    from vla_policies.checkpoint_folder import adapter_folder

    if base is None or adapter_folder(folder) is None:
        return False
    return parse_hub_id(base) is not None and local_folder(base) is None


def _block_settings(family: str, block: Mapping[str, Any]) -> dict[str, Any]:
    """The block as `policy_kwargs`."""
    settings = {name: block[name] for name in ("unnorm_key", "revision", "base") if name in block}
    options = {**block.get("options", {})}
    return {"family": family, **settings, **({"backbone_kwargs": options} if options else {})}


def _wants_fresh(family: str, options: Mapping[str, Any]) -> bool:
    return bool(options) and family_class(family).wants_fresh(options)  # the class brings torch


# Folders --------------------------------------------------------------------------------------------------


def _of_folder(folder: Path, name: str, asked: _Asked, settings: Mapping[str, Any] | None = None) -> PolicyChoice:
    """Return what a folder holds; `settings` are the recipe's, given where the recipe names this checkpoint."""
    stored = _own_config(folder)
    if stored is not None:
        return _own_choice(folder, name, stored, asked.given)
    from vla_policies.checkpoint_folder import identify
    from vla_policies.model_folder import Request

    named = deep_merge(settings or {}, asked.given)
    identity = identify(folder, Request(family=named.get("family"), base=named.get("base")))
    cls = family_class(identity.family)
    if settings is None:
        block = _open_block(identity, asked)
        settings = _fitting_block(name, identity.family, block, identity.data_sets, asked.given)
    merged = deep_merge(settings, asked.given)

    options = merged.get("backbone_kwargs") or {}
    if "action_dims" not in asked.options and asked.action_dim is not None:
        options = _fitting_action_dims(folder, identity.family, merged, asked)
        settings = _with_options(settings, {key: options[key] for key in options if key not in asked.options})
    header = _header(folder, merged, options, asked)
    conventions = header.conventions
    any_chunk = identity.published and cls.takes_any_chunk
    maker = identity.maker if identity.published and asked.to_act else None
    return PolicyChoice(
        name=name,
        family=identity.family,
        env_options={} if cls.fits_environment else _env_options_of(conventions, any_chunk=any_chunk),
        fixed=_fixed_options(folder, identity),
        settings=settings,
        takes_any_chunk=any_chunk,
        chunk=conventions.chunk if any_chunk else None,
        lengths={} if cls.fits_environment else {"action_dim": conventions.action_dim},
        maker=maker,
        makers_chunk=conventions.chunk if maker == "lerobot" else None,
        model=header.model,
    )


def _header(folder: Path, settings: Mapping[str, Any], options: Mapping[str, Any], asked: _Asked) -> Header:
    """Read the folder without its weights, by `policy_kwargs` whose `backbone_kwargs` are `options`."""
    from vla_policies.checkpoint_folder import as_trained, read_header
    from vla_policies.model_folder import Request

    request = Request(
        family=settings.get("family"),
        unnorm_key=settings.get("unnorm_key"),
        suite=asked.suite,
        options=options,
        base=settings.get("base"),
    )
    return read_header(folder, as_trained(folder, request) if asked.to_act else request)


def _fitting_action_dims(folder: Path, family: str, settings: Mapping[str, Any], asked: _Asked) -> Mapping[str, Any]:
    """The `backbone_kwargs`, with `action_dims` only where an action has another length than the environment's."""
    options = settings.get("backbone_kwargs") or {}
    whole = {key: value for key, value in options.items() if key != "action_dims"}
    numbers = _header(folder, settings, whole, asked).conventions.action_dim
    dims = options.get("action_dims") or asked.start_of(family).get("options", {}).get("action_dims")
    return whole if dims is None or numbers == asked.action_dim else {**whole, "action_dims": list(dims)}


def _env_options_of(conventions: Conventions, *, any_chunk: bool) -> dict[str, Any]:
    """Keyword arguments of `make_vec` that a checkpoint of fixed conventions asks for."""
    options: dict[str, Any] = {"wrist_camera": "wrist_image" in conventions.cameras}
    if conventions.state_dim:
        options["state"] = True
    if not any_chunk:
        options["chunk"] = conventions.chunk
    return options


def _fixed_options(folder: Path, identity: Identity) -> tuple[str, ...] | None:
    """See `PolicyChoice.fixed`."""
    from vla_policies.checkpoint_folder import adapter_folder

    if adapter_folder(folder) is None:
        return ("size",)
    # Of an adapter of this package its own file says how it was trained.
    return ("lora", "size") if identity.published else None


def _open_block(identity: Identity, asked: _Asked) -> dict[str, Any]:
    """The recipe's block without what the checkpoint's own files say; {} where they say all.

    A regression head comes from openvla-oft's own fine-tuning, which recipes of RL do not start from.
    """
    if not identity.published or identity.regresses or (asked.to_act and identity.maker == "lerobot"):
        return {}
    block = asked.start_of(identity.family)
    options = {key: value for key, value in block.get("options", {}).items() if key not in identity.stated}
    return {**block, "options": options}


def _fitting_block(
    name: str, family: str, block: Mapping[str, Any], data_sets: Collection[str], given: Mapping[str, Any]
) -> dict[str, Any]:
    """The block's settings where the checkpoint has its data set's statistics and the user chooses no other.

    A warning says where it lacks them.
    """
    key = block.get("unnorm_key")
    if key is None or given.get("unnorm_key", key) != key:
        return {}
    if key not in data_sets:
        if data_sets and block.get("options"):
            _log.warning(
                f"'{name}' has no action statistics of {key}, which the recipe's start weights have; how those are "
                f"read is left out (backbone_kwargs {yaml_line(block['options'])})"
            )
        return {}
    settings = _block_settings(family, block)
    return {name: settings[name] for name in ("unnorm_key", "backbone_kwargs") if name in settings}


def _with_options(settings: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe's settings with these `backbone_kwargs` instead of its own."""
    rest = {key: value for key, value in settings.items() if key != "backbone_kwargs"}
    return {**rest, **({"backbone_kwargs": options} if options else {})}


def _own_choice(folder: Path, name: str, stored: Mapping[str, Any], given: Mapping[str, Any]) -> PolicyChoice:
    """A folder in this package's layout."""
    family, conventions = str(stored["family"]), stored["conventions"]
    if family not in FAMILIES:
        raise unknown_name(f"policy family (in {folder / 'config.json'})", family, FAMILIES)
    _check_choices(name, family, given, what="a folder" if local_or_shipped(name).is_dir() else _HUB_ID)
    return PolicyChoice(
        name=name,
        family=family,
        env_options={
            "chunk": conventions["chunk"],
            "wrist_camera": "wrist_image" in conventions["cameras"],
            **_rendered(folder),
        },
        fixed=None,
        lengths={key: conventions[key] for key in _LENGTHS if key in conventions},
        model=stored.get("model", {}),
    )


def _rendered(folder: Path) -> dict[str, int]:
    """Return the `image_size` at which the run that the folder lies in rendered; {} where it says none.

    A picture rendered larger and made smaller is not the one that the policy has learned to read.
    """
    with suppress(VLAZooError):  # a folder of no run
        options = find_run(str(folder)).config().env_options
        return {name: options[name] for name in ("image_size",) if name in options}
    return {}


def _own_config(folder: Path) -> Mapping[str, Any] | None:
    """Return `config.json`, checked, of a folder in this package's layout; None of others."""
    file = folder / "config.json"
    others = (f"{place}{name}" for place in ("", "lora_adapter/") for name in ("*.safetensors", ADAPTER_CONFIG_FILE))
    if not file.is_file() and any(any(folder.glob(other)) for other in others):
        return None
    if not file.exists():
        raise BadValue(of_rounds(folder) or f"'{folder}' holds no policy: it has neither config.json nor weights")
    try:
        stored = read_json_object(file)
        if "family" not in stored and {"model_type", "type", "action_horizon"} & set(stored):
            return None
        _ = stored["family"], stored["conventions"]["cameras"], stored["conventions"]["chunk"]
        if not isinstance(stored.get("model", {}), Mapping):
            raise TypeError(f"its model is {shown(stored['model'])}, not an object")
    except (ValueError, LookupError, TypeError) as error:
        raise BadValue(
            f"policy folder '{folder}' has no readable config.json with 'family' and 'conventions': "
            f"{error if isinstance(error, BadValue) else shown(error)}"
        ) from error
    found: Mapping[str, Any] = stored
    return found


# Choices ----------------------------------------------------------------------------------------------------


def _check_family_choices(name: str, asked: _Asked) -> None:
    """Raise for settings that choose within a checkpoint if the family's name stands for fresh weights."""
    given = asked.given
    if any(given.get(key) is not None for key in _CHOICES):  # the class brings torch
        fresh = family_class(name).wants_fresh(asked.options)
        _check_choices(name, name, given if fresh else {"family": given.get("family")}, what="fresh weights")


def _check_choices(name: str, family: str, given: Mapping[str, Any], *, what: str) -> None:
    """Raise for another family than it is, and for statistics and revisions where `name` has none."""
    wanted, key, revision = (given.get(choice) for choice in _CHOICES)
    if wanted is not None and family_class(wanted).family != family:
        raise BadValue(f"policy '{name}' is of family '{family}', got family='{wanted}'; leave family out")
    if key is not None:
        raise BadValue(
            f"policy '{name}' ({what}) has no action statistics to choose from, got unnorm_key='{key}'; leave it out"
        )
    if revision is not None and what != _HUB_ID:
        raise BadValue(f"policy '{name}' is {what}, only Hub ids have revisions, got revision='{revision}'")
