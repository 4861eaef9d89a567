"""A toy policy to serve, and a server of it in a thread of this process."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vla_gym.registry import find_benchmark
from vla_policies import VLAPolicy
from vla_policies.resolver import resolve_policy
from zoo.serving.declaration import Declaration, ServerSettings, ServicePlan
from zoo.serving.local_policy import LocalPolicy, open_policy
from zoo.serving.protocols import ActionRequest
from zoo.serving.server import SESSIONS, PolicyServer

CHUNK, SIZE = 4, 16
OPTIONS = {"chunk": CHUNK, "image_size": SIZE, "wrist_camera": False}


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of fresh weights for Toy-Reach."""
    import vla_gym

    envs = vla_gym.make_vec("Toy-Reach", 1, **OPTIONS)
    policy = VLAPolicy(
        envs.as_sb3().observation_space,
        envs.as_sb3().action_space,
        lambda _: 1e-3,
        backbone_kwargs={"size": "tiny"},
        action_spec=envs.benchmark.action_spec,
    )
    envs.close()
    folder = tmp_path_factory.mktemp("toy") / "policy"
    policy.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def toy_policy(toy_folder: Path) -> LocalPolicy:
    """That policy, opened to be served."""
    plan = ServicePlan(name="toy", policy=resolve_policy(toy_folder), env="Toy-Reach", env_options=OPTIONS)
    return open_policy(plan, device="cpu", deterministic=True, any_image_size=False)


@pytest.fixture
def declaration() -> Declaration:
    """What a policy for LIBERO would declare: one camera, a state, chunks of 3 actions of 7 numbers."""
    benchmark = find_benchmark("Toy-Reach")
    return Declaration(
        policy="stand-in",
        env="Toy-Reach",
        cameras=("image",),
        image_size=8,
        state_dim=2,
        chunk=3,
        action_dim=benchmark.action_dim,
        action_spec=benchmark.action_spec,
    )


def observation(declaration: Declaration, seed: int = 0) -> dict[str, Any]:
    """One observation as the declared policy reads it."""
    rng = np.random.default_rng(seed)
    side = declaration.image_size
    obs: dict[str, Any] = {key: rng.integers(0, 256, (side, side, 3), dtype=np.uint8) for key in declaration.cameras}
    if declaration.state_dim:
        obs["state"] = rng.uniform(-1, 1, declaration.state_dim).astype(np.float32)
    return {**obs, "instruction": "reach red"}


def echo(declaration: Declaration) -> Callable[[Sequence[ActionRequest]], list[np.ndarray]]:
    """A policy whose actions are all the mean brightness of the image."""

    def decide(requests: Sequence[ActionRequest]) -> list[np.ndarray]:
        shape = (declaration.chunk, declaration.action_dim)
        means = [request.observation["image"].mean() / 255.0 for request in requests]
        return [np.full(shape, mean, dtype=np.float32) for mean in means]

    return decide


Serving = Callable[..., AbstractContextManager[tuple[PolicyServer, int]]]


@pytest.fixture
def serving() -> Serving:
    """Context manager that serves `decide` in a thread: `serving(decide, declaration, "openpi", token=...)`."""

    @contextmanager
    def serve(
        decide: Callable[[Sequence[ActionRequest]], list[np.ndarray]],
        declaration: Declaration,
        protocol: str = "openpi",
        *,
        port: int = 0,
        **settings: Any,
    ) -> Iterator[tuple[PolicyServer, int]]:
        session = SESSIONS[protocol]
        server = PolicyServer(decide, declaration, session, session.NAMES, ServerSettings(**settings))
        listener = socket.create_server(("127.0.0.1", port))
        thread = threading.Thread(target=lambda: asyncio.run(server.run(listener)))
        thread.start()
        try:
            yield server, listener.getsockname()[1]
        finally:
            while not hasattr(server, "_loop"):
                time.sleep(0.01)
            server.stop()
            thread.join(40)
            assert not thread.is_alive()

    return serve
