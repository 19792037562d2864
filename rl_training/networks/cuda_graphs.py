"""Records functions of tensors as CUDA graphs.

The update of a small network takes some hundred kernels, each of which takes longer to launch than to run. A CUDA graph
records them once and launches them together.
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
"""Takes a function without arguments; returns its outputs and a function that recomputes them in the same memory."""

WARM_UPS = 3
"""Number of calls before a recording, in which libraries choose their kernels and allocate buffers."""


def cuda_graph(device: torch.device, function: Callable[[], Outputs]) -> tuple[Outputs, Callable[[], None]]:
    """Records the kernels that a function launches on a GPU; see `Record`."""
    with torch.cuda.device(device):
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # for warm-up and capture: autograd accumulates on the stream that it first used
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                function()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as one that writes a checkpoint, may use the GPU meanwhile.
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            outputs = function()
    return outputs, graph.replay


@dataclass(frozen=True)
class Recording:
    """The recording of a function for inputs of certain shapes."""

    places: Sequence[Tensor]
    """Tensors that the recording reads its inputs from."""
    replay: Callable[[], None]
    """Recomputes the outputs."""
    outputs: Outputs
    """Tensors that the recording writes its outputs to."""


class CapturedFunction:
    """Records a function at the first call with inputs of certain shapes, and replays the recording from then on.

    Apart from the values of its inputs, the function must do the same in each call. It must not wait for the device,
    and must not modify what it reads, because it is called several times before it is recorded.

    Args:
        function: Takes tensors, mappings of tensors, and numbers, and returns tensors. Numbers arrive as tensors
            without an axis, because they may differ from call to call.
        record: Makes the recording; `cuda_graph` on a GPU.
        device: Device of the tensors.
    """

    def __init__(self, function: Callable[..., Outputs], record: Record, device: torch.device) -> None:
        self._function, self._record, self._device = function, record, device
        self._recordings: dict[tuple[object, ...], Recording] = {}
        self._refused = False

    def __call__(self, *inputs: Input) -> Outputs:
        """Returns the function's outputs, valid until the next call with inputs of the same shapes."""
        if self._refused:
            return self._function(*inputs)
        leaves = list(_flatten(inputs))
        key = tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else None for leaf in leaves)
        if key not in self._recordings:
            try:
                self._recordings[key] = self._make_recording(inputs)
            except RuntimeError as error:
                # A function that can't be recorded can still be called.
                self._refused = True
                logger.warning(
                    f"updates run on the GPU kernel by kernel because they can't be recorded as a CUDA graph: {error}"
                )
                return self._function(*inputs)
        recording = self._recordings[key]
        for place, leaf in zip(recording.places, leaves, strict=True):
            place.copy_(leaf) if isinstance(leaf, Tensor) else place.fill_(leaf)
        recording.replay()
        return recording.outputs

    def _make_recording(self, inputs: Sequence[Input]) -> Recording:
        own = [self._copy(each) for each in inputs]
        outputs, replay = self._record(lambda: self._function(*own))
        places = [leaf for leaf in _flatten(own) if isinstance(leaf, Tensor)]
        return Recording(places, replay, outputs)

    def _copy(self, given: Input) -> Input:
        """Returns a copy of an input, for the recording to read from."""
        if isinstance(given, Mapping):
            return {name: tensor.clone() for name, tensor in given.items()}
        if isinstance(given, Tensor):
            return given.clone()
        return torch.tensor(given, dtype=torch.float64, device=self._device)


def _flatten(inputs: Sequence[Input]) -> Iterator[Tensor | float]:
    for each in inputs:
        if isinstance(each, Mapping):
            yield from each.values()
        else:
            yield each
