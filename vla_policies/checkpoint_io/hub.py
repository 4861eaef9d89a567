"""The Hugging Face Hub: ids, downloads, and what went wrong in one line. Needs no torch."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from vla_gym.errors import BadValue

POLICY_FILES = ("*.json", "*.safetensors", "action_head--*.pt", "proprio_projector--*.pt")
"""What the download of a policy may bring: no code, and of torch's own files only those read with
`weights_only=True`."""
RUN_FILES = ("*.yml", "*.txt", "*.csv", "*.jsonl", "*.npz", "*.mp4", "README.md")
"""What the download of a whole run brings besides."""
CHECKPOINTS = "checkpoints/*"
"""Where a repository keeps what only resuming needs."""

_HUB_ID = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class HubId:
    """`org/name`, or `org/name@revision`."""

    repo: str
    """`org/name`."""
    revision: str | None
    """Branch, tag or commit; None is the main branch."""


def parse_hub_id(name: str) -> HubId | None:
    """`name` as a Hub id; None for what is, or looks like, a path: an existing folder's content, `./x`, `a/b/c`."""
    path = Path(name).expanduser()
    found = _HUB_ID.fullmatch(name)
    if found is None or name.startswith((".", "~")) or path.exists() or path.parent.is_dir():
        return None
    return HubId(found["repo"], found["revision"])


def fetch(hub: HubId, *, allow: Sequence[str], ignore: Sequence[str] = ()) -> Path:
    """Folder with the repository's files that match; downloaded once, then from the cache, also offline."""
    from huggingface_hub import snapshot_download

    folder = call(
        lambda: snapshot_download(
            hub.repo, revision=hub.revision, allow_patterns=list(allow), ignore_patterns=list(ignore)
        ),
        f"'{hub.repo}' is no folder here and could not be fetched from the Hugging Face Hub"
        + (f" at revision '{hub.revision}'" if hub.revision else ""),
    )
    return Path(folder)


def call(ask: Callable[[], _Result], what_failed: str) -> _Result:
    """`ask()`, quietly; whatever goes wrong on the way to the Hub and back is one `BadValue` of one line."""
    from huggingface_hub.utils import logging

    verbosity = logging.get_verbosity()
    # Its retries are not news; what comes of them is.
    logging.set_verbosity_error()
    try:
        with _bars_for_people_only():
            return ask()
    except (
        Exception
    ) as error:  # the client's errors have no common base: its own, httpx2's, OSError, ValueError
        raise BadValue(f"{what_failed}: {reason(error)}") from error
    finally:
        logging.set_verbosity(verbosity)


@contextmanager
def _bars_for_people_only() -> Iterator[None]:
    """No progress bars where nobody watches them: in a log they are noise around the one line that matters."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled() or sys.stderr.isatty():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def reason(error: BaseException) -> str:
    """Why the Hub did not do what it was asked, and what helps, on one line."""
    chain = list(_chain(error))
    for one in chain:
        if type(one).__name__ == "OfflineModeIsEnabled":
            return "HF_HUB_OFFLINE is set, and what is needed is not in the cache; unset it to go online"
    for one in chain:
        status = getattr(getattr(one, "response", None), "status_code", None)
        if status is not None:
            return _status_reason(int(status), one)
    for one in chain:
        if type(one).__module__.startswith(("httpx", "httpcore")):
            return f"no connection to {_endpoint()} ({_first_line(one)})"
    cause = f" ({_first_line(chain[-1])})" if len(chain) > 1 else ""
    return _first_line(chain[0]) + cause


def _chain(error: BaseException) -> Sequence[BaseException]:
    found, one = [], error
    while one is not None and one not in found:
        found.append(one)
        one = one.__cause__ or one.__context__  # type: ignore[assignment]
    return found


def _status_reason(status: int, error: BaseException) -> str:
    from huggingface_hub import get_token

    if status == 401 and get_token() is None:
        return "it does not exist or is private, and there is no token: run `hf auth login` or set HF_TOKEN"
    if status == 401:
        return "the token is not accepted (401); run `hf auth login` or set HF_TOKEN"
    if status == 403:
        return "the token may not do this (403); it needs write access to the repository"
    if status == 404:
        return f"{_endpoint()} has no such repository or revision, or the token may not see it (404)"
    return f"{_endpoint()} answered {status}: {_first_line(error)}"


def _endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
