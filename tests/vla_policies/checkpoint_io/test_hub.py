from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from vla_gym.errors import BadValue
from vla_policies.checkpoint_io.hub import HubId, call, parse_hub_id, reason


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("org/name", HubId("org/name", None)),
        ("org/na.me-1_x@v1.0", HubId("org/na.me-1_x", "v1.0")),
        ("org/name@refs/pr/3", HubId("org/name", "refs/pr/3")),
        ("nano", None),
        ("a/b/c", None),
        ("./org/name", None),
        ("~/name", None),
    ],
)
def test_ids_and_paths(name: str, wanted: HubId | None) -> None:
    assert parse_hub_id(name) == wanted


def test_a_folder_that_exists_is_no_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    assert parse_hub_id("logs/run") is None
    assert parse_hub_id("org/run") == HubId("org/run", None)


class Refused(Exception):
    """A failure with a status, as the client's."""

    def __init__(self, status: int) -> None:
        super().__init__("first line\nsecond line")
        self.response = SimpleNamespace(status_code=status)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "run `hf auth login` or set HF_TOKEN"),
        (403, "needs write access"),
        (404, "no such repository or revision"),
        (500, "answered 500: first line"),
    ],
)
def test_a_status_says_what_helps_in_one_line(status: int, words: str) -> None:
    text = reason(Refused(status))
    assert words in text
    assert "\n" not in text


def test_the_cause_behind_a_failure_is_told() -> None:
    error = RuntimeError("no download\nat all")
    error.__cause__ = OSError("the disk is full")
    assert reason(error) == "no download (the disk is full)"


def test_a_failed_request_is_one_bad_value() -> None:
    def request() -> None:
        raise Refused(403)

    with pytest.raises(BadValue, match=r"^'org/name' could not be read: the token may not do this \(403\)"):
        call(request, "'org/name' could not be read")
    assert call(lambda: 3, "nothing") == 3


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("no connection to https://hub.example/a?token=s3cret (x)", "no connection to https://hub.example/a (x)"),
        ("https://me:s3cret@hub.example/a answered 500", "https://hub.example/a answered 500"),
        ("for url 'https://h/x?k=s3cret#s3cret'", "for url 'https://h/x'"),
        ("token hf_s3cretS3cret refused", "token hf_... refused"),
        ("'org/name' at revision 'v1'", "'org/name' at revision 'v1'"),
    ],
)
def test_secrets_are_not_shown(text: str, clean: str) -> None:
    assert reason(OSError(text)) == clean
