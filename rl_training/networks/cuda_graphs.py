"""Functions of tensors that a GPU runs as one CUDA graph.

A small network's update is some hundred kernels, each of which takes longer to launch than to run. Recorded once, they
are launched together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

Input: TypeAlias = Tensor | Mapping[str, Tensor] | float
Outputs: TypeAlias = tuple[Tensor, ...]
Record: TypeAlias = Callable[[Callable[[], Outputs]], tuple[Outputs, Callable[[], None]]]
"""Given a function without arguments, returns its outputs and what computes them again, in the same memory."""

WARM_UPS = 3
"""Calls before a recording, in which libraries choose their kernels and buffers are made."""


def cuda_graph(device: torch.device, function: Callable[[], Outputs]) -> tuple[Outputs, Callable[[], None]]:
    """Records what a function launches on a GPU, as a `Record`."""
    with torch.cuda.device(device):
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # of both, as autograd adds up where it first did
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                function()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other threads (a checkpoint that is being written) may use the GPU meanwhile.
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            outputs = function()
    return outputs, graph.replay


@dataclass(frozen=True)
class Recording:
    """A function, recorded for inputs of certain shapes."""

    places: Sequence[Tensor]
    """Where its inputs are read."""
    replay: Callable[[], None]
    outputs: Outputs


class CapturedFunction:
    """A function that is recorded at its first call with inputs of certain shapes, and from then on played back.

    It must do the same each time but for the values of its inputs, wait for nothing from the device, and change nothing
    that it reads: it is called a few times more before it is recorded.

    Args:
        function: Takes tensors, mappings of them and numbers (which arrive as tensors without an axis, since they may
            differ from call to call), and returns tensors.
        record: What records; `cuda_graph` on a GPU.
        device: Where the tensors lie.
    """

    def __init__(self, function: Callable[..., Outputs], record: Record, device: torch.device) -> None:
        self._function, self._record, self._device = function, record, device
        self._recordings: dict[tuple[object, ...], Recording] = {}
        self._refused = False

    def __call__(self, *inputs: Input) -> Outputs:
        """Returns the function's outputs, valid until the next call with inputs of the same shapes."""
        if self._refused:
            return self._function(*inputs)
        leaves = list(_leaves(inputs))
        key = tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else None for leaf in leaves)
        if key not in self._recordings:
            try:
                self._recordings[key] = self._new_recording(inputs)
            except RuntimeError as error:
                # What can't be recorded can still be computed.
                self._refused = True
                logger.warning(f"the GPU runs updates kernel by kernel, since they can't be made a CUDA graph: {error}")
                return self._function(*inputs)
        recording = self._recordings[key]
        for place, leaf in zip(recording.places, leaves, strict=True):
            place.copy_(leaf) if isinstance(leaf, Tensor) else place.fill_(leaf)
        recording.replay()
        return recording.outputs

    def _new_recording(self, inputs: Sequence[Input]) -> Recording:
        own = [self._own(each) for each in inputs]
        outputs, replay = self._record(lambda: self._function(*own))
        places = [leaf for leaf in _leaves(own) if isinstance(leaf, Tensor)]
        return Recording(places, replay, outputs)

    def _own(self, given: Input) -> Input:
        """Returns a copy of an input, whose memory stays its own."""
        if isinstance(given, Mapping):
            return {name: tensor.clone() for name, tensor in given.items()}
        if isinstance(given, Tensor):
            return given.clone()
        return torch.tensor(given, dtype=torch.float64, device=self._device)


def _leaves(inputs: Sequence[Input]) -> Iterator[Tensor | float]:
    for each in inputs:
        if isinstance(each, Mapping):
            yield from each.values()
        else:
            yield each
