"""Requests of several clients gathered for a few milliseconds and decided together, in a thread of their own."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from zoo.serving.metrics import Metrics
from zoo.serving.requests import Decision, Request

ACTIVE_SECONDS = 1.0
"""How long after its last request a client still counts as one whose next request may be worth waiting for."""

Decide = Callable[[Sequence[Request]], list[Decision]]


@dataclass
class _Waiting:
    client: int
    request: Request
    answer: asyncio.Future[Decision]
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """Decides for waiting requests; a batch begins once the policy is free.

    It holds the oldest request for `window` seconds at most, less once it is full or every active client has asked:
    a client alone never waits for others.
    """

    def __init__(self, decide: Decide, *, window: float, max_batch: int, metrics: Metrics) -> None:
        self._decide, self._window, self._max_batch, self._metrics = decide, window, max_batch, metrics
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._asked_at: dict[int, float] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="policy")

    async def submit(self, client: int, request: Request) -> Decision:
        """Return the policy's decision for a client's request; raises what the policy raised for it."""
        waiting = _Waiting(client, request, asyncio.get_running_loop().create_future())
        self._asked_at[client] = waiting.since
        self._waiting.append(waiting)
        self._arrived.set()
        decision = await waiting.answer
        return replace(decision, seconds=time.monotonic() - waiting.since)

    def forget(self, client: int) -> None:
        """Wait for a client's requests no longer."""
        self._asked_at.pop(client, None)

    async def run(self) -> None:
        """Decide until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            batch = await self._gather()
            started = time.monotonic()
            outcomes = await loop.run_in_executor(self._thread, self._outcomes, [one.request for one in batch])
            self._metrics.batch_size.add(len(batch))
            self._metrics.decide_seconds.add(time.monotonic() - started)
            for one, outcome in zip(batch, outcomes, strict=True):
                if one.answer.done():  # its client has gone
                    continue
                if isinstance(outcome, Exception):
                    one.answer.set_exception(outcome)
                else:
                    one.answer.set_result(outcome)

    def close(self) -> None:
        """End the policy's thread; requests that still wait are cancelled."""
        for one in self._waiting:
            one.answer.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _gather(self) -> list[_Waiting]:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            await self._wait_for_more()
            batch: list[_Waiting] = []
            while self._waiting and len(batch) < self._max_batch:
                one = self._waiting.popleft()
                if not one.answer.done():
                    batch.append(one)
            if self._waiting:
                self._arrived.set()
            if batch:
                return batch

    async def _wait_for_more(self) -> None:
        while self._waiting and len(self._waiting) < min(self._max_batch, self._active()):
            left = self._waiting[0].since + self._window - time.monotonic()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(self._arrived.wait(), left)
            except TimeoutError:
                return
            self._arrived.clear()

    def _active(self) -> int:
        now = time.monotonic()
        return sum(now - asked < ACTIVE_SECONDS for asked in self._asked_at.values())

    def _outcomes(self, requests: Sequence[Request]) -> list[Decision | Exception]:
        """Decide for all together; if that fails, one by one, so that a request fails for its own fault alone."""
        try:
            return list(self._decide(requests))
        except Exception as error:  # noqa: BLE001  handed to the clients' connections, which log it
            if len(requests) == 1:
                return [error]
        return [outcome for request in requests for outcome in self._outcomes([request])]
