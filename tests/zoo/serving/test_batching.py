"""Requests share batches, wait no longer than the window, and fail alone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from vla_gym.errors import BadValue
from zoo.serving.batching import Batcher
from zoo.serving.declaration import Declaration
from zoo.serving.metrics import Metrics
from zoo.serving.requests import Decision, NoiseKey, Request

from .conftest import echo, observation


def request(declaration: Declaration, brightness: int = 0) -> Request:
    obs = observation(declaration) | {"image": np.full((8, 8, 3), brightness, np.uint8)}
    return Request(observation=obs, noise=NoiseKey(seed=0, numbers=(0, 0, 0)), deterministic=True)


def run(
    decide: Callable[[Sequence[Request]], list[Decision]],
    ask: Callable[[Batcher], Awaitable[Any]],
    *,
    window: float = 0.2,
    max_batch: int = 8,
) -> tuple[Any, Metrics]:
    metrics = Metrics()

    async def main() -> Any:
        batcher = Batcher(decide, window=window, max_batch=max_batch, metrics=metrics)
        task = asyncio.create_task(batcher.run())
        try:
            return await ask(batcher)
        finally:
            task.cancel()
            batcher.close()

    return asyncio.run(main()), metrics


def test_clients_that_ask_together_share_a_batch_and_get_their_own_answers(declaration: Declaration) -> None:
    async def ask(batcher: Batcher) -> list[Decision]:
        return await asyncio.gather(*(batcher.submit(n, request(declaration, 51 * n)) for n in range(5)))

    answers, metrics = run(echo(declaration), ask)
    assert [round(float(one.action_KA[0, 0]), 3) for one in answers] == [0.0, 0.2, 0.4, 0.6, 0.8]
    assert {one.value for one in answers} == {5.0}
    assert (metrics.decisions, metrics.batch_size.counts[-1]) == (5, 1)


def test_a_batch_has_its_most(declaration: Declaration) -> None:
    async def ask(batcher: Batcher) -> list[Decision]:
        return await asyncio.gather(*(batcher.submit(n, request(declaration)) for n in range(5)))

    answers, _ = run(echo(declaration), ask, max_batch=2)
    assert sorted(one.value for one in answers) == [1.0, 2.0, 2.0, 2.0, 2.0]


def test_a_client_alone_does_not_wait_and_a_silent_one_costs_a_window(declaration: Declaration) -> None:
    async def ask(batcher: Batcher) -> tuple[float, float, float]:
        alone = (await batcher.submit(0, request(declaration))).seconds
        await batcher.submit(1, request(declaration))
        with_silent = (await batcher.submit(0, request(declaration))).seconds
        batcher.forget(1)
        after = (await batcher.submit(0, request(declaration))).seconds
        return alone, with_silent, after

    (alone, with_silent, after), _ = run(echo(declaration), ask, window=0.2)
    assert max(alone, after) < 0.15
    assert 0.15 < with_silent < 0.6


def test_a_request_that_fails_fails_alone(declaration: Declaration) -> None:
    def decide(requests: Sequence[Request]) -> list[Decision]:
        if any(one.observation["image"].max() == 200 for one in requests):
            raise BadValue("too bright")
        return echo(declaration)(requests)

    async def ask(batcher: Batcher) -> list[Any]:
        asked = [batcher.submit(n, request(declaration, level)) for n, level in enumerate((0, 200, 51))]
        return await asyncio.gather(*asked, return_exceptions=True)

    answers, _ = run(decide, ask)
    assert isinstance(answers[1], BadValue)
    assert [float(answers[n].action_KA[0, 0]) for n in (0, 2)] == pytest.approx([0.0, 0.2])


def test_the_answer_of_a_client_that_has_gone_is_dropped(declaration: Declaration) -> None:
    busy = threading.Event()

    def decide(requests: Sequence[Request]) -> list[Decision]:
        busy.set()
        time.sleep(0.05)
        return echo(declaration)(requests)

    async def ask(batcher: Batcher) -> Decision:
        gone = asyncio.create_task(batcher.submit(0, request(declaration)))
        await asyncio.to_thread(busy.wait)
        gone.cancel()
        return await batcher.submit(1, request(declaration, 255))

    answer, _ = run(decide, ask)
    assert replace(answer, seconds=0.0).action_KA[0, 0] == 1.0
