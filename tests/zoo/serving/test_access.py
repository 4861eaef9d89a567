"""Tokens, seeds in addresses, loopback and certificates."""

from __future__ import annotations

import base64
import hmac
import subprocess
from pathlib import Path

import pytest
from websockets.datastructures import Headers

from vla_gym.errors import BadValue
from zoo.serving.access import allowed, is_loopback, read_token, seed_in, server_tls, token_of

TOKEN = "0123456789abcdef"  # noqa: S105  made up


def test_a_token_file_holds_one_long_line(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(file) == TOKEN
    for text in ("", "short\n", f"{TOKEN}\n{TOKEN}\n", "two words of it here"):
        file.write_text(text)
        with pytest.raises(BadValue, match="must hold one line of at least 16 ASCII characters"):
            read_token(file)
    file.write_bytes(b"\xff" * 20)
    with pytest.raises(BadValue, match="no UTF-8"):
        read_token(file)
    file.write_text("\u00e9" * 20)
    with pytest.raises(BadValue, match="ASCII"):
        read_token(file)
    with pytest.raises(BadValue, match="cannot read"):
        read_token(tmp_path / "none")


def test_the_three_ways_to_show_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    compare = hmac.compare_digest
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append((a, b)) or compare(a, b))
    basic = base64.b64encode(f"any:{TOKEN}".encode()).decode()
    for value in (f"Bearer {TOKEN}", f"Api-Key {TOKEN}", f"Basic {basic}"):
        assert allowed({"Authorization": value}, TOKEN)
    for value in ("", TOKEN, f"Bearer {TOKEN[:-1]}", "Basic !!!", "Basic /w==", "Digest x"):
        assert not allowed({"Authorization": value}, TOKEN)
    assert not allowed({}, TOKEN)
    assert len(compared) == 10  # every time, in constant time
    assert allowed({}, None)
    assert token_of({}) == ""
    twice = Headers([("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer another")])
    assert token_of(twice) == ""
    assert not allowed(twice, TOKEN)


def test_a_seed_in_the_address() -> None:
    assert seed_in("/") is None
    assert seed_in("/?seed=7") == seed_in("//[?seed=7") == 7
    assert seed_in("/?seed=4294967295") == 2**32 - 1
    for path in ("/?seed=", "/?seed=-1", "/?seed=4294967296", "/?seed=1&x=2", "/?sed=1", f"/?seed={'9' * 5000}"):
        with pytest.raises(BadValue, match="the address takes"):
            seed_in(path)


def test_loopback() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "robot.local")] == [False] * 4  # noqa: S104


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    subprocess.run(
        ["openssl", "req", "-x509", *curve, *names, "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    return cert, key


def test_certificate_and_key_go_together(tmp_path: Path) -> None:
    assert server_tls(None, None) is None
    with pytest.raises(BadValue, match="go together"):
        server_tls("cert.pem", None)
    with pytest.raises(BadValue, match="No such file"):
        server_tls(str(tmp_path / "a"), str(tmp_path / "b"))
    cert, key = certificate(tmp_path)
    assert server_tls(str(cert), str(key)) is not None
    key.write_text("no key")
    with pytest.raises(BadValue, match="--tls-key"):
        server_tls(str(cert), str(key))
