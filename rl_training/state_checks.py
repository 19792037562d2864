"""Checks of restored state: whether it has the form that what is restored needs.

A checkpoint may come from anyone, and its hashes say only that its files are as somebody wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import cache
from typing import Annotated, Any, TypeAlias, TypeVar, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from rl_training.errors import CheckpointError, RLTrainingError, one_line

Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**53)]
"""A number of steps, say: a form for `typed`."""

ArrayT = TypeVar("ArrayT")


def require_same_form(name: str, got: Any, own: Any) -> Any:
    """Returns a restored tensor or array, which must be like the one whose place it takes.

    Args:
        name: What errors call it.
        got: What was read.
        own: What it replaces.

    Raises:
        CheckpointError: It is of another kind, dtype or shape.
    """
    if type(got) is not type(own) or (got.dtype, got.shape) != (own.dtype, own.shape):
        raise CheckpointError(f"{name}: got {_described(got)}, expected {_described(own)}")
    return got


def require_finite_values(name: str, got: ArrayT) -> ArrayT:
    """Returns a restored tensor or array.

    Raises:
        CheckpointError: It has a NaN or infinity.
    """
    if not bool((got - got == 0).all()):  # type: ignore[operator]
        raise CheckpointError(f"{name} has a NaN or infinity")
    return got


def validate(name: str, got: Any, form: Any) -> Any:
    """Returns a restored value of a type that pydantic knows, a number with bounds, say; or a dataclass, from its dict.

    Raises:
        CheckpointError: It is of another type, or out of bounds.
    """
    try:
        value = _adapter(form).validate_python(got, strict=True)
        return form(**value) if isinstance(form, type) and is_dataclass(form) else value
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join([name, *map(str, fault["loc"])])
        raise CheckpointError(f"{where}: got {one_line(fault['input'], repr)}: {fault['msg']}") from None


@contextmanager
def restoring(refusal: str) -> Iterator[None]:
    """Turns what is raised while a state is restored into one line of ours; errors of ours stay as they are.

    A state has passed its hashes, but its values can be wrong in more ways than any list of checks has, and algorithms
    of other packages restore theirs too.

    Args:
        refusal: What to say, before the reason.

    Raises:
        CheckpointError: Something was raised.
    """
    try:
        yield
    except RLTrainingError:
        raise
    except Exception as error:
        raise CheckpointError(f"{refusal} ({type(error).__name__}: {one_line(error)})") from error


@cache
def _adapter(form: Any) -> TypeAdapter[Any]:
    if isinstance(form, type) and is_dataclass(form):  # for which pydantic wants an instance, where it is strict
        fields = get_type_hints(form, include_extras=True)
        return TypeAdapter(with_config(ConfigDict(extra="forbid"))(TypedDict(form.__name__, fields, total=False)))  # type: ignore[operator]
    return TypeAdapter(form)


def _described(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype} {tuple(value.shape)}"
    return f"a {type(value).__name__}"
