"""Who may speak with a server: its address, token and certificate, and what it answers to plain HTTP requests."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qs

from vla_gym.errors import BadValue, os_reason
from vla_gym.reading import read_text
from zoo.config.run_config import LARGEST_SEED

SHORTEST_TOKEN = 16
"""Fewest characters of a token; 16 random ones cannot be guessed over a network."""
_LONGEST_FILE = 4096
"""Most bytes of its file."""
HEALTH = ("/healthz", "/health")
"""Where openpi's and vla-eval's clients ask whether a server is ready; needs no token."""
METADATA, METRICS = "/metadata", "/metrics"


def read_token(path: Path) -> str:
    """Return the token in a file, its one line; raises `BadValue`."""
    lines = read_text(path, most=_LONGEST_FILE).split()
    if len(lines) != 1 or len(lines[0]) < SHORTEST_TOKEN or not lines[0].isascii():
        raise BadValue(
            f"--token-file {path} must hold one line of at least {SHORTEST_TOKEN} ASCII characters, no spaces; "
            "make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return lines[0]


def token_of(headers: Mapping[str, str]) -> str:
    """Return the token of a request's headers; "" without one, and where several are shown.

    `Authorization: Bearer TOKEN`, `Api-Key TOKEN` as openpi's client writes it, or `Basic` with the token as password,
    which is what a client without a setting for it sends for `ws://user:TOKEN@host`.
    """
    try:
        scheme, _, value = headers.get("Authorization", "").partition(" ")
    except LookupError:  # of websockets' headers, for a name that stands there twice
        return ""
    if scheme.lower() in ("bearer", "api-key"):
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return ""


def allowed(headers: Mapping[str, str], token: str | None) -> bool:
    """Whether a request shows the server's token, compared in constant time; always where there is none."""
    return token is None or hmac.compare_digest(token_of(headers).encode(), token.encode())


def seed_in(path: str) -> int | None:
    """Return the seed in `?seed=7` of a connection's path; None without one. Raises `BadValue` for anything else."""
    query = parse_qs(path.partition("?")[2], keep_blank_values=True)
    if not query:
        return None
    text = query.get("seed", [""])[-1]
    # Python reads no more than 4300 digits.
    short = text.isdecimal() and len(text) <= len(str(LARGEST_SEED))
    if set(query) != {"seed"} or not short or int(text) > LARGEST_SEED:
        raise BadValue(f"the address takes ?seed=0 .. {LARGEST_SEED} and nothing else")
    return int(text)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server at `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_address(host: str, port: int) -> None:
    """Raise `BadValue` where nothing can listen at the address; asked before a policy is loaded."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        reason = os_reason(error)
        raise BadValue(f"cannot listen on {host}:{port}: {reason}; choose another --port or --host") from error


def server_tls(cert: str | None, key: str | None) -> ssl.SSLContext | None:
    """Return the TLS settings for a certificate and its key; None without them. Raises `BadValue`."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise BadValue("--tls-cert and --tls-key go together, only one was given")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:  # ssl.SSLError is one
        raise BadValue(f"--tls-cert {cert}, --tls-key {key}: {error.strerror or error}") from error
    return context
