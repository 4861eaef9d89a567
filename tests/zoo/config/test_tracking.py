from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from vla_gym.errors import BadValue, MissingDependency, UnknownName
from zoo.config import tracking
from zoo.config.tracking import SERVICES, Tracking, check_tracking


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All trackers installed, no variable of theirs set, and no proxy between this test and its own server."""
    monkeypatch.setattr(tracking, "find_spec", lambda name: object())
    names = {name for service in SERVICES.values() for name in (*service.local_modes, *service.remote_variables)}
    for name in (*names, "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[str]:
    """A server that has no page at all: it answers, and that is enough."""

    class NoPage(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(404)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), NoPage) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


def test_names_and_packages_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'wandb'"):
        check_tracking(Tracking(trackers=("wandbb",)))
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="pip install swanlab"):
        check_tracking(Tracking(trackers=("swanlab",)))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (Tracking(project="mine"), "--project-name names a run at its trackers; add --track wandb"),
        (Tracking(run_name="mine"), "--run-name names"),
        (Tracking(trackers=("trackio",), entity="lab"), "--wandb-entity is for wandb and swanlab; add --track wandb"),
        (Tracking(trackers=("trackio",), tags=("toy",)), "--wandb-tags is for wandb and swanlab"),
        (Tracking(group="seeds"), "--wandb-group is for wandb and trackio"),
        (Tracking(trackers=("tensorboard",)), "every run has TensorBoard's log in its folder"),
    ],
)
def test_names_that_no_tracker_takes_are_refused(asked: Tracking, message: str) -> None:
    with pytest.raises(BadValue, match=message):
        check_tracking(asked)


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_without_a_network_the_offline_mode_is_named_and_works(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing listens at port 1.
    monkeypatch.setenv(SERVICES[name].address[0], "http://127.0.0.1:1")
    with pytest.raises(
        BadValue, match=rf"--track {name}: http://127.0.0.1:1 does not answer .*{name.upper()}_MODE=offline"
    ):
        check_tracking(Tracking(trackers=(name,)))
    monkeypatch.setenv(f"{name.upper()}_MODE", "offline")
    check_tracking(Tracking(trackers=(name,)))


def test_a_server_that_answers_is_reachable(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", server)
    check_tracking(Tracking(trackers=("wandb",)))


def test_trackio_stays_on_this_machine_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    check_tracking(Tracking(trackers=("trackio",)))
    monkeypatch.setenv("TRACKIO_SERVER_URL", "http://127.0.0.1:1")
    with pytest.raises(BadValue, match="unset TRACKIO_SPACE_ID and TRACKIO_SERVER_URL"):
        check_tracking(Tracking(trackers=("trackio",)))


def test_the_project_is_the_flags_then_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Tracking().project_of("wandb") == "vla-zoo"
    monkeypatch.setenv("WANDB_PROJECT", "lab")
    assert Tracking().project_of("wandb") == "lab"
    assert Tracking(project="mine").project_of("wandb") == "mine"
