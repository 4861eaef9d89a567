"""How a policy that is rolled out is opened and acts: flags and `-params`, checked before anything is loaded."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from vla_gym.errors import BadValue
from vla_policies.registry import family_class
from zoo.cli.arguments import flag_of, key_values
from zoo.cli.policy_choice import PolicyChoice
from zoo.config.gym_packages import import_packages_of
from zoo.config.run_config import ENV_OPTIONS, TRAINING_ONLY, PolicyOptions, check_settings, known_settings
from zoo.config.settings import annotations_of, check_fields, unknown_setting
from zoo.evaluation.protocol import EvaluationProtocol
from zoo.hub.download import download_run, is_remote
from zoo.runs.folder import ARGS_FILE, RunFolder
from zoo.runs.lookup import find_run, policy_folder

_OPENING = {"dtype": Literal["auto", "float32", "bfloat16"], "device_map": str, "offload_folder": str}
"""Keyword arguments of `VLAPolicy.from_pretrained` that say where the weights go; a `device_map` may be a mapping."""
OF_LEARNING = ("value_lr", "optimizer_kwargs")
"""Settings of a policy that do not apply where it only acts."""


_TOKENS = "open it with -params 'policy_kwargs:{backbone_kwargs: {head: tokens}}'"
_DRAWN_START = "policy_kwargs:{backbone_kwargs: {eval_noise: random}}"


def open_run(path: str) -> tuple[RunFolder, Path]:
    """Return the run of `-i`, here or on the Hub, and the folder of its policy; imports the packages it needs."""
    if is_remote(path):  # a published run imports nothing unasked
        run = download_run(path)
        return run, policy_folder(str(run.path))
    run = find_run(path)
    import_packages_of(run.path / ARGS_FILE)
    return run, policy_folder(path)


def options_to_act(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trained environment's options, but for those that change nothing where its policy only acts."""
    unused = (*TRAINING_ONLY, "num_workers")
    return {name: value for name, value in options.items() if name not in unused}


def given_settings(params: Sequence[str]) -> dict[str, Any]:
    """Return `-params` of a command that rolls a policy out, checked as those of training.

    They are settings of the environment, and `policy_kwargs`, which may also say where the weights go
    (`dtype`, `device_map`, `offload_folder`). Raises `UnknownName` or `BadValue` for others.
    """
    values = key_values(params)
    policy = values.pop("policy_kwargs", None)
    allowed = [*(name for name in ENV_OPTIONS if name not in TRAINING_ONLY), "policy_kwargs"]
    for name in values:
        if name not in allowed:
            if name not in known_settings("ppo") and name not in OF_LEARNING:
                raise unknown_setting(allowed, name, "-params")
            raise BadValue(
                f"-params {name}: a policy that is rolled out takes settings of the environment and policy_kwargs "
                "only, such as -params 'env_kwargs:{protocol: lerobot}' 'policy_kwargs:{backbone_kwargs: {head: l1}}'"
            )
    given = check_settings("ppo", values, "-params")
    if policy is not None:
        given["policy_kwargs"] = _policy_kwargs(policy)
    return given


def _policy_kwargs(values: Any) -> dict[str, Any]:
    where = "-params: policy_kwargs"
    if not isinstance(values, Mapping):
        return dict(check_settings("ppo", {"policy_kwargs": values}, "-params"))  # raises
    mapped = {"device_map": Mapping[str, Any]} if isinstance(values.get("device_map"), Mapping) else {}
    checked = check_fields({**annotations_of(PolicyOptions), **_OPENING, **mapped}, values, where)
    for name in checked:
        if name in OF_LEARNING:
            raise BadValue(f"{where}: {name} is for training; a policy that is rolled out learns nothing, leave it out")
    return checked


def policy_kwargs_of(args: argparse.Namespace, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `policy_kwargs` of `given_settings`, with the flags that say the same; raises where they disagree."""
    kwargs = dict(given.get("policy_kwargs", {}))
    for name in ("unnorm_key", "temperature", "top_k"):
        flag = getattr(args, name, None)
        if flag is not None and kwargs.setdefault(name, flag) != flag:
            raise BadValue(
                f"{flag_of(name)} {flag} and -params policy_kwargs:{{{name}: {kwargs[name]}}} disagree; leave one out"
            )
    return kwargs


def protocol_of(args: argparse.Namespace, given: Mapping[str, Any], kwargs: Mapping[str, Any]) -> EvaluationProtocol:
    """Return how success is to be measured, by the results of `given_settings` and `policy_kwargs_of`.

    The flags `--temperature` and `--top-k` ask for sampled actions. The same settings in `policy_kwargs` do not: they
    only say how the policy samples, and which actions are nearest the mean.
    """
    drawn = [name for name in ("temperature", "top_k") if getattr(args, name) is not None]
    if drawn and args.deterministic:
        raise BadValue(f"{flag_of(drawn[0])} is of sampled actions, --deterministic takes none; leave one of them out")
    sample = args.stochastic or bool(drawn)
    return EvaluationProtocol(
        sample=sample,
        temperature=kwargs.get("temperature") if sample else None,
        top_k=kwargs.get("top_k") if sample else None,
        rounds=args.rounds or 1,
        start_states=None,
        split=given.get("split"),
        env_kwargs=given.get("env_kwargs", {}),
    )


def check_acting(
    policy: PolicyChoice, protocol: EvaluationProtocol, kwargs: Mapping[str, Any], *, flags: str = "--"
) -> None:
    """Raise `BadValue` where the policy cannot act by the protocol, before its weights are read.

    `flags` is what the flags of the protocol begin with.
    """
    token_settings = [name for name in ("temperature", "top_k", "greedy") if name in kwargs]
    if not (protocol.sample or protocol.rounds > 1 or token_settings):
        return
    draws = family_class(policy.family).draws(policy.model)
    if protocol.sample and not draws.sampled:
        raise BadValue(f"{_one_action(policy)} to sample from; ask for deterministic actions, or {_TOKENS}")
    if token_settings and not draws.tokens:
        raise BadValue(
            f"{token_settings[0]} is of action tokens, and policy '{policy.name}' ({policy.family}) has none; leave "
            f"it out{f', {flags}stochastic samples as in training' if draws.sampled else ''}"
        )
    if protocol.rounds > 1 and not (protocol.sample or draws.deterministic):
        how = ""
        if draws.tokens:
            how = f"; sample with {flags}stochastic or {flags}temperature T"
        elif draws.sampled:
            how = f"; sample with {flags}stochastic, or draw the noise they begin at: -params '{_DRAWN_START}'"
        raise BadValue(
            f"{flags}rounds {protocol.rounds} would play every start state {protocol.rounds} times alike: "
            f"deterministic actions of policy '{policy.name}' ({policy.family}) draw nothing{how}"
        )


def can_sample(policy: PolicyChoice) -> bool:
    """Return whether the policy has a distribution; only OpenVLA-OFT's regression head (`head: l1`) has none."""
    settings = policy.model.get("settings", policy.model)
    return bool(settings.get("head", "tokens") == "tokens")


def check_trainable(policy: PolicyChoice) -> None:
    """Raise `BadValue` for a policy that was opened with a head that nothing can be learned through."""
    if not family_class(policy.family).draws(policy.model).sampled:
        raise BadValue(f"{_one_action(policy)} to train; {_TOKENS}")


def _one_action(policy: PolicyChoice) -> str:
    return (
        f"policy '{policy.name}' acts through its regression head (head: l1), which gives one action and no "
        "distribution"
    )
