"""Decisions as CUDA graphs: the kernels of a call, recorded once for each size of its inputs, launched as one.

A graph reads inputs, random numbers and weights where they lay when it was recorded. So inputs and numbers, which are
drawn outside, are copied there; weights that change in place are seen; where one has moved, all are recorded anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from vla_policies.actions.noise import Noise
from vla_policies.devices import capturing, upload
from vla_policies.types import PolicyInputs, tensors_of

_log = logging.getLogger(__name__)

TEXT_STEP = 16
"""Lengths of text come in multiples of it, so that few graphs serve all prompts."""
MOST = 16
"""Graphs that are kept; one more drops them all."""

Call = Callable[[PolicyInputs, Noise], Any]
"""The recorded part: no uploads, no waits, the same kernels for all inputs of one size."""
Capture = Callable[[Callable[[], Any]], tuple[Callable[[], object], Any]]
"""Records a call; returns what launches it again, and its results, which that overwrites."""


def cuda_capture(device: torch.device) -> Capture:
    """Recording on `device`, all graphs in one pool of memory: none runs beside another, and results stay allocated."""
    pool = torch.cuda.graph_pool_handle()

    def capture(call: Callable[[], Any]) -> tuple[Callable[[], object], Any]:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(device)
        beside = torch.cuda.Stream(device)
        beside.wait_stream(stream)
        try:
            with torch.cuda.stream(beside):  # libraries allocate their workspaces before the recording
                call()
            stream.wait_stream(beside)
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                out = call()
        finally:
            torch.cuda.set_stream(stream)  # a recording that fails leaves its own
        return graph.replay, out

    return capture


@dataclass(frozen=True)
class _Graph:
    """A recorded call."""

    inputs: PolicyInputs
    drawn: Sequence[Tensor]
    launch: Callable[[], object]
    results: Any


class _Asking(Noise):
    """Draws from another noise and notes what it was asked for: the draw, and its shape without the batch."""

    def __init__(self, noise: Noise) -> None:
        self.asked: list[tuple[str, tuple[int, ...]]] = []
        self._noise = noise

    def uniform(self, *shape: int, device: torch.device) -> Tensor:
        self.asked.append(("uniform", shape[1:]))
        return self._noise.uniform(*shape, device=device)

    def normal(self, *shape: int, device: torch.device) -> Tensor:
        self.asked.append(("normal", shape[1:]))
        return self._noise.normal(*shape, device=device)


class _Drawn(Noise):
    """Numbers that were drawn before, in their order."""

    def __init__(self, drawn: Sequence[Tensor]) -> None:
        self._drawn = iter(drawn)

    def uniform(self, *shape: int, device: torch.device) -> Tensor:
        return next(self._drawn)

    normal = uniform


class Graphs:
    """The recorded calls of one policy."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._asked: dict[Hashable, list[tuple[str, tuple[int, ...]]]] = {}
        self._graphs: dict[Hashable, _Graph] = {}
        self._weights: Sequence[Tensor] = ()
        self._places: tuple[int, ...] = ()
        self._possible = True

    def __deepcopy__(self, memo: object) -> Graphs:
        return Graphs(self._capture)

    def run(
        self, name: Hashable, call: Call, inputs: PolicyInputs, noise: Noise, weights: Callable[[], Sequence[Tensor]]
    ) -> Any:
        """The results of `call(inputs, noise)`, maybe with more rows; the next run overwrites them.

        The first call of a size runs as it is, to learn what it draws; the second is recorded. A call that cannot be
        recorded runs as it is, as all later ones do, and a warning says so.

        :param name: all that the kernels depend on beside the sizes of `inputs`.
        :param weights: the tensors that it reads beside its arguments.
        """
        if not self._possible:
            return call(inputs, noise)
        num, device = len(inputs.text_BL), inputs.text_BL.device
        inputs = _with_text_step(inputs)
        key = (name, rows_for(num), *(x.shape[1:] for x in tensors_of(inputs)))
        if key not in self._asked:
            asking = _Asking(noise)
            results = call(inputs, asking)
            self._asked[key] = asking.asked
            return results
        drawn = [getattr(noise, draw)(num, *shape, device=device) for draw, shape in self._asked[key]]
        if tuple(x.data_ptr() for x in self._weights) != self._places or len(self._graphs) == MOST:
            self._graphs.clear()
        if not self._graphs:
            self._weights = weights()
            self._places = tuple(x.data_ptr() for x in self._weights)
        if key not in self._graphs:
            try:
                self._graphs[key] = self._record(call, inputs, drawn, rows_for(num))
            except RuntimeError as error:
                self._possible = False
                _log.warning("decisions are launched kernel by kernel, as no CUDA graph can be made of them: %s", error)
                return call(inputs, _Drawn(drawn))
        graph = self._graphs[key]
        places = [*graph.drawn, *tensors_of(graph.inputs)]
        for place, x in zip(places, [*drawn, *tensors_of(inputs)], strict=True):
            place[: len(x)].copy_(upload(x, device))
        graph.launch()
        return graph.results

    def _record(self, call: Call, inputs: PolicyInputs, drawn: Sequence[Tensor], rows: int) -> _Graph:
        device = inputs.text_BL.device

        def fixed(x: Tensor) -> Tensor:
            return torch.cat([x, x[-1:].expand(rows - len(x), *x.shape[1:])]).to(device)

        own, numbers = inputs.mapped(fixed), list(map(fixed, drawn))
        with capturing():
            launch, results = self._capture(lambda: call(own, _Drawn(numbers)))
        return _Graph(own, numbers, launch, results)


def rows_for(num: int) -> int:
    """Rows of the graph that serves `num` observations: as many up to 8, then multiples of 8."""
    return num if num <= 8 else -(-num // 8) * 8


def _with_text_step(inputs: PolicyInputs) -> PolicyInputs:
    missing = -inputs.text_BL.shape[1] % TEXT_STEP

    def longer(x: Tensor) -> Tensor:
        return functional.pad(x, (0, missing)) if x is inputs.text_BL or x is inputs.text_mask_BL else x

    return inputs.mapped(longer) if missing else inputs
