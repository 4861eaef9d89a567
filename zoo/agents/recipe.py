"""A policy with its recipe: the settings by which it is opened and trained or played."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

from vla_gym.errors import BadValue
from vla_gym.reading import user_path
from vla_gym.specs import Benchmark
from vla_policies.registry import FAMILIES, family_class
from vla_policies.resolver import PolicyRef, parse_hub_id, resolve_policy
from zoo.config.evaluation import EvaluationProtocol
from zoo.config.hyperparams import acting_recipe, deep_merge
from zoo.config.settings import Options, Settings, yaml_line
from zoo.runs.lookup import policy_path, trained_image_size

StartOf = Callable[[str], Options]
"""Family -> the `policy` block (`zoo.config.run_config.StartWeights`) of its recipe; {} = none."""
_NESTED = ("policy", "policy_kwargs", "env_kwargs")
"""Settings of which the user's keys stand beside the recipe's."""
_PROGRAMS: Mapping[str, Mapping[str, Options]] = {
    "lerobot": {
        "LIBERO": {"env_kwargs": {"protocol": "lerobot"}},
        "MetaWorld": {"env_kwargs": {"protocol": "lerobot"}},
    },
    "openpi": {"LIBERO": {"chunk": 5, "env_kwargs": {"protocol": "openvla-oft"}}},
}
"""Maker -> benchmark -> what its own evaluation sets: lerobot 0.4.4 envs/, and openpi 15a9616a examples/libero/main.py,
whose horizons and settle steps are those of OpenVLA-OFT."""
_TOKENS = "open it with -params 'policy_kwargs:{backbone_kwargs: {head: tokens}}'"
_DRAWN_START = "policy_kwargs:{backbone_kwargs: {eval_noise: random}}"


# The policy -----------------------------------------------------------------------------------------------


def find_policy(
    name: str,
    settings: Options,
    start_of: StartOf = lambda _: {},
    *,
    benchmark: Benchmark | None = None,
    trained: bool = False,
    to_act: bool = False,
) -> tuple[PolicyRef, Settings]:
    """Return the policy that a name means, and the `policy_kwargs` of its recipe, which stand below the user's.

    Fetches a Hub id that the user gives; a recipe's own start weights are fetched when a run starts.

    Args:
        name: family, checkpoint folder, run folder (its best policy) or Hub id.
        settings: the user's `policy_kwargs`.
        start_of: the recipe's start weights, which say how a checkpoint is read where the user does not.
        benchmark: of the environment. Its suite chooses a checkpoint's statistics of that name; the `action_dims` of
            the recipe apply where the checkpoint's actions have another length than the environment's.
        trained: the policy was trained in this environment, so that its actions have its length.
        to_act: read a published checkpoint as its makers trained it.

    Raises `UnknownName` or `BadValue` for a name that means nothing, and for settings that do not fit it.
    """
    suite = None if benchmark is None else benchmark.suite
    options: Options = settings.get("backbone_kwargs") or {}
    own: Settings = {}
    if name not in FAMILIES:
        # A Hub id is of use to others, the path of its copy here is not.
        ref = resolve_policy(policy_path(name), settings, suite=suite, to_act=to_act)
        if not ref.own_layout:
            own = _fitting_block(ref, _open_block(ref, start_of), settings)
    else:
        block = start_of(name)
        if "checkpoint" not in block or (options and family_class(name).wants_fresh(options)):
            return resolve_policy(name, settings, suite=suite, to_act=to_act, offline=True), {}
        checkpoint, own = str(block["checkpoint"]), _block_settings(name, block)
        own = deep_merge(_with_options({}, family_class(name).played_options), own)
        if user_path(checkpoint).is_dir():
            own.pop("revision", None)
        elif parse_hub_id(checkpoint) is None:
            raise BadValue(f"policy checkpoint '{checkpoint}' is neither a folder here nor a Hub id such as org/model")
        ref = resolve_policy(checkpoint, deep_merge(own, settings), suite=suite, to_act=to_act, offline=True)
        if ref.folder is None:
            return ref, own
    if ref.published:
        own = deep_merge(_with_options({}, ref.backbone_class.played_options), own)
    if not ref.own_layout:
        merged = deep_merge(own, settings)
        if benchmark is not None and not trained and "action_dims" not in options:
            fitting = _fitting_action_dims(ref.read_by(merged), benchmark.action_dim, start_of)
            own = _with_options(own, {key: value for key, value in fitting.items() if key not in options})
            merged = deep_merge(own, settings)
        ref = ref.read_by(merged)
    _ = ref.header  # raises for what does not fit
    return ref, own


def _fitting_action_dims(ref: PolicyRef, action_dim: int, start_of: StartOf) -> Options:
    """The `backbone_kwargs`, with `action_dims` only where an action has another length than the environment's."""
    given = ref.request.options
    whole = {key: value for key, value in given.items() if key != "action_dims"}
    numbers = ref.reading(options=whole).conventions.action_dim
    dims = given.get("action_dims") or start_of(ref.family).get("options", {}).get("action_dims")
    return whole if dims is None or numbers == action_dim else {**whole, "action_dims": list(dims)}


def _open_block(ref: PolicyRef, start_of: StartOf) -> Settings:
    """The recipe's block without what the checkpoint's own files say; {} where they say all.

    A regression head comes from openvla-oft's own fine-tuning, which recipes of RL do not start from.
    """
    facts = ref.facts
    by_makers = facts.trained_options.get("head") == "l1" or (ref.request.to_act and facts.maker == "lerobot")
    if by_makers or not ref.published:
        return {}
    block = start_of(ref.family)
    stated = facts.stated_options
    return {**block, "options": {key: value for key, value in block.get("options", {}).items() if key not in stated}}


def _fitting_block(ref: PolicyRef, block: Mapping[str, object], given: Mapping[str, object]) -> Settings:
    """The block's settings where the checkpoint has its data set's statistics and the user chooses no other.

    A warning says where it lacks them.
    """
    key = block.get("unnorm_key")
    if key is None or given.get("unnorm_key", key) != key:
        return {}
    if key not in ref.facts.data_sets:
        if ref.facts.data_sets and block.get("options"):
            ref.warn(
                f"'{ref.name}' has no action statistics of {key}, which the recipe's start weights have; how those are "
                f"read is left out (backbone_kwargs {yaml_line(block['options'])})"
            )
        return {}
    settings = _block_settings(ref.family, block)
    return {name: settings[name] for name in ("unnorm_key", "backbone_kwargs") if name in settings}


def _block_settings(family: str, block: Options) -> Settings:
    """The block as `policy_kwargs`."""
    settings = {name: block[name] for name in ("unnorm_key", "revision", "base") if name in block}
    return _with_options({"family": family, **settings}, {**block.get("options", {})})


def _with_options(settings: Mapping[str, object], options: Mapping[str, object]) -> Settings:
    """The settings with these `backbone_kwargs` instead of their own."""
    rest = {key: value for key, value in settings.items() if key != "backbone_kwargs"}
    return {**rest, **({"backbone_kwargs": options} if options else {})}


# Its environment ------------------------------------------------------------------------------------------


def takes_any_chunk(ref: PolicyRef) -> bool:
    """Whether the recipe's chunk is passed on as `backbone_kwargs chunk`, where the checkpoint's is another."""
    return ref.name not in FAMILIES and (ref.published or ref.folder is None) and ref.backbone_class.takes_any_chunk


def policy_env_options(ref: PolicyRef) -> Settings:
    """Return the keyword arguments of `make_vec` that a checkpoint asks for; {} for fresh weights."""
    if ref.folder is None or (not ref.own_layout and ref.backbone_class.fits_environment):
        return {}
    conventions = ref.conventions
    options: Settings = {"wrist_camera": "wrist_image" in conventions.cameras}
    if ref.own_layout:
        return {**options, "chunk": conventions.chunk, **trained_image_size(ref.folder)}
    if conventions.state_dim:
        options["state"] = True
    return options if takes_any_chunk(ref) else {**options, "chunk": conventions.chunk}


def policy_lengths(ref: PolicyRef) -> dict[str, int]:
    """Return `state_dim` and `action_dim` of the environment that a checkpoint was made for; {} where any fits."""
    if ref.folder is None or (not ref.own_layout and ref.backbone_class.fits_environment):
        return {}
    names = ("state_dim", "action_dim") if ref.own_layout else ("action_dim",)
    return {name: ref.conventions.lengths[name] for name in names}


def _fixed_options(ref: PolicyRef) -> Collection[str] | None:
    """The `backbone_kwargs` of a hyperparameter entry that a checkpoint fixes, so that they do not apply; None = all.

    Fresh weights adapt nothing, an adapter of this project says itself how it was trained.
    """
    if ref.folder is None:
        return ("lora",) if ref.request.base is not None or (ref.fresh and ref.request.options) else ()
    if ref.own_layout or (ref.adapter is not None and not ref.published):
        return None
    return ("size",) if ref.adapter is None else ("lora", "size")


# Settings -------------------------------------------------------------------------------------------------


def recipe_to_act(env: str, family: str, *, by_recipe: bool) -> Options:
    """Return the settings of the recipe; of a checkpoint that is not read by the recipe's program without what is this
    program's: the options that say how it reads images, and the benchmark's protocol."""
    recipe = acting_recipe(env, family)
    block = recipe.get("policy", {})
    if by_recipe or "options" not in block:
        return recipe
    program, options = family_class(family).program_options, block["options"]
    if not set(program) & set(options):
        return recipe
    kept = {name: value for name, value in options.items() if name not in program}
    env_kwargs = {name: value for name, value in recipe.get("env_kwargs", {}).items() if name != "protocol"}
    return {**recipe, "policy": {**block, "options": kept}, "env_kwargs": env_kwargs}


def settings_to_act(
    env: str, ref: PolicyRef, own: Mapping[str, object], given: Mapping[str, object], *, by_recipe: bool
) -> Settings:
    """Return the settings of a policy that only acts: the recipe's, `own` of `find_policy`, the user's `given`
    `policy_kwargs`.

    Training settings are ignored except RLinf's denoising steps. A checkpoint that is not to be read by the recipe is
    played as its maker does.
    """
    recipe = recipe_to_act(env, ref.family, by_recipe=by_recipe)
    acting = {name: value for name, value in recipe.items() if name != "policy_kwargs"}
    maker = ref.facts.maker if ref.published else None
    if maker == "rlinf" or ref.name.startswith("RLinf/"):
        options = recipe.get("policy_kwargs", {}).get("backbone_kwargs", {})
        if "num_steps" in options:
            acting["policy_kwargs"] = {"backbone_kwargs": {"num_steps": options["num_steps"]}}
    elif not by_recipe:
        benchmark = re.split("[-/]", env, maxsplit=1)[0]
        acting = merge(acting, _PROGRAMS.get(maker or "", {}).get(benchmark, {}))
        if maker == "lerobot":
            acting["chunk"] = ref.conventions.chunk
    return over_recipe(acting, ref, own, {"policy_kwargs": given})


def over_recipe(
    recipe: Mapping[str, object], ref: PolicyRef, own: Mapping[str, object], overrides: Mapping[str, object]
) -> Settings:
    """Return a recipe's settings as they fit the policy, `own` of `find_policy` and then the user's over them.

    Raises `BadValue` for a chunk that the user gives and the checkpoint does not have.
    """
    env_options = policy_env_options(ref)
    tuned = {**recipe, **env_options}
    kwargs = dict(tuned.get("policy_kwargs", {}))
    options, fixed = kwargs.pop("backbone_kwargs", {}), _fixed_options(ref)
    if fixed is not None:
        kwargs = _with_options(kwargs, {name: value for name, value in options.items() if name not in fixed})
    tuned["policy_kwargs"] = deep_merge(kwargs, own)
    merged = merge(tuned, overrides)
    merged.pop("policy", None)
    chunk = env_options.get("chunk")
    if chunk is not None and merged["chunk"] != chunk:
        raise BadValue(
            f"policy '{ref.name}' decides {chunk} actions at once, got chunk={merged['chunk']}; leave chunk out"
        )
    return _with_chunk(merged, overrides, ref) if takes_any_chunk(ref) else merged


def _with_chunk(values: Settings, overrides: Options, ref: PolicyRef) -> Settings:
    """One chunk for environment and network: the user's, else the recipe's."""
    options = values["policy_kwargs"].get("backbone_kwargs", {})
    asked = options.get("chunk")
    if asked is not None and "chunk" in overrides and overrides["chunk"] != asked:
        raise BadValue(f"chunk={overrides['chunk']} and backbone_kwargs chunk: {asked} disagree; leave one out")
    chunk = values.get("chunk", 1) if asked is None or "chunk" in overrides else asked
    if asked is None and ref.folder is not None and chunk == ref.conventions.chunk:
        return {**values, "chunk": chunk}
    kwargs = {**values["policy_kwargs"], "backbone_kwargs": {**options, "chunk": chunk}}
    return {**values, "chunk": chunk, "policy_kwargs": kwargs}


def merge(below: Options, above: Options) -> Settings:
    """Merge with `above` winning; of mappings in `policy`, `policy_kwargs` and `env_kwargs` the keys, at any depth."""
    nested = {name: deep_merge(below.get(name, {}), above[name]) for name in _NESTED if name in above}
    return {**below, **above, **nested}


# Checks ---------------------------------------------------------------------------------------------------


def check_acting(
    ref: PolicyRef, protocol: EvaluationProtocol, kwargs: Mapping[str, object], *, flags: str = "--"
) -> None:
    """Raise `BadValue` where the policy cannot act by the protocol, before its weights are read.

    `flags` is what the flags of the protocol begin with.
    """
    token_settings = [name for name in ("temperature", "top_k", "greedy") if name in kwargs]
    if not (protocol.sample or protocol.rounds > 1 or token_settings):
        return
    draws = ref.backbone_class.draws(ref.options)
    if protocol.sample and not draws.sampled:
        raise BadValue(f"{_one_action(ref)} to sample from; ask for deterministic actions, or {_TOKENS}")
    if token_settings and not draws.tokens:
        raise BadValue(
            f"{token_settings[0]} is of action tokens, and policy '{ref.name}' ({ref.family}) has none; leave "
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
            f"deterministic actions of policy '{ref.name}' ({ref.family}) draw nothing{how}"
        )


def can_sample(ref: PolicyRef) -> bool:
    """Whether the policy has a distribution; only OpenVLA-OFT's regression head (`head: l1`) has none."""
    return ref.backbone_class.draws(ref.options).sampled


def check_trainable(ref: PolicyRef) -> None:
    """Raise `BadValue` for a policy that was opened with a head that nothing can be learned through."""
    if not can_sample(ref):
        raise BadValue(f"{_one_action(ref)} to train; {_TOKENS}")


def _one_action(ref: PolicyRef) -> str:
    return (
        f"policy '{ref.name}' acts through its regression head (head: l1), which gives one action and no distribution"
    )
