"""The policy that a run starts from: where its parts are, how large, and whether it fits the run."""

from __future__ import annotations

from pathlib import Path

from vla_gym.errors import BadValue
from vla_gym.reading import user_path
from vla_policies.checkpoint_io.hub import OWN_BASE, HubId, cached, endpoint, parse_hub_id, policy_size
from vla_policies.devices import built_for
from vla_policies.loading import check_checkpoint
from vla_policies.registry import FAMILIES
from vla_policies.resolver import PolicyRef
from zoo.config.run_config import RunConfig, env_conventions
from zoo.config.settings import Settings
from zoo.distributed.fsdp import check_learnable
from zoo.distributed.process_group import check_device
from zoo.runs.evaluations import policy_record

PUBLIC_HUB = "https://huggingface.co"


def start_lines(config: RunConfig, policy: PolicyRef) -> list[str]:
    """Return what the run starts from and whether it fits, for `--dry-run`, which fetches nothing.

    Raises `BadValue` where the weights are here and do not fit.
    """
    if policy.fresh:
        return [f"start        fresh weights of {policy.family}"]
    name = policy.backbone_class.published if policy.name in FAMILIES else policy.name
    assert name is not None
    adapter, base = policy.adapter, policy.request.base
    if policy.folder is not None:
        lines = [_part("start", name, policy.revision, policy.folder)]
        if adapter is not None and policy.model is not None and adapter.base_name != OWN_BASE:
            lines.append(_part("its model", adapter.base_name, adapter.revision, policy.model.folder))
        return [*lines, f"fits         {check_fit(config, policy)}"]
    lines = [_part("start", name, policy.revision)]
    if base not in (None, OWN_BASE):
        lines.append(_part("its model", base))
    return [*lines, "fits         not known before the weights are here"]


def _part(label: str, name: str, revision: str | None = None, folder: Path | None = None) -> str:
    """Where a folder or Hub id is, or what fetching it takes."""
    if user_path(name).is_dir():
        return f"{label:<12} {name}: here, in {user_path(name)}"
    found = parse_hub_id(name)
    if found is None:
        raise BadValue(f"start weights '{name}' are neither a folder here nor a Hub id such as org/model")
    hub = HubId(found.repo, revision or found.revision)
    named = hub.repo + (f"@{hub.revision}" if hub.revision else "")
    if (folder := folder or cached(hub)) is not None:
        return f"{label:<12} {named}: here, in {folder}"
    mirror = "" if endpoint() == PUBLIC_HUB else f" from {endpoint()}"
    try:
        size = f"{policy_size(hub) / 1e9:,.3g} GB"
    except BadValue as error:
        size = "of a size not known offline" if "HF_HUB_OFFLINE" in str(error) else f"of unknown size ({error})"
    return f"{label:<12} {named}: not cached, a download{mirror} {size}"


def start_record(config: RunConfig, policy: PolicyRef) -> Settings:
    """Return how the policy that a run starts from, or goes on with, is read; see `policy_record`."""
    env = env_conventions(config.benchmark, config.env_options)
    here = policy if policy.folder is None else policy.fitted(env, config.benchmark.suite)
    return policy_record(here, env, config.benchmark)


def check_fit(config: RunConfig, policy: PolicyRef) -> str:
    """Build the policy on the meta device from the headers of its files, which must be here; say what was compared.

    Raises `BadValue` where it does not fit the run.
    """
    policy = policy.fitted(env_conventions(config.benchmark, config.env_options), config.benchmark.suite)
    with built_for(check_device(config.device)):
        check_learnable(check_checkpoint(policy))
    return f"yes, by the tensors' names and shapes and {config.env}'s observations and actions ({policy.family})"
