"""Stores all parameters of a network in one vector, and all gradients in another.

Clipping is then one norm, an optimiser step a few operations on one array, Polyak averaging one operation, and numpy
can read the memory. Each parameter starts at a multiple of 64 bytes (a cache line, and the widest vector register); the
gaps between parameters hold zeros, have no gradient, and stay zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from rl_training.errors import CheckpointError
from rl_training.networks.backend import Array, Backend, backend_of
from rl_training.state_checks import require_finite_values

ALIGNMENT_BYTES = 64


@runtime_checkable
class Bound(Protocol):
    """A module that computes directly on the memory of its parameters."""

    def bind(self, backend: Backend) -> None:
        """Makes the module compute with a backend, on the current memory of its parameters and gradients."""


@dataclass(frozen=True)
class Layers:
    """Names of parameters, by whether they were copied from another network."""

    carried: tuple[str, ...]
    """Parameters that were copied."""
    fresh: tuple[str, ...]
    """Parameters that kept their initial values."""

    def beside(self, others: Layers, prefix: str) -> Layers:
        """Returns these names together with those of a second network, which get a prefix."""
        carried, fresh = ([f"{prefix}{name}" for name in names] for names in (others.carried, others.fresh))
        return Layers((*self.carried, *carried), (*self.fresh, *fresh))


class FlatParameters:
    """Moves the parameters of a module into one vector and turns them into views of it.

    Parts of the module that compute with arrays (`Bound`) are bound to this memory. The module keeps its `nn.Parameter`
    objects, whose `grad` is a view of `gradient`; never set `grad` to None. Do not move, cast or copy the module
    afterwards, because its parameters would leave the vector. To copy a network, for example as a target, construct a
    second one and copy the vector.

    Attributes:
        vector: The parameters, [P].
        gradient: The gradients, [P].
        backend: The backend that computes with the parameters.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        module.to(device)
        self._parameters = dict(module.named_parameters())
        first = next(iter(self._parameters.values()))
        lane = ALIGNMENT_BYTES // first.element_size()
        starts, total = [], 0
        for parameter in self._parameters.values():
            starts.append(total)
            total += math.ceil(parameter.numel() / lane) * lane
        self.vector = torch.zeros(total, dtype=first.dtype, device=device)
        self.gradient = torch.zeros_like(self.vector)
        for start, parameter in zip(starts, self._parameters.values(), strict=True):
            place = slice(start, start + parameter.numel())
            view = self.vector[place].view(parameter.shape)
            view.copy_(parameter.detach())
            parameter.data = view
            parameter.grad = self.gradient[place].view(parameter.shape)
        self.backend = backend_of(device)
        self._gradient = self.backend.view(self.gradient)
        for part in reversed(list(module.modules())):  # innermost modules first
            if isinstance(part, Bound):
                part.bind(self.backend)

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise TypeError("a copy would lose the shared memory; construct a second network and copy its vector")

    def squared_gradient_norm(self) -> Array:
        """Returns the square of the gradient's Euclidean norm, as an array of one number."""
        return self._gradient @ self._gradient

    def clip_gradient(self, norm: float, max_norm: float) -> None:
        """Scales the gradient, whose norm is `norm`, so that its norm is at most `max_norm`."""
        if norm > max_norm:
            self.gradient.mul_(max_norm / norm)

    def non_finite_parameter(self) -> str | None:
        """Returns the name of the first parameter with a NaN or infinity, or None."""
        return self._non_finite(self.vector, {name: p.detach() for name, p in self._parameters.items()})

    def non_finite_gradient(self) -> str | None:
        """Returns the name of the first parameter whose gradient has a NaN or infinity, or None."""
        gradients = {name: p.grad for name, p in self._parameters.items() if p.grad is not None}
        return self._non_finite(self.gradient, gradients)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns a copy of each parameter by name, on the CPU."""
        return {name: parameter.detach().cpu().clone() for name, parameter in self._parameters.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copies the parameters of `state` into this network.

        Raises:
            CheckpointError: The names or shapes differ from this network's, or a value is not finite.
        """
        if faults := dict(self._find_misfits(state)):
            raise CheckpointError(f"weights do not fit the network of these settings: {'; '.join(faults.values())}")
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(require_finite_values(name, state[name]))

    def load_layers_that_fit(self, state: Mapping[str, Tensor]) -> Layers:
        """Copies the layers whose shapes match into this network; other layers keep their values.

        A layer is copied with both its weights and its biases, or not at all.

        Returns:
            The names of the copied and the other parameters.

        Raises:
            CheckpointError: No layer fits, or a value is not finite.
        """
        faults = dict(self._find_misfits(state))
        misfits = {_find_layer(name) for name in faults}
        carried = [name for name in self._parameters if _find_layer(name) not in misfits]
        if not any("weight" in name for name in carried):
            raise CheckpointError(f"no layer of the checkpoint's network fits: {'; '.join(faults.values())}")
        with torch.no_grad():
            for name in carried:
                self._parameters[name].copy_(require_finite_values(name, state[name]))
        return Layers(tuple(carried), tuple(name for name in self._parameters if name not in carried))

    def _find_misfits(self, state: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
        """Yields each name that only one of the networks has, or whose shape differs, with a message."""
        expected = {name: _describe(parameter) for name, parameter in self._parameters.items()}
        got = {str(name): _describe(tensor) for name, tensor in state.items()}
        for name in sorted(expected.keys() | got.keys()):
            if expected.get(name) != got.get(name):
                yield name, f"{name}: got {got.get(name, 'none')}, expected {expected.get(name, 'none')}"

    @staticmethod
    def _non_finite(vector: Tensor, views: Mapping[str, Tensor]) -> str | None:
        if bool(torch.isfinite(vector).all()):
            return None
        return next(name for name, view in views.items() if not bool(torch.isfinite(view).all()))


def _describe(tensor: object) -> object:
    """Describes a tensor by its shape, and by its dtype if that is not float32."""
    if not isinstance(tensor, Tensor):
        return f"a {type(tensor).__name__}"
    return tuple(tensor.shape) if tensor.dtype is torch.float32 else (*tensor.shape, str(tensor.dtype))


def _find_layer(name: str) -> str:
    """Returns the name of the layer that a parameter belongs to, which is the name of its weights.

    These are `weights` in this package's layers and `weight` in torch's.
    """
    return name.replace("biases", "weights").replace("bias", "weight")
