"""What `zoo.doctor` finds: here or missing, needed or not, and what to do."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from vla_gym.errors import MissingDependency
from zoo import diagnostics
from zoo.diagnostics import Check, all_checks


def fails() -> str:
    raise MissingDependency("no such thing.\n  Install it with: pip install it")


def test_a_finding_is_one_line() -> None:
    checks = [
        Check(name="a", run=lambda: "version 1"),
        Check(name="b", run=fails),
        Check(name="c", run=fails, optional=True),
    ]
    assert [(line.split()[:2], sound) for line, sound in (check.line() for check in checks)] == [
        (["ok", "a"], True),
        (["missing", "b"], False),
        (["without", "c"], True),
    ]
    assert checks[1].line()[0].endswith("no such thing. Install it with: pip install it")


def test_what_is_needed_depends_on_the_environment() -> None:
    def needed(*env_ids: str) -> set[str]:
        return {check.name for check in all_checks(env_ids) if not check.optional}

    always = {"python", "torch", "cache folder"}
    assert needed("MetaWorld/reach") == {*always, "GL", "MetaWorld/reach"}
    assert needed("ManiSkill-Plate25") == {*always, "Vulkan", "ManiSkill-Plate25"}
    assert needed("Toy-Reach") == {*always, "Toy-Reach"}


def test_assets_are_looked_for_where_they_are_drawn() -> None:
    def looked(env_id: str) -> bool:
        return "Plate25's assets" in [check.name for check in all_checks((env_id,))]

    assert not looked("MetaWorld/reach")
    assert looked("ManiSkill-Plate25")


def test_an_image_of_one_colour_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert diagnostics.first_image("Toy-Reach").startswith("first image after ")
    black = {"image": np.full((1, 4, 4, 3), 7, dtype=np.uint8)}
    envs = SimpleNamespace(reset=lambda seed: (black, {}), close=lambda: None)
    monkeypatch.setattr(diagnostics, "make_vec", lambda *args, **options: envs)
    with pytest.raises(MissingDependency, match="every number is 7"):
        diagnostics.first_image("Toy-Reach")


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[http.server.HTTPServer]:
    from huggingface_hub import constants

    class NotFound(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(404)

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), NotFound)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield server
    server.shutdown()
    server.server_close()


def test_a_hub_that_answers_is_there_whatever_it_says(
    endpoint: http.server.HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert diagnostics.hub().endswith("answers")


def test_a_hub_that_is_gone(endpoint: http.server.HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    endpoint.shutdown()
    endpoint.server_close()
    with pytest.raises(MissingDependency, match="does not answer"):
        diagnostics.hub()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(MissingDependency, match="HF_HUB_OFFLINE is set"):
        diagnostics.hub()
