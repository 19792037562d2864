"""Saving and loading of training state: every field of a dataclass, so that no field can be forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.networks.adam import FlatAdam
from rl_training.networks.flat import FlatParameters
from rl_training.seeding import generator_state, restore_generator
from rl_training.state_checks import Count, require_finite_values, require_same_form, validate


def save_fields(state: Any) -> dict[str, Any]:
    """Returns copies of a dataclass's fields by name, in the plain types that a checkpoint holds.

    A field whose default is None is left out while it is None.
    """
    values = {field.name: (getattr(state, field.name), field.default) for field in fields(state)}
    return {name: _save(value) for name, (value, default) in values.items() if value is not None or default is not None}


def load_fields(state: Any, saved: Mapping[str, Any], prefix: str = "") -> None:
    """Restores a dataclass's fields from what `save_fields` returned; a field that is None stays None.

    Args:
        state: The dataclass, whose present values say which types and shapes are expected.
        saved: The saved fields by name.
        prefix: Goes before field names in error messages.

    Raises:
        CheckpointError: A saved value has another type, dtype or shape, or is not finite.
    """
    for field in fields(state):
        own = getattr(state, field.name)
        if own is not None:
            setattr(state, field.name, _load(f"{prefix}{field.name}", own, saved[field.name]))


def _save(value: Any) -> Any:
    match value:
        case FlatParameters() | FlatAdam():
            return value.state_dict()
        case np.random.Generator():
            return generator_state(value)
        case np.ndarray():
            return torch.from_numpy(value.copy())
        case Tensor():
            return value.cpu().clone()
        case dict():
            return dict(value)
        case int() | None:
            return value
    return save_fields(value)


def _load(name: str, own: Any, saved: Any) -> Any:
    """Returns the value that takes the place of `own`, which is `own` itself where it is restored in place."""
    match own:
        case FlatParameters() | FlatAdam():
            own.load_state_dict(saved)
        case np.random.Generator():
            return restore_generator(saved)
        case np.ndarray():
            return require_finite_values(name, require_same_form(name, saved, torch.from_numpy(own))).numpy()
        case Tensor():
            own.copy_(require_same_form(name, saved, own.cpu()))
        case dict():
            return {key: validate(f"{name}/{key}", saved[key], float) for key in own}
        case int():
            return validate(name, saved, Count)
        case _:
            load_fields(own, saved, f"{name}/")
    return own
