"""A run as a Hub repository: what goes into it, sending it, and getting it back.

The repository's root is the policy (a LoRA adapter that plain peft loads, or whole weights), so a policy is
loaded from it without the rest. Beside it: the run's own files, `replay.mp4`, `README.md`, and, in
`checkpoints/step_<n>/`, what training goes on from. Weights are safetensors; nothing in it is a pickle.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from vla_gym.errors import BadValue, VLAZooError
from vla_policies.checkpoint_io.hub import POLICY_FILES, RUN_FILES, call, fetch, parse_hub_id
from zoo.files import quoted
from zoo.hub.model_card import CardFacts, model_card
from zoo.runs.evaluations import PROTOCOL_FILE, RESULTS_FILE, find_evaluation, is_of_policy
from zoo.runs.films import own_films
from zoo.runs.fingerprint import TRAINING_TENSORS, weights_fingerprint
from zoo.runs.folder import (
    TRAINING,
    ResumePoint,
    RunFolder,
    check_command,
    create_run_folder,
    find_run,
    folder_name,
    policy_folder,
    read_json,
)
from zoo.runs.monitor import lacks_evaluation

CARD, REPLAY = "README.md", "replay.mp4"
ADAPTER_CONFIG = "adapter_config.json"
STATE_FILE = "training_state.json"
_TRAINING_ONLY = (*TRAINING_TENSORS, STATE_FILE)
_RUN_RECORDS = (
    *("config.yml", "args.yml", "command.txt", PROTOCOL_FILE, RESULTS_FILE, "evaluation.json"),
    *("evaluations.npz", "monitor.csv", "metrics.jsonl"),
)
_OF_ONE_RUN = (*_RUN_RECORDS, REPLAY, ADAPTER_CONFIG, "config.json")
"""What must not stay beside the weights of another run."""
_REPO = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


@dataclass(frozen=True, kw_only=True)
class Publication:
    """What is to be sent."""

    run: RunFolder
    """The run."""
    repo: str
    """`org/name`."""
    public: bool = False
    """May everybody see it? Otherwise a new repository is private."""
    base: str | None = None
    """Hub id to name as the adapter's base instead of what the run says."""
    with_checkpoint: bool = True
    """Send what training goes on from as well."""


def check_repo(repo: str) -> str:
    """`repo` if it can be the id of a repository."""
    if not _REPO.fullmatch(repo) or ".." in repo or "--" in repo:
        raise BadValue(
            f"'{repo}' is no name of a Hub repository; it must look like org/name: letters, digits, '-', '_' and '.'"
        )
    return repo


def default_name(run: RunFolder) -> str:
    """`<algo>-<env>-<policy>`, as rl_zoo3 names repositories."""
    config = run.config()
    policy = Path(config.policy.partition("@")[0]).name
    return f"{config.algo}-{folder_name(config.env)}-{policy}"


def publish(publication: Publication) -> str:
    """Send it in one commit; returns the repository's address. Raises `BadValue` of one line whatever fails."""
    with TemporaryDirectory() as scratch:
        files = gather(publication, Path(scratch))
        return call(lambda: _send(publication, files), f"'{publication.repo}' was not updated on the Hub")


def push_later(run: RunFolder, repo: str) -> str:
    """The command that sends a run."""
    return f"python -m zoo.push_to_hub -i {quoted(run.path)} {repo}"


def publish_trained(run: RunFolder, repo: str) -> str:
    """What to say after training with --push-to-hub: where the run is, or why it is not and how to send it.

    Never raises: a Hub that is away must not turn a finished training into a failed one.
    """
    later = f"the run is whole in {run.path}; send it with: {push_later(run, repo)}"
    try:
        steps = run.saved_steps()
        if not steps or steps[-1] < run.config().n_timesteps or lacks_evaluation(run, steps[-1]):
            return f"warning: training is not finished and was not pushed; {later}"
        return f"pushed to  {publish(Publication(run=run, repo=repo))}"
    except VLAZooError as error:
        return f"warning: {error}; {later}"
    except KeyboardInterrupt:
        return f"warning: the upload was interrupted; {later}"


def gather(publication: Publication, scratch: Path) -> dict[str, Path]:
    """Path in the repository -> file here; those that must differ from the run's are written to `scratch`."""
    run = publication.run
    policy = policy_folder(str(run.path))
    weights = weights_fingerprint(policy) if (run.path / RESULTS_FILE).is_file() else None
    files = {file.name: file for file in _files_of(policy) if file.name not in _TRAINING_ONLY}
    files |= {name: run.path / name for name in _RUN_RECORDS if (run.path / name).is_file()}
    if RESULTS_FILE in files and not is_of_policy(read_json(files[RESULTS_FILE]), weights):
        del files[RESULTS_FILE]
    step = run.saved_steps()[-1] if publication.with_checkpoint and run.saved_steps() else None
    if step is not None:
        files |= {f"checkpoints/step_{step}/{file.name}": file for file in _files_of(run.checkpoint(step))}
    films = own_films(run)
    if films:
        files[REPLAY] = films[-1]
    if publication.base is not None:
        _rename_base(files, publication.base, scratch)
    card = scratch / CARD
    card.write_text(model_card(card_facts(publication, policy, weights, files)), encoding="utf-8")
    return {**files, CARD: card}


def card_facts(
    publication: Publication, policy: Path, weights: str | None, files: Mapping[str, Path]
) -> CardFacts:
    """What the model card says of it; `weights` is the policy's fingerprint."""
    run, config = publication.run, publication.run.config()
    adapter = ADAPTER_CONFIG in files
    base = config.policy.partition("@")[0]
    if adapter:
        base = str(read_json(files[ADAPTER_CONFIG])["base_model_name_or_path"])
    named = adapter and publication.base is not None
    step = _step_of(policy)
    protocol = files.get(PROTOCOL_FILE)
    return CardFacts(
        repo=publication.repo,
        config=config,
        step=step,
        base=base if named or parse_hub_id(base) is not None else None,
        adapter=adapter,
        family=config.entry.rpartition("/")[2] or "policy",
        evaluation=find_evaluation(run, weights, step),
        protocol=read_json(protocol) if protocol is not None else {},
        resumable=any(name.startswith("checkpoints/") for name in files),
    )


def base_is_local(publication: Publication) -> str | None:
    """The folder that a run's adapter names as its base, which nobody else has; None where it names a Hub id."""
    path = policy_folder(str(publication.run.path)) / ADAPTER_CONFIG
    if publication.base is not None or not path.is_file():
        return None
    base = str(read_json(path)["base_model_name_or_path"])
    return base if Path(base).is_dir() else None


def download_run(name: str) -> RunFolder:
    """The run in a Hub repository, in the Hub's cache: to read, not to write into."""
    hub = parse_hub_id(name)
    assert hub is not None, "asked only for Hub ids"
    folder = fetch(hub, allow=(*POLICY_FILES, *RUN_FILES))
    if not (folder / "config.yml").is_file():
        raise BadValue(f"'{name}' holds no run (it has no config.yml); use it as --policy {name}")
    return find_run(str(folder))


def remote_resume_point(name: str) -> ResumePoint:
    """What `-i name` means for training where `name` is a Hub id: its checkpoint, going on in a new run folder."""
    run = download_run(name)
    check_command(run, TRAINING)
    steps = run.saved_steps()
    if not steps:
        raise BadValue(
            f"'{name}' holds weights only and cannot be resumed; start a new run from them with --policy {name}"
        )
    return ResumePoint(run=run, step=steps[-1], in_place=False)


def install_run(name: str, log_folder: Path) -> RunFolder:
    """Download a run into a new run folder under `log_folder`."""
    source = download_run(name)
    config = source.config()
    run = create_run_folder(log_folder, config.algo, config.env)
    try:
        for file in _files_of(source.path):
            if file.name in _RUN_RECORDS or file.name == CARD:
                target = run.path / file.name
            else:
                target = (run.videos if file.name == REPLAY else run.best) / file.name
            _copy(file, target)
        for step in source.saved_steps():
            for file in _files_of(source.checkpoint(step)):
                _copy(file, run.checkpoint(step) / file.name)
    except BaseException:
        shutil.rmtree(run.path)
        raise
    return run


def is_remote(path: str) -> bool:
    """Does `-i path` mean a Hub repository?"""
    return parse_hub_id(path) is not None


def _send(publication: Publication, files: Mapping[str, Path]) -> str:
    from huggingface_hub import (
        CommitOperationAdd,
        CommitOperationCopy,
        CommitOperationDelete,
        HfApi,
        constants,
    )

    if constants.ENDPOINT != "https://huggingface.co":
        # Xet is huggingface.co's own store; mirrors and private hubs take plain uploads.
        constants.HF_HUB_DISABLE_XET = True
    api, repo = HfApi(library_name="vla-zoo"), publication.repo
    url = api.create_repo(repo, private=not publication.public, exist_ok=True)
    if not publication.public and api.repo_info(repo).private is False:
        raise BadValue("it is public already, say --public if that is meant")
    stale = [
        name
        for name in api.list_repo_files(repo)
        if name not in files
        and (name in _OF_ONE_RUN or name.startswith("checkpoints/") or name.endswith(".safetensors"))
    ]
    operations: list[CommitOperationAdd | CommitOperationCopy | CommitOperationDelete] = [
        *(
            CommitOperationAdd(path_in_repo=name, path_or_fileobj=path)
            for name, path in sorted(files.items())
        ),
        *(CommitOperationDelete(path_in_repo=name) for name in stale),
    ]
    config = publication.run.config()
    api.create_commit(repo, operations, commit_message=f"{config.algo.upper()} on {config.env}, by vla-zoo")
    return str(url)


def _rename_base(files: dict[str, Path], base: str, scratch: Path) -> None:
    """Let every adapter among the files name `base`, and the sizes that a checkpoint notes agree with it."""
    for number, name in enumerate([one for one in files if one.endswith(ADAPTER_CONFIG)]):
        changed = scratch / f"{number}.{ADAPTER_CONFIG}"
        values = {**read_json(files[name]), "base_model_name_or_path": base, "revision": None}
        changed.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        files[name] = changed
        state = name.removesuffix(ADAPTER_CONFIG) + STATE_FILE
        if state in files:
            noted = read_json(files[state])
            noted["files"][ADAPTER_CONFIG] = changed.stat().st_size
            files[state] = scratch / f"{number}.{STATE_FILE}"
            files[state].write_text(json.dumps(noted) + "\n", encoding="utf-8")


def _step_of(policy: Path) -> int | None:
    if (policy / "score.json").is_file():
        return int(read_json(policy / "score.json")["num_timesteps"])
    found = re.fullmatch(r"step_(\d+)", policy.name)
    return int(found[1]) if found else None


def _files_of(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
