"""The checkpoint that a run starts from: its parts, where each is, how large, and whether it fits the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_gym.errors import BadValue
from vla_gym.reading import user_path
from vla_policies.checkpoint_io.hub import OWN_BASE, HubId, cached, endpoint, parse_hub_id, policy_size
from vla_policies.conventions import Conventions, check_compatible, check_lengths
from vla_policies.devices import built_for
from vla_policies.loading import check_checkpoint
from vla_policies.modules.lora_config import read_adapter_config
from vla_policies.registry import FAMILIES, family_class
from vla_policies.resolver import adapter_folder, find_checkpoint, resolve_policy
from zoo.config.batch_plan import benchmark_of, observation_layout
from zoo.config.run_config import RunConfig
from zoo.distributed.fsdp import check_learnable
from zoo.distributed.process_group import check_device

PUBLIC_HUB = "https://huggingface.co"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A folder or repository that the start weights are made of."""

    role: str
    """"weights", "adapter", or "its model"."""
    name: str
    """Folder or Hub id."""
    revision: str | None = None
    """Of the Hub id."""
    folder: Path | None = None
    """Where it is on this machine; None = it has to be fetched."""

    def line(self) -> str:
        """Where it is, or what fetching it takes, for the screen."""
        named = self.name + (f"@{self.revision}" if self.revision else "")
        if self.folder is not None:
            return f"{named}: here, in {self.folder}"
        mirror = "" if endpoint() == PUBLIC_HUB else f" from {endpoint()}"
        try:
            size = f"{policy_size(HubId(self.name, self.revision)) / 1e9:,.3g} GB"
        except BadValue as error:
            size = "of a size not known offline" if "HF_HUB_OFFLINE" in str(error) else f"of unknown size ({error})"
        return f"{named}: not cached, a download{mirror} {size}"


def start_parts(policy: str, kwargs: Mapping[str, Any]) -> list[Part]:
    """Return the parts of a policy's weights, the adapter before its model; none where weights are fresh."""
    if policy in FAMILIES:
        family = family_class(policy)
        if family.published is None or family.wants_fresh(kwargs.get("backbone_kwargs") or {}):
            return []
        return [_part("weights", family.published, kwargs.get("revision"))]
    first = _part("weights", policy, kwargs.get("revision"))
    base, place = kwargs.get("base"), None if first.folder is None else adapter_folder(first.folder)
    if first.folder is not None and place is None:
        return [first]  # a whole model, whatever the recipe's adapter belongs to
    if base is None and place is not None:
        named = read_adapter_config(place)
        base, revision = str(named["base_model_name_or_path"]), named.get("revision")
    else:
        revision = None
    if base in (None, OWN_BASE):
        return [first]
    adapter = Part(role="adapter", name=first.name, revision=first.revision, folder=first.folder)
    return [adapter, _part("its model", base, revision)]


def _part(role: str, name: str, revision: str | None) -> Part:
    path = user_path(name)
    if path.is_dir():
        return Part(role=role, name=name, folder=path)
    hub = parse_hub_id(name)
    if hub is None:
        raise BadValue(f"start weights '{name}' are neither a folder here nor a Hub id such as org/model")
    hub = HubId(hub.repo, revision or hub.revision)
    return Part(role=role, name=hub.repo, revision=hub.revision, folder=cached(hub))


def start_lines(config: RunConfig) -> list[str]:
    """Return what the run starts from and whether it fits, for `--dry-run`, which fetches nothing.

    Raises `BadValue` where the weights are here and do not fit.
    """
    parts = start_parts(config.policy, config.policy_kwargs)
    if not parts:
        return [f"start        fresh weights of {config.policy}"]
    lines = [f"{part.role if index else 'start':<12} {part.line()}" for index, part in enumerate(parts)]
    if any(part.folder is None for part in parts):
        return [*lines, "fits         not known before the weights are here"]
    return [*lines, f"fits         {check_fit(config)}"]


def fetch_start_weights(config: RunConfig) -> None:
    """Fetch what is not here yet, then raise `BadValue` where the weights do not fit the run."""
    parts = start_parts(config.policy, config.policy_kwargs)
    for part in parts:
        if part.folder is None:
            find_checkpoint(part.name, revision=part.revision)
    if parts:
        check_fit(config)


def check_fit(config: RunConfig) -> str:
    """Build the policy on the meta device from the headers of its files, which must be here; say what was compared."""
    kwargs, benchmark = config.policy_kwargs, benchmark_of(config)
    layout = observation_layout(config, benchmark)
    wanted = Conventions(
        cameras=layout.cameras,
        image_size=layout.image_size,
        state_dim=layout.state_dim,
        chunk=config.chunk,
        action_dim=benchmark.action_dim,
        action_spec=benchmark.action_spec,
    )
    ref = resolve_policy(config.policy, kwargs, suite=benchmark.suite, action_spec=benchmark.action_spec)
    ref = ref.reading(wanted=wanted)
    with built_for(check_device(config.device)):
        backbone = check_checkpoint(ref)
    own = ref.conventions
    if missing := [camera for camera in own.cameras if camera not in wanted.cameras]:
        raise BadValue(f"the policy looks at {', '.join(missing)}, which {config.env} gives with wrist_camera: true")
    check_lengths(own.lengths, wanted.lengths)
    check_compatible(benchmark.action_spec, own.action_spec)
    check_learnable(backbone)
    return f"yes, by the tensors' names and shapes and {config.env}'s observations and actions ({ref.family})"
