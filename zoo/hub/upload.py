"""Send a run to a Hub repository, and to a Space that shows it on the page of `zoo.play`.

The repository's root is the policy (a LoRA adapter that plain peft loads, or whole weights), so a policy is
loaded from it without the rest. Beside it: the run's own files, `replay.mp4`, `README.md`, and, in
`checkpoints/step_<n>/`, what training goes on from. Weights are safetensors; nothing in it is a pickle.

One commit holds all of it, so that nobody fetches half a run: `HfApi.upload_folder` may make several.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from vla_gym import __version__
from vla_gym.errors import BadValue, MissingDependency, VLAZooError, shown
from vla_gym.reading import file_sha256, inside
from vla_gym.registry import find_benchmark
from vla_gym.system.extras import DISTRIBUTION, install_command
from vla_policies.checkpoint_io.hub import OWN_BASE, POLICY_FILES, call, parse_hub_id
from vla_policies.checkpoint_io.json_records import to_json
from zoo.config.run_config import benchmark_options
from zoo.files import content_of, quoted, read_json
from zoo.hub.download import CARD, REPLAY, RUN_RECORDS, files_of
from zoo.hub.model_card import CardFacts, model_card
from zoo.runs.evaluations import find_evaluation, find_robustness, is_of_weights, weights_sha256
from zoo.runs.folder import (
    ADAPTER_CONFIG_FILE,
    POLICY_CONFIG_FILE,
    PROTOCOL_FILE,
    RESULTS_FILE,
    ROBUSTNESS_FILE,
    SCORE_FILE,
    STATE_FILE,
    RunFolder,
    folder_name,
    is_of_training,
    step_of,
)
from zoo.runs.lookup import policy_folder
from zoo.runs.monitor import lacks_evaluation

_OF_ONE_RUN = (*RUN_RECORDS, REPLAY, ADAPTER_CONFIG_FILE, POLICY_CONFIG_FILE, SCORE_FILE)
"""Files that must not stay beside the weights of another run."""
_PACKAGES = ("libegl1", "libgl1", "libglib2.0-0", "libosmesa6", "libvulkan1", "mesa-vulkan-drivers")
"""Debian's libraries with which simulators render without a display, as `scripts/setup_system.sh` brings them."""


def check_repo(repo: str) -> None:
    """Raise `BadValue` for what cannot be a repository's id."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
        if "/" not in repo:  # the Hub gives names without an owner to nobody any more
            raise HFValidationError("it has no owner")
    except HFValidationError as error:
        raise BadValue(
            f"{shown(repo)} is no name of a Hub repository ({error}); it must look like org/name: letters, "
            "digits, '-', '_' and '.'"
        ) from error


def default_name(run: RunFolder) -> str:
    """`<algo>-<env>-<policy>`, as rl_zoo3 names repositories."""
    config = run.config()
    return f"{config.algo}-{folder_name(config.env)}-{Path(config.policy.partition('@')[0]).name}"


def publish(
    run: RunFolder, repo: str, *, public: bool = False, base: str | None = None, with_checkpoint: bool = True
) -> str:
    """Send the run in one commit; return the repository's address and who may see it.

    Raise `BadValue` of one line whatever fails.

    Args:
        run: the run.
        repo: `org/name`.
        public: whether everybody may see it; otherwise a new repository is private.
        base: Hub id to name as the adapter's base instead of what the run says; for adapters only.
        with_checkpoint: whether to send the checkpoint that training goes on from as well.
    """
    with TemporaryDirectory() as scratch:
        files = repository_files(run, repo, Path(scratch), base=base, with_checkpoint=with_checkpoint)
        return call(lambda: _send(run, repo, files, public=public), f"'{repo}' was not updated on the Hub")


def publish_trained(run: RunFolder, repo: str) -> str:
    """Send a run after training with --push-to-hub; returns its address, or why it was not sent and how to send it.

    Never raises: a Hub that is away must not turn a finished training into a failed one.
    """
    later = f"the run is whole in {run.path}; send it with: vla-zoo push_to_hub -i {quoted(run.path)} {repo}"
    try:
        steps = run.saved_steps()
        if not steps or steps[-1] < run.config().n_timesteps or lacks_evaluation(run, steps[-1]):
            return f"warning: training is not finished and was not pushed; {later}"
        return f"pushed to  {publish(run, repo)}"
    except VLAZooError as error:
        return f"warning: {error}; {later}"
    except KeyboardInterrupt:
        return f"warning: the upload was interrupted; {later}"


def repository_files(
    run: RunFolder, repo: str, scratch: Path, *, base: str | None = None, with_checkpoint: bool = True
) -> dict[str, Path]:
    """Map paths in the repository to files here; those that must differ from the run's are written to `scratch`."""
    policy = policy_folder(str(run.path))
    saved = run.saved_steps()[-1] if with_checkpoint and run.saved_steps() else None
    _check_whole(run, policy, saved)
    measured = [name for name in (RESULTS_FILE, ROBUSTNESS_FILE) if (run.path / name).is_file()]
    weights = weights_sha256(policy) if measured else None
    own = [file for file in _sent_of(policy) if not (is_of_training(file.name) or file.name == STATE_FILE)]
    files = {file.name: file for file in own}
    files |= {name: inside(run.path, name, run.path) for name in RUN_RECORDS if (run.path / name).is_file()}
    for name in measured:
        if not is_of_weights(read_json(files[name]), weights):
            del files[name]
    if saved is not None:
        files |= {f"checkpoints/step_{saved}/{file.name}": file for file in _sent_of(run.checkpoint(saved))}
    if videos := run.own_videos():
        files[REPLAY] = inside(run.videos, videos[-1].name, run.videos)
    if base is not None:
        _rename_base(files, base, scratch)
    _fit_manifests(files, scratch)
    card = scratch / CARD
    card.write_text(
        model_card(card_facts(run, repo, policy, weights, files, base=base, saved_step=saved)), encoding="utf-8"
    )
    return {**files, CARD: card}


def _check_whole(run: RunFolder, policy: Path, saved_step: int | None) -> None:
    """Raise `BadValue` where the policy, or the checkpoint that would be sent beside it, is damaged or lacks a file."""
    # It loads torch, which a command's flags do without.
    from vla_policies.checkpoint_io.manifest import check_manifest, read_manifest

    if (manifest := read_manifest(policy)) is not None:
        check_manifest(policy, manifest)
    if not any(policy.glob("*.safetensors")):
        raise BadValue(f"'{policy}' holds no weights (*.safetensors)")
    if saved_step is not None:
        checkpoint = run.checkpoint(saved_step)
        with content_of(checkpoint / STATE_FILE):
            if (manifest := read_manifest(checkpoint)) is not None:
                check_manifest(checkpoint, manifest)


def _sent_of(folder: Path) -> list[Path]:
    """The folder's files that a download of a policy would bring; whatever else lies there stays here."""
    return [file for file in files_of(folder) if any(fnmatch(file.name, pattern) for pattern in POLICY_FILES)]


def card_facts(
    run: RunFolder,
    repo: str,
    policy: Path,
    weights: str | None,
    files: Mapping[str, Path],
    *,
    base: str | None,
    saved_step: int | None,
) -> CardFacts:
    """Return the facts of the model card; `weights` is the SHA-256 of the policy's, `saved_step` the checkpoint's."""
    config, beneath = run.config(), adapter_base(policy)
    found = beneath or config.policy.partition("@")[0]
    step, protocol = _step_of(policy), files.get(PROTOCOL_FILE)
    return CardFacts(
        repo=repo,
        config=config,
        step=step,
        base=base or (found if parse_hub_id(found) is not None else None),
        adapter=beneath is not None,
        family=config.entry.rpartition("/")[2] or "policy",
        evaluation=find_evaluation(run, weights, step),
        robustness=find_robustness(run, weights),
        protocol=read_json(protocol) if protocol is not None else {},
        words=words_of(policy),
        saved_step=saved_step,
    )


def words_of(policy: Path) -> str:
    """Return `words` of nano in a policy's folder; "" for other families."""
    config = policy / POLICY_CONFIG_FILE
    model = read_json(config).get("model", {}) if config.is_file() else {}
    return str(model.get("trunk", model).get("words", ""))


def adapter_base(policy: Path) -> str | None:
    """Return the model that an adapter in a folder belongs to; None for whole weights."""
    if not (policy / ADAPTER_CONFIG_FILE).is_file():
        return None
    base = str(read_json(policy / ADAPTER_CONFIG_FILE)["base_model_name_or_path"])
    return None if base == OWN_BASE else base


def _send(run: RunFolder, repo: str, files: Mapping[str, Path], *, public: bool) -> str:
    from vla_policies.checkpoint_io.folder import ADAPTER_SETTINGS

    # They load torch, which a command's flags do without.
    from vla_policies.checkpoint_io.manifest import FORMER_FILE, MANIFEST_FILE
    from vla_policies.processing.statistics import STATISTICS_FILE

    of_one_run = (*_OF_ONE_RUN, MANIFEST_FILE, FORMER_FILE, ADAPTER_SETTINGS, STATISTICS_FILE)
    config = run.config()
    url, hidden = commit_files(
        repo,
        files,
        f"{config.algo.upper()} on {config.env}, by vla-zoo",
        public=public,
        stale=lambda name: name in of_one_run or name.startswith("checkpoints/") or name.endswith(".safetensors"),
    )
    kept = ", as it was; its settings on the Hub can change that" if hidden and public else ""
    return f"{url}  ({'private' if hidden else 'public'}{kept})"


def commit_files(
    repo: str,
    files: Mapping[str, Path | bytes],
    message: str,
    *,
    public: bool,
    stale: Callable[[str], bool] = lambda name: False,
    space: bool = False,
) -> tuple[str, bool | None]:
    """Send files in one commit, in which other files whose names are `stale` go; return the repository's address and
    whether it is private.

    `space` means the Space of that name, not the model repository. Raises `BadValue` for one that is public and was not
    to be.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi, constants

    if constants.ENDPOINT != "https://huggingface.co":
        # Xet is huggingface.co's own store; mirrors and private hubs take plain uploads.
        constants.HF_HUB_DISABLE_XET = True
    api, kind, sdk = HfApi(library_name="vla-zoo"), "space" if space else "model", "gradio" if space else None
    url = api.create_repo(repo, private=not public, exist_ok=True, repo_type=kind, space_sdk=sdk)
    hidden = api.repo_info(repo, repo_type=kind).private
    if not public and hidden is False:
        raise BadValue("it is public already; where that is meant: vla-zoo push_to_hub --public")
    gone = [name for name in api.list_repo_files(repo, repo_type=kind) if name not in files and stale(name)]
    operations: list[CommitOperationAdd | CommitOperationCopy | CommitOperationDelete] = [
        *(CommitOperationAdd(path_in_repo=name, path_or_fileobj=file) for name, file in sorted(files.items())),
        *(CommitOperationDelete(path_in_repo=name) for name in gone),
    ]
    api.create_commit(repo, operations, commit_message=message, repo_type=kind)
    return str(url), hidden


def _rename_base(files: dict[str, Path], base: str, scratch: Path) -> None:
    for number, name in enumerate([name for name in files if name.endswith(ADAPTER_CONFIG_FILE)]):
        values = {**read_json(files[name]), "base_model_name_or_path": base, "revision": None}
        files[name] = scratch / f"{number}.{ADAPTER_CONFIG_FILE}"
        files[name].write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _fit_manifests(files: dict[str, Path], scratch: Path) -> None:
    """Make the manifests, or what earlier versions wrote instead, list what is sent, with its hashes."""
    # They load torch, which a command's flags do without.
    from vla_policies.checkpoint_io.folder import write_json
    from vla_policies.checkpoint_io.manifest import FORMER_FILE, MANIFEST_FILE, read_manifest

    for number, name in enumerate([name for name in files if name.endswith((MANIFEST_FILE, FORMER_FILE))]):
        folder = name.rpartition("/")[0] + "/" if "/" in name else ""
        manifest = read_manifest(files.pop(name).parent)
        assert manifest is not None
        own = {file: sha256 for file, sha256 in manifest.files.items() if folder + file in files}
        adapter = files.get(folder + ADAPTER_CONFIG_FILE)
        if adapter is not None and ADAPTER_CONFIG_FILE in own:
            own[ADAPTER_CONFIG_FILE] = file_sha256(adapter)
        files[folder + MANIFEST_FILE] = scratch / f"{number}.{MANIFEST_FILE}"
        write_json(files[folder + MANIFEST_FILE], to_json(replace(manifest, files=own)))


def _step_of(policy: Path) -> int | None:
    """The steps that these weights were trained for, where the folder says them."""
    if (policy / SCORE_FILE).is_file():
        with content_of(policy / SCORE_FILE):
            return int(read_json(policy / SCORE_FILE)["num_timesteps"])
    return step_of(policy)


# Its Space ------------------------------------------------------------------------------------------


def space_files(run: RunFolder, repo: str) -> dict[str, bytes]:
    """Return the content of each file of the Space `repo`, which plays the run of the repository `repo`.

    Raises `MissingDependency` without Gradio, whose version the Space takes.
    """
    from huggingface_hub import SpaceCardData

    config, words = run.config(), words_of(policy_folder(str(run.path)))
    extra = find_benchmark(config.env, **benchmark_options(config.env_options)).extra
    extras = sorted({"play", *([extra] if extra else []), *(["words"] if words == "wordllama" else [])})
    card = SpaceCardData(
        title=repo.split("/")[-1],
        sdk="gradio",
        sdk_version=gradio_version(),
        python_version="3.11",
        app_file="app.py",
        models=[repo],
        tags=[DISTRIBUTION, "robotics", "reinforcement-learning"],
    )
    about = f"Type an instruction and watch [{repo}](https://huggingface.co/{repo}) on {config.env}, by vla-zoo."
    texts = {
        "app.py": f'from zoo.cli.main import main\n\nraise SystemExit(main(["play", "-i", "{repo}"]))\n',
        "requirements.txt": f"{DISTRIBUTION}[{','.join(extras)}]=={__version__}\n",
        "packages.txt": "\n".join(_PACKAGES) + "\n",
        "README.md": f"---\n{card.to_yaml()}\n---\n\n{about}\n",
    }
    return {name: text.encode() for name, text in texts.items()}


def gradio_version() -> str:
    """Return the version of Gradio, which draws the page; raises `MissingDependency` where it is not installed."""
    try:
        return metadata.version("gradio")
    except metadata.PackageNotFoundError as error:
        raise MissingDependency(f"the page needs gradio; install it: {install_command('play')}") from error


def publish_space(files: Mapping[str, bytes], repo: str, *, public: bool = False) -> str:
    """Send `space_files`; return the Space's address. Raises `BadValue` of one line whatever fails."""
    url, hidden = call(
        lambda: commit_files(repo, files, "The play page, by vla-zoo", public=public, space=True),
        f"the Space '{repo}' was not updated on the Hub",
    )
    return f"{url}{'  (give it a secret HF_TOKEN that may read the private run)' if hidden else ''}"
