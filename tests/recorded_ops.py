"""A stand-in on the CPU for a CUDA graph: it records the operations of one call and repeats them on the same memory."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


class Operations(TorchDispatchMode):
    """Notes each operation with what it read and what it returned; refuses those that wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            raise RuntimeError(f"{function} waits for the device")
        # Shapes and strides as they are now: some operations change those of a tensor that is there.
        read = tree_map_only(Tensor, Tensor.detach, (args, kwargs or {}))
        result = function(*args, **(kwargs or {}))
        there = {tensor.untyped_storage().data_ptr() for tensor in _tensors(read)}
        made = [t.detach() for t in _tensors(result) if t.untyped_storage().data_ptr() not in there]
        self.noted.append((function, *read, made))
        return result

    def replay(self) -> None:
        """Repeats all operations; each writes its result to the memory of the first result."""
        with torch.no_grad():
            for function, args, kwargs, made in self.noted:
                again = _tensors(function(*args, **kwargs))
                for place, tensor in zip(made, again[len(again) - len(made) :], strict=True):
                    place.copy_(tensor)


def recorded_ops(function: Callable[[], tuple[Tensor, ...]]) -> tuple[tuple[Tensor, ...], Callable[[], None]]:
    """A `Record`: runs a function, once to warm up and once to note what it does."""
    function()
    operations = Operations()
    with operations:
        outputs = function()
    return outputs, operations.replay


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
