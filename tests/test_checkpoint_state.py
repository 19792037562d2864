"""State of tensors, numbers and strings is saved and loaded unchanged, and anything else is refused."""

from __future__ import annotations

import enum
import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rl_training.runtime.checkpoint.plain_state import find_non_finite, from_plain, policy_sha256, to_plain


def through_disk(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(to_plain(state), file)
    file.seek(0)
    return from_plain(torch.load(file, weights_only=True))


MIXED = np.dtype([("vector", "f4", (3,)), ("camera", "u1", (2, 4, 4)), ("flag", "?")])


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 3), MIXED),
        np.array(3.5),
        np.zeros((0, 4), np.float32),
        np.arange(4)[::-1],
        np.broadcast_to(np.arange(3, dtype=np.int8), (2, 3)),
        np.array([1, 2**63], np.uint64),
        np.array([1j]),
        np.array(["left", "up"]),
        np.array([1, 2], ">f4"),
        np.array([1.5], np.float16),
        np.array([True, False]),
        np.array(["2020-01-02"], "datetime64[D]"),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_of_every_dtype_come_back_equal(array: np.ndarray) -> None:
    back = through_disk({"x": array})["x"]
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == np.ascontiguousarray(array).tobytes()
    back[...] = array  # it is writable, as a buffer of a resumed run must be


def test_aligned_structured_arrays_come_back_without_their_padding() -> None:
    array = np.array([(1, 2.5), (3, 4.5)], np.dtype([("a", "u1"), ("b", "f8")], align=True))
    back = through_disk(array)
    assert back["a"].tolist() == [1, 3]
    assert back["b"].tolist() == [2.5, 4.5]


@given(arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(min_dims=0, min_side=0, max_side=4)))
@settings(max_examples=60, deadline=None)
def test_any_numeric_array_comes_back_bit_for_bit(array: np.ndarray) -> None:
    back = from_plain(to_plain(array))
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(JSON_LIKE)
@settings(max_examples=60, deadline=None)
def test_numbers_strings_and_their_nesting_come_back_equal(state: Any) -> None:
    assert through_disk(state) == state


class Phase(enum.StrEnum):
    COLLECT = "collect"


def test_numbers_and_words_of_other_types_become_plain_ones() -> None:
    state = through_disk(
        {"a": np.float64(2.5), "b": np.int64(7), "c": Phase.COLLECT, "d": (np.True_, 1), 5: np.str_("x")}
    )
    assert state == {"a": 2.5, "b": 7, "c": "collect", "d": (True, 1), 5: "x"}
    assert [type(state[key]) for key in ("a", "b", "c")] == [float, int, str]


def test_a_list_of_plain_numbers_is_copied_and_one_with_a_number_of_numpy_becomes_plain() -> None:
    numbers = [1.5, 2, True, None, "x"]
    taken = to_plain({"recent": numbers, "pair": (1, 2.5)})
    numbers.append(3.5)
    assert taken == {"recent": [1.5, 2, True, None, "x"], "pair": (1, 2.5)}
    (mixed,) = to_plain([[1.5, np.float64(2.5)]])
    assert [type(number) for number in mixed] == [float, float]


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (Path("/tmp"), "PosixPath"),
        ({1, 2}, "set"),
        (object(), "object"),
        (np.array([object()]), "array of Python objects"),
        (len, "builtin_function"),
        ({(1, 2): 3}, "key (1, 2)"),
    ],
)
def test_anything_else_is_refused_by_its_place(value: Any, what: str) -> None:
    with pytest.raises(TypeError) as caught:
        to_plain({"envs": [1, value]}, "trainer")
    assert "trainer/envs/1" in str(caught.value)
    assert what in str(caught.value)


def test_a_plain_state_is_taken_as_it_is() -> None:
    plain = to_plain({"x": np.arange(3), "y": np.zeros(2, MIXED)})
    again = from_plain(to_plain(plain))
    assert again["x"].tolist() == [0, 1, 2]
    assert again["y"].dtype == MIXED


def test_a_view_is_saved_without_the_vector_it_looks_into() -> None:
    vector = torch.zeros(100_000)
    file = io.BytesIO()
    torch.save(to_plain({"layer": vector[16:32].view(4, 4), "p": torch.nn.Parameter(torch.ones(3))}), file)
    assert len(file.getvalue()) < 5_000
    assert type(through_disk({"p": torch.nn.Parameter(torch.ones(3))})["p"]) is torch.Tensor


@pytest.mark.parametrize(
    "plain",
    [
        {"x": torch.Size([1])},
        {"__ndarray__": "text"},
        {"__ndarray__": torch.zeros(8, dtype=torch.uint8), "dtype": "O", "shape": [1]},
        torch.nn.Parameter(torch.zeros(1)),
    ],
)
def test_a_loaded_state_with_more_in_it_is_refused(plain: Any) -> None:
    with pytest.raises(TypeError):
        from_plain(plain)


def test_the_first_nan_or_infinity_is_found_by_name_and_index() -> None:
    weights = torch.zeros(2, 3)
    assert find_non_finite({"weights": {"a": weights}, "low": [float("-inf")]}) is None
    weights[1, 2] = float("nan")
    assert find_non_finite({"weights": {"a": weights}}) == "weights/a[1, 2]"
    assert find_non_finite(to_plain({"n": {"mean": np.array([0.0, np.inf])}})) == "n/mean[1]"


def test_policy_sha256_is_over_sorted_names_dtypes_shapes_and_bytes() -> None:
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([[3]], dtype=torch.int64)
    expected = hashlib.sha256()
    expected.update(b"a\0float32\0[2]\0008\0" + np.array([1.0, 2.0], np.float32).tobytes())
    expected.update(b"n/b\0int64\0[1, 1]\0008\0" + np.array([3], np.int64).tobytes())
    assert policy_sha256({"n": {"b": b}, "a": a}) == expected.hexdigest()
    assert policy_sha256({"a": a, "n": {"b": b.numpy()}}) == expected.hexdigest()


@pytest.mark.parametrize(
    "other",
    [
        {"w": torch.tensor([[1.0, 2.0]])},
        {"w": torch.tensor([1.0, 2.0], dtype=torch.float64)},
        {"w": torch.tensor([1.0, 2.0000002])},
        {"v": torch.tensor([1.0, 2.0])},
        {"w": torch.tensor([1.0, -2.0])},
        {"w": torch.tensor([1.0, 2.0]), "count": 1},
    ],
)
def test_policy_sha256_tells_policies_apart(other: dict[str, Any]) -> None:
    assert policy_sha256({"w": torch.tensor([1.0, 2.0])}) != policy_sha256(other)
