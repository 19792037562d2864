"""Checks that restored state has the types, shapes and values that its owner needs.

A checkpoint may come from anyone; its hashes only prove that its files are unchanged since somebody wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from rl_training.errors import CheckpointError, RLTrainingError, UserError, describe_fault, error_line, one_line

Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**53)]
"""A type for `validate`: a count, for example of steps."""

ArrayT = TypeVar("ArrayT")

RESTORED_FROM = frozenset({"builtins", "numpy", "torch", "gymnasium", "rl_training"})
"""The packages whose objects a restored state consists of, or is given to; other objects belong to an algorithm."""


def require_same_form(name: str, got: Any, own: Any) -> Any:
    """Returns a restored tensor or array after checking that it matches the one that it replaces.

    Raises:
        CheckpointError: The type, dtype or shape differs.
    """
    if type(got) is not type(own) or (got.dtype, got.shape) != (own.dtype, own.shape):
        raise CheckpointError(f"{name}: got {_describe(got)}, expected {_describe(own)}")
    return got


def require_finite_values(name: str, got: ArrayT) -> ArrayT:
    """Returns a restored tensor or array after checking that all of its numbers are finite.

    Raises:
        CheckpointError: It has a NaN or infinity.
    """
    if not bool((got - got == 0).all()):  # type: ignore[operator]
        raise CheckpointError(f"{name} has a NaN or infinity")
    return got


def validate(name: str, got: Any, form: Any) -> Any:
    """Returns a restored value after checking its type.

    Args:
        name: Its name in error messages.
        got: The restored value.
        form: A type that pydantic can check, for example `Count`; or a dataclass, which is made from a dict.

    Raises:
        CheckpointError: The value is of another type or out of bounds.
    """
    try:
        value = _make_adapter(form).validate_python(got, strict=True)
        return form(**value) if isinstance(form, type) and is_dataclass(form) else value
    except ValidationError as error:
        raise CheckpointError(describe_fault(error.errors()[0], name)) from None


@contextmanager
def restoring(source: Path, what: str, algorithm: str) -> Iterator[None]:
    """Turns any exception in the block into a `CheckpointError`; errors of this package pass unchanged.

    A state that matches its hashes can still have wrong values, in more ways than checks can list, and algorithms of
    other packages restore their states here too.

    Args:
        source: The file or checkpoint that is read.
        what: What it should hold, such as `a policy`.
        algorithm: The name of the algorithm that restores its state.

    Raises:
        CheckpointError: The block raised another exception.
        UserError: The algorithm, which comes from another package, lacks a part that the block needs.
    """
    try:
        yield
    except RLTrainingError:
        raise
    except Exception as error:
        if lack := _describe_missing_part(error):
            raise UserError(describe_lack(algorithm, lack)) from error
        raise CheckpointError(
            f"{source} is refused: it does not hold {what} of {algorithm} ({type(error).__name__}: {one_line(error)})"
        ) from error


def describe_lack(algorithm: str, lack: str) -> str:
    """Returns the message about an algorithm of another package that lacks a part."""
    return f"algorithm {algorithm}: {lack}; add it, as the page on algorithms of your own describes"


def _describe_missing_part(error: Exception) -> str | None:
    """Returns which part an algorithm lacks if that is the cause of an error, rather than the restored state."""
    if isinstance(error, NotImplementedError):
        return f"it does not implement what this needs ({error_line(error)})"
    if not isinstance(error, AttributeError):
        return None
    owner = error.obj if isinstance(error.obj, type) else type(error.obj)
    if owner.__module__.partition(".")[0] in RESTORED_FROM:
        return None
    return f"its {owner.__name__} has no {error.name}"


@cache
def _make_adapter(form: Any) -> TypeAdapter[Any]:
    if isinstance(form, type) and is_dataclass(form):  # a strict pydantic would expect an instance, not a dict
        fields = get_type_hints(form, include_extras=True)
        return TypeAdapter(with_config(ConfigDict(extra="forbid"))(TypedDict(form.__name__, fields, total=False)))  # type: ignore[operator]
    return TypeAdapter(form)


def _describe(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype} {tuple(value.shape)}"
    return f"a {type(value).__name__}"
