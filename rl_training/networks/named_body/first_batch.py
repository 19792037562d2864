"""Tries a body on one batch before anything learns with it.

A run can be resumed, evaluated and served only if the parameters of a body are all that its features depend on: these
are what a checkpoint holds. Statistics that a module updates as it computes, and numbers that it draws, would be lost.

Shapes: B batch, F features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from rl_training.config.network import BodyConfig
from rl_training.errors import USER_CODE_ERRORS, ConfigError, error_line
from rl_training.networks.backend import NUMPY
from rl_training.networks.feature_extractors import ObservationLayout, to_arrays
from rl_training.networks.named_body.body_class import describe

Batch: TypeAlias = Tensor | Mapping[str, Tensor]
"""What a body gets: vectors or images, or a tensor for each part of mixed observations."""

ROWS = 4
"""Number of observations in the batch (B)."""
TOLERANCE = 1e-3
"""Largest difference between a row that is computed in two batches, as a share of the largest feature.

Sums of float32 round differently in batches of other sizes.
"""


class Refused(Exception):
    """The reason why a body can't be used."""


def count_features(settings: BodyConfig, layout: ObservationLayout, modules: Sequence[nn.Module]) -> int:
    """Returns the number of features (F) of a body after trying it on one batch.

    Args:
        settings: The class of the body, for messages.
        layout: The layout of the observations.
        modules: Three new modules, the first two of the same seed and the third of another one. The first is not
            called, so that a network begins with a module that has computed nothing yet.

    Raises:
        ConfigError: The body can't be used; the message says what was got, what was expected, and what to do.
    """
    first, again, other = modules
    try:
        with torch.random.fork_rng(devices=[]):
            _require_equal_parameters(first, again)
            batch = _draw_batch(layout)
            features_BF = _compute(again, batch)
            _require_kept_state(again, first, batch, features_BF)
            _require_single_rows(again, batch, features_BF)
            _require_gradients(again, features_BF)
            _require_nothing_but_parameters(other, first, batch, features_BF)
    except Refused as reason:
        raise ConfigError(f"{describe(settings)}: {reason}") from reason.__cause__
    return features_BF.shape[1]


def _require_equal_parameters(first: nn.Module, again: nn.Module) -> None:
    for name, parameter in first.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise Refused(f"{name} has no size yet; expected layers of given sizes in place of lazy ones")
        if parameter.dtype != torch.float32:
            raise Refused(f"{name} is {_name_dtype(parameter)}, expected float32")
    if not _equal(dict(first.named_parameters()), dict(again.named_parameters())):
        raise Refused(
            "its first weights differ between two instances, expected the same ones from the same seed; draw them from "
            "torch's own generator, which is seeded before the class is called"
        )


def _compute(module: nn.Module, batch: Batch) -> Tensor:
    """Returns the features of a batch, [B, F]."""
    before = _copy(batch)
    try:
        features = module(batch)
    except USER_CODE_ERRORS as error:
        raise Refused(f"failed on {_describe_batch(batch)}: {error_line(error)}") from error
    if not isinstance(features, Tensor):
        raise Refused(f"returned a {type(features).__name__} for {_describe_batch(batch)}, expected a tensor [B, F]")
    if features.ndim != 2 or len(features) != ROWS or features.shape[1] == 0 or features.dtype != torch.float32:
        raise Refused(
            f"returned {_name_dtype(features)} {list(features.shape)} for {_describe_batch(batch)}, expected float32 "
            f"[{ROWS}, F], a row of F features for each observation"
        )
    if not bool(torch.isfinite(features).all()):
        raise Refused(f"returned a NaN or infinity for {_describe_batch(batch)}, expected finite features")
    if not _equal(_name_parts(before), _name_parts(batch)):
        raise Refused(
            "changed the observations that it was given, which other networks read too; leave out operations in place, "
            "such as div_ or nn.ReLU(inplace=True) on the observations themselves"
        )
    return features


def _require_kept_state(module: nn.Module, untouched: nn.Module, batch: Batch, features_BF: Tensor) -> None:
    buffers = dict(untouched.named_buffers())
    for name, buffer in module.named_buffers():
        if name not in buffers or not _equal({name: buffer}, {name: buffers[name]}):
            raise Refused(
                f"changed its buffer {name} as it computed, and a checkpoint holds parameters alone; in place of "
                f"BatchNorm, use GroupNorm or LayerNorm, which keep no running statistics"
            )
    if not torch.equal(_compute(module, batch), features_BF):
        raise Refused(
            "returned different features for the same observations, expected the same ones each time; leave out "
            "dropout and other layers that draw random numbers"
        )


def _require_single_rows(module: nn.Module, batch: Batch, features_BF: Tensor) -> None:
    half = {name: part[: ROWS // 2] for name, part in _name_parts(batch).items()}
    try:
        rows = module(half if isinstance(batch, Mapping) else half[""])
        error = (rows - features_BF[: ROWS // 2]).abs().max().item()
    except USER_CODE_ERRORS as failed:
        raise Refused(f"failed on {ROWS // 2} observations after {ROWS}: {error_line(failed)}") from failed
    if error > TOLERANCE * features_BF.abs().max().item():
        raise Refused(
            f"returned features of an observation that depend on the others in its batch (they differ by {error:.3g}); "
            f"in place of BatchNorm, use GroupNorm or LayerNorm"
        )


def _require_gradients(module: nn.Module, features_BF: Tensor) -> None:
    learned = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if not learned:
        return
    try:
        gradients = torch.autograd.grad(features_BF.sum(), list(learned.values()), allow_unused=True)
    except RuntimeError as error:
        raise Refused(f"can't learn, because its features have no gradient: {error_line(error)}") from error
    for name, gradient in zip(learned, gradients, strict=True):
        if gradient is None:
            raise Refused(f"{name} gets no gradient; use it in forward, or set its requires_grad to False")
        if not bool(torch.isfinite(gradient).all()):
            raise Refused(f"the gradient of {name} has a NaN or infinity, expected finite numbers")


def _require_nothing_but_parameters(other: nn.Module, first: nn.Module, batch: Batch, features_BF: Tensor) -> None:
    """Checks that a module of another seed computes the same features once it has the same parameters."""
    parameters = dict(first.named_parameters())
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            parameter.copy_(parameters[name])
        features = _compute(other, batch)
    if not torch.equal(features, features_BF):
        raise Refused(
            "returned different features from another instance with the same parameters, and a checkpoint holds "
            "parameters alone; make random tensors an nn.Parameter, with requires_grad=False if they are fixed"
        )


def _draw_batch(layout: ObservationLayout) -> Batch:
    """Returns standard normal vectors and random pixels."""
    rng = np.random.default_rng(0)
    batch = np.zeros((ROWS, *layout.shape), layout.dtype)
    for part in [batch] if batch.dtype.names is None else [batch[name] for name in batch.dtype.names]:
        part[...] = rng.integers(256, size=part.shape) if part.dtype == np.uint8 else rng.standard_normal(part.shape)
    arrays = to_arrays(batch, NUMPY)
    return torch.from_numpy(arrays) if isinstance(arrays, np.ndarray) else arrays


def _name_parts(batch: Batch) -> dict[str, Tensor]:
    return dict(batch) if isinstance(batch, Mapping) else {"": batch}


def _copy(batch: Batch) -> Batch:
    return {name: part.clone() for name, part in batch.items()} if isinstance(batch, Mapping) else batch.clone()


def _equal(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    """Returns whether tensors have the same names, dtypes, shapes and numbers; a NaN equals another one."""
    return some.keys() == others.keys() and all(
        (some[name].dtype, some[name].shape) == (others[name].dtype, others[name].shape)
        and torch.allclose(some[name], others[name], rtol=0, atol=0, equal_nan=True)
        for name in some
    )


def _describe_batch(batch: Batch) -> str:
    words = list(_describe_parts(batch))
    return f"a mapping of {', '.join(words)}" if isinstance(batch, Mapping) else words[0]


def _describe_parts(batch: Batch) -> Iterator[str]:
    for name, part in _name_parts(batch).items():
        yield f"{f'{name}: ' if name else ''}{_name_dtype(part)} {list(part.shape)}"


def _name_dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
