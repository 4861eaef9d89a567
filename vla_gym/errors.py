"""Errors a user can cause. Every message says what was wrong, the value, the allowed values, and what to do next.

    VLAZooError
    ├── UnknownName        an id, option or key that does not exist (names the nearest one)
    ├── BadValue           a value outside what is allowed
    ├── MissingDependency  an extra, a system library, an asset (names the command that brings it)
    ├── WorkerFailed       a simulator worker died, hung or raised (names env, task, trial, last stderr)
    ├── LostRank           another process of a run on several ended, or does not answer
    └── ServerFailed       a policy server cannot be reached, refuses, or answers wrongly

The command line turns each into one line and exit code 2. `WorkerRestarted` is the only warning.
"""

from __future__ import annotations

import difflib
import errno
import reprlib
from collections.abc import Collection, Iterable


class VLAZooError(Exception):
    """Base of every error that the user can correct; prints as one line."""


class UnknownName(VLAZooError, ValueError):
    """A name that does not exist."""


class BadValue(VLAZooError, ValueError):
    """A value outside what is allowed."""


class MissingDependency(VLAZooError, ImportError):
    """A package, library or asset that must be installed or downloaded first."""


class WorkerFailed(VLAZooError, RuntimeError):
    """A worker process ended, hung or raised."""


class LostRank(VLAZooError, RuntimeError):
    """Another process of the same run ended, or does not answer."""


class ServerFailed(VLAZooError, RuntimeError):
    """A policy server that cannot be reached, refuses a request, or answers wrongly."""


class WorkerRestarted(UserWarning):
    """A worker failed, was started anew, and its episodes were lost (`on_worker_error="restart"`)."""


_NEAR = 0.6
"""Similarity (0 .. 1, as of `difflib`) from which a name is offered."""


def unknown_name(
    kind: str, got: object, known: Iterable[str], *, show: int = 12, meant: str | None = None
) -> UnknownName:
    """Return the error for `got`, which is no `kind`; it lists the known names and the nearest one.

    Of more than `show` names the nearest are listed, and the nearest of all comes first. `meant`: the name to offer
    where it is known better than by its spelling.
    """
    names = sorted(known)
    by_fold = {name.casefold(): name for name in names}
    # To compare long texts takes the square of their length.
    wanted, got = str(got)[:MOST_OF_WORD].casefold(), shortened(str(got), MOST_SHOWN)
    near = [by_fold[fold] for fold in difflib.get_close_matches(wanted, by_fold, n=show, cutoff=_NEAR)]
    offered = meant or (near[0] if near else None)
    hint = f" Did you mean '{offered}'?" if offered else ""
    if len(names) <= show:
        return UnknownName(f"no {kind} '{got}'. Known: {', '.join(names)}.{hint}")
    listed = ", ".join([*near, *(name for name in names if name not in near)][:show])
    return UnknownName(f"no {kind} '{got}'.{hint} Known: {listed}, ... ({len(names)} in all).")


MOST_SHOWN = 120
"""Characters of a value in a message."""
MOST_CHARACTERS, MOST_OF_WORD = 1500, 300
"""Characters of a message, and of one word (a path, a name) in it."""
_NEXT = {
    errno.ENOSPC: "free some space or write elsewhere",
    errno.EDQUOT: "free some of your quota or write elsewhere",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f) or write elsewhere",
    errno.EROFS: "write elsewhere",
    errno.EACCES: "change its permissions or name another place",
    errno.EPERM: "change its permissions or name another place",
    errno.ENOENT: "create it or check its name",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENOMEM: "free memory or make the run smaller",
}
"""Error of the system -> what helps."""


def shown(value: object) -> str:
    """Return `value` for a message: `repr`, at most `MOST_SHOWN` characters, whatever it is."""
    try:
        text = repr(value) if isinstance(value, str | bool | float | None) else _SHORT.repr(value)
    except Exception:  # noqa: BLE001  an integer of 5,000 digits, a repr of somebody else's
        text = f"<{type(value).__name__}>"
    return shortened(text, MOST_SHOWN)


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 3, 60, 60


def shortened(text: str, most: int) -> str:
    """Return `text`, its middle left out where it has more than `most` characters."""
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]}... ({len(text)} characters) ...{text[-most // 6 :]}"


def one_line(message: str) -> str:
    """Return a message as a terminal may show it: one line of bounded length, nothing that steers the terminal."""
    words = (shortened(word, MOST_OF_WORD) for word in message.split())
    printable = (
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in " ".join(words)
    )
    return shortened("".join(printable), MOST_CHARACTERS)


def os_reason(error: OSError) -> str:
    """Return what the system said, and what helps."""
    said = error.strerror or " ".join(str(error).split()) or type(error).__name__
    helps = _NEXT.get(error.errno or 0)
    return f"{said}; {helps}" if helps else said


def check_known(kind: str, got: object, known: Collection[str], *, show: int = 12) -> None:
    """Raise `UnknownName`, as of `unknown_name`, unless `got` is in `known`."""
    if got not in list(known):  # a list, so that `got` may be one, too
        raise unknown_name(kind, got, known, show=show)


def check_integer(name: str, value: object, low: int, high: int | None = None, *, note: str = "") -> int:
    """Return an `int` in `low` .. `high` (None: no end), else raise `BadValue`; `note` describes the number."""
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= (value if high is None else high):
        return value
    allowed = f">= {low}" if high is None else f"in {low} .. {high}"
    raise BadValue(f"{name} must be an integer {allowed}{note and f' ({note})'}, got {shown(value)}")
