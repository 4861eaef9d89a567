"""The Hugging Face Hub: ids, downloads, and failures in one line. Needs no torch."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import huggingface_hub  # loads its parts when they are used

from vla_gym.errors import BadValue
from vla_gym.reading import read_json_object, user_path

OWN_BASE = "."
"""An adapter's name for the model in its own folder: how weights that were fresh are kept, with their adapter apart."""
POLICY_FILES = ("*.json", "*.safetensors", "action_head--*.pt", "proprio_projector--*.pt")
"""Files that the download of a policy may bring: no code, and of torch's own files only those read with
`weights_only=True`."""
RUN_FILES = ("*.yml", "*.txt", "*.csv", "*.jsonl", "*.npz", "*.mp4", "README.md")
"""Files that the download of a whole run brings besides."""
CHECKPOINTS = "checkpoints/*"
"""Files of a repository that only resuming needs."""

_STATUS = {
    401: "the token is not accepted (401); run `hf auth login` or set HF_TOKEN",
    403: "the token may not do this (403); it needs write access to the repository",
    404: "the Hub has no such repository or revision, or the token may not see it (404)",
}
_HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class HubId:
    """`org/name`, or `org/name@revision`."""

    repo: str
    revision: str | None
    """Branch, tag or commit; None is the main branch."""


def parse_hub_id(name: str) -> HubId | None:
    """Return `name` as a Hub id; None where it is or looks like a path: an existing folder, `./x`, `a/b/c`."""
    path = user_path(name)
    found = _HUB_ID.fullmatch(name)
    if found is None or name.startswith((".", "~")) or path.exists() or path.parent.is_dir():
        return None
    return HubId(found["repo"], found["revision"])


def fetch(hub: HubId, *, allow: Sequence[str], ignore: Sequence[str] = ()) -> Path:
    """Return the folder with the repository's files that match; downloaded once, then from the cache, also offline."""
    folder = call(
        lambda: huggingface_hub.snapshot_download(
            hub.repo, revision=hub.revision, allow_patterns=list(allow), ignore_patterns=list(ignore)
        ),
        f"'{hub.repo}' is no folder here and could not be fetched from the Hugging Face Hub"
        + (f" at revision '{hub.revision}'" if hub.revision else ""),
    )
    return Path(folder)


def cached(hub: HubId) -> Path | None:
    """Return the folder of a policy that was fetched whole; None where a file of its weights is not here."""
    try:
        folder = Path(
            huggingface_hub.snapshot_download(
                hub.repo,
                revision=hub.revision,
                allow_patterns=list(POLICY_FILES),
                ignore_patterns=[CHECKPOINTS],
                local_files_only=True,
            )
        )
        index = folder / "model.safetensors.index.json"
        wanted = set(read_json_object(index)["weight_map"].values()) if index.is_file() else set()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # of which there is nothing here, or no readable index
    whole = all((folder / name).is_file() for name in wanted) and any(folder.glob("**/*.safetensors"))
    return folder if whole else None


def local_folder(name: str, revision: str | None = None) -> Path | None:
    """Return where the policy of a folder's name or a Hub id is on this machine; None where it is not."""
    path = user_path(name)
    if path.is_dir():
        return path
    hub = parse_hub_id(name)
    return None if hub is None else cached(HubId(hub.repo, revision or hub.revision))


def policy_size(hub: HubId) -> int:
    """Return the bytes of the files that `fetch` would bring for a policy; raises `BadValue` like `call`."""
    from huggingface_hub.utils import filter_repo_objects

    # One request, which the client does not repeat: without a network the answer comes at once.
    info = call(
        lambda: huggingface_hub.HfApi().model_info(hub.repo, revision=hub.revision, files_metadata=True),
        f"'{hub.repo}' cannot be listed",
    )
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or []}
    wanted = filter_repo_objects(sizes, allow_patterns=list(POLICY_FILES), ignore_patterns=[CHECKPOINTS])
    return sum(sizes[path] for path in wanted)


def call(request: Callable[[], _Result], what_failed: str) -> _Result:
    """Return `request()`, which runs without log lines; any failure becomes one `BadValue` of one line."""
    from huggingface_hub.utils import disable_progress_bars, logging

    if not sys.stderr.isatty():
        disable_progress_bars()  # they would fill a log
    verbosity = logging.get_verbosity()
    # Retries are not worth a line; their outcome is.
    logging.set_verbosity_error()
    try:
        return request()
    except Exception as error:  # the client's errors have no common base: its own, httpx2's, OSError, ValueError
        raise BadValue(f"{what_failed}: {reason(error)}") from error
    finally:
        logging.set_verbosity(verbosity)


def reason(error: BaseException) -> str:
    """Return the cause of a failed Hub request, and what helps, on one line, without secrets."""
    text = _reason(error)
    text = re.sub(r"(https?://)(?:[^/\s@'\"]*@)?([^\s?#'\"]*)(?:[?#][^\s'\"]*)?", r"\1\2", text)
    return re.sub(r"\bhf_\w{8,}", "hf_...", text)


def _reason(error: BaseException) -> str:
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    kinds = {type(cause).__name__ for cause in chain}
    first = _first_line(error)
    if "OfflineModeIsEnabled" in kinds:
        return "HF_HUB_OFFLINE is set, and what is needed is not in the cache; unset it to go online"
    if "GatedRepoError" in kinds:
        return (
            f"it is gated: accept its terms on its page at {endpoint()}, then run `hf auth login` or set HF_TOKEN, "
            "with a token that may read gated repositories"
        )
    answers = (getattr(getattr(cause, "response", None), "status_code", None) for cause in chain)
    status = next((int(code) for code in answers if code is not None), None)
    if status == 401 and huggingface_hub.get_token() is None:
        return "it does not exist or is private, and there is no token: run `hf auth login` or set HF_TOKEN"
    if status is not None:
        return _STATUS.get(status) or f"{endpoint()} answered {status}: {first}"
    if any(type(cause).__module__.startswith(("httpx", "httpcore")) for cause in chain):
        return f"no connection to {endpoint()} ({_first_line(chain[-1])})"
    return first + (f" ({_first_line(chain[-1])})" if len(chain) > 1 else "")


def endpoint() -> str:
    """Return the address of the Hub that is used, `HF_ENDPOINT` if it is set."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
