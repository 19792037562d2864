"""Conversion between an environment's spaces and arrays, with values worked out by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from rl_training.envs.spaces import (
    ActionCodec,
    ObservationEncoder,
    UnsupportedSpace,
    space_from_json,
    space_to_json,
)

CASES: list[tuple[gym.Space[Any], Any, list[float]]] = [
    (spaces.Box(-1, 1, (2, 2), np.float64), np.array([[1.0, 2.0], [3.0, 4.0]]), [1, 2, 3, 4]),
    (spaces.Box(0, 9, (3,), np.int32), np.array([7, 8, 9], np.int32), [7, 8, 9]),
    (spaces.Discrete(3), 2, [0, 0, 1]),
    (spaces.Discrete(3, start=-1), np.int64(-1), [1, 0, 0]),
    (spaces.MultiDiscrete([2, 3]), np.array([1, 0]), [0, 1, 1, 0, 0]),
    (spaces.MultiDiscrete([2, 3], start=[5, -1]), np.array([5, 1]), [1, 0, 0, 0, 1]),
    (spaces.MultiDiscrete([[2], [2]]), np.array([[1], [0]]), [0, 1, 1, 0]),
    (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
    (spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 9, (1,)))), (1, np.array([4.0], np.float32)), [0, 1, 4]),
    (
        spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Dict({"x": spaces.Box(0, 9, (2,))})}),
        {"b": 0, "a": {"x": np.array([8.0, 9.0], np.float32)}},
        [8, 9, 1, 0],
    ),
    # A uint8 picture needs the bounds 0 and 255; a board of small numbers is a vector.
    (spaces.Box(0, 2, (2, 2), np.uint8), np.array([[0, 1], [2, 0]], np.uint8), [0, 1, 2, 0]),
]


def batched(space: gym.Space[Any], observations: list[Any]) -> Any:
    empty: Any = create_empty_array(space, n=len(observations), fn=np.zeros)
    return concatenate(space, observations, empty)


@pytest.mark.parametrize(("space", "observation", "expected"), CASES, ids=lambda case: str(case)[:40])
def test_vectors(space: gym.Space[Any], observation: Any, expected: list[float]) -> None:
    encoder = ObservationEncoder(space)
    assert (encoder.kind, encoder.shape, encoder.dtype) == ("vector", (len(expected),), np.float32)
    assert encoder.encode(batched(space, [observation, observation])).tolist() == [expected] * 2
    assert encoder.encode_list([observation] * 3).tolist() == [expected] * 3
    assert encoder.encode(batched(space, [observation])).dtype == np.float32


@pytest.mark.parametrize(
    ("shape", "encoded_shape"),
    [((12, 16, 3), (3, 12, 16)), ((4, 84, 84), (4, 84, 84)), ((84, 84, 4), (4, 84, 84)), ((12, 16), (1, 12, 16))],
)
def test_images_stay_uint8_with_channels_first(shape: tuple[int, ...], encoded_shape: tuple[int, ...]) -> None:
    encoder = ObservationEncoder(spaces.Box(0, 255, shape, np.uint8))
    assert (encoder.kind, encoder.shape, encoder.dtype) == ("image", encoded_shape, np.uint8)
    image = np.arange(math.prod(shape)).reshape(shape).astype(np.uint8)
    encoded = encoder.encode_list([image, image])
    assert encoded.shape == (2, *encoded_shape)
    assert encoded.flags.c_contiguous
    wanted = image.transpose(2, 0, 1) if encoded_shape != shape and len(shape) == 3 else image.reshape(encoded_shape)
    assert (encoded[1] == wanted).all()
    assert (encoder.encode(np.stack([image, image])) == encoded).all()


def test_a_mix_is_one_structured_array() -> None:
    space = spaces.Dict(
        {
            "eye": spaces.Box(0, 255, (2, 3, 1), np.uint8),
            "back": spaces.Box(0, 255, (2, 2), np.uint8),
            "speed": spaces.Box(-9, 9, (1,)),
        }
    )
    encoder = ObservationEncoder(space)
    assert (encoder.kind, encoder.shape) == ("mixed", ())
    # By key order "back" comes first.
    assert (encoder.dtype["image_0"].shape, encoder.dtype["image_1"].shape) == ((1, 2, 2), (1, 2, 3))
    observation = {"eye": np.full((2, 3, 1), 7, np.uint8), "back": np.full((2, 2), 5, np.uint8), "speed": [3.0]}
    encoded = encoder.encode_list([observation])
    assert encoded.shape == (1,)
    assert encoded["vector"].tolist() == [[3.0]]
    assert encoded["image_0"].tolist() == [[[[5, 5], [5, 5]]]]
    assert (encoded["image_1"] == 7).all()
    assert encoder.vector(encoded) is not None
    assert np.shares_memory(encoder.vector(encoded), encoded)


def test_features_are_named_as_the_env_counts_them() -> None:
    space = spaces.Dict({"gear": spaces.Discrete(3), "grid": spaces.Box(-1, 1, (2, 2)), "on": spaces.MultiBinary(1)})
    encoder = ObservationEncoder(space)
    names = [encoder.feature_name(i) for i in range(8)]
    assert names == ["gear", "gear", "gear", "grid[0, 0]", "grid[0, 1]", "grid[1, 0]", "grid[1, 1]", "on[0]"]
    assert ObservationEncoder(spaces.Box(-1, 1, (4,))).feature_name(1) == "1"


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Text(5), "Text"),
        (spaces.Dict({"chat": spaces.Sequence(spaces.Discrete(2))}), "observation chat Sequence"),
        (spaces.Box(0, 255, (4, 84, 84, 3), np.uint8), "pixels in 4 dimensions"),
        (spaces.Box(0, 1, (0,)), "at least one feature"),
    ],
)
def test_other_observation_spaces_are_refused_by_name(space: gym.Space[Any], words: str) -> None:
    with pytest.raises(UnsupportedSpace, match=words):
        ObservationEncoder(space)


def test_a_discrete_observation_outside_its_space_is_an_error_and_no_wrap() -> None:
    with pytest.raises(ValueError, match="outside its space"):
        ObservationEncoder(spaces.Discrete(3, start=1)).encode_list([0])


def test_discrete_actions_are_counted_from_the_start() -> None:
    codec = ActionCodec(spaces.Discrete(3, start=-1))
    assert (codec.kind, codec.shape, codec.dtype, codec.nvec) == ("discrete", (), np.int64, (3,))
    sent = codec.to_env(np.array([0, 1, 2]))
    assert (sent.tolist(), sent.dtype) == ([-1, 0, 1], np.int64)


def test_multi_discrete_actions_take_the_spaces_shape_and_start() -> None:
    codec = ActionCodec(spaces.MultiDiscrete([[3, 4], [2, 2]], start=[[0, 1], [-1, 0]]))
    assert (codec.kind, codec.shape, codec.nvec) == ("multi_discrete", (4,), (3, 4, 2, 2))
    assert codec.to_env(np.array([[2, 0, 1, 1]])).tolist() == [[[2, 1], [0, 1]]]


def test_multi_binary_actions() -> None:
    codec = ActionCodec(spaces.MultiBinary((1, 2)))
    assert (codec.kind, codec.shape, codec.dtype) == ("multi_binary", (2,), np.int8)
    sent = codec.to_env(np.array([[0, 1], [1, 1]], np.int8))
    assert (sent.tolist(), sent.dtype) == ([[[0, 1]], [[1, 1]]], np.int8)


def test_box_actions_are_cut_to_each_dimensions_own_bounds() -> None:
    low, high = np.array([0, -math.pi / 4], np.float32), np.array([5, math.pi / 4], np.float32)
    codec = ActionCodec(spaces.Box(low, high))
    assert (codec.kind, codec.shape, codec.dtype) == ("box", (2,), np.float32)
    actions = np.array([[-1, -1], [7, 0.5]], np.float32)
    sent = codec.to_env(actions)
    assert sent.tolist() == [[0.0, low[1]], [5.0, 0.5]]
    assert not np.shares_memory(sent, actions)
    assert codec.space.contains(sent[0])


def test_a_float64_bound_that_float32_rounds_up_is_kept() -> None:
    space = spaces.Box(-math.pi / 4, math.pi / 4, (1, 1), np.float64)
    sent = ActionCodec(space).to_env(np.array([[9.0]], np.float32))
    assert (sent.shape, sent.dtype) == ((1, 1, 1), np.float64)
    assert sent[0, 0, 0] == math.pi / 4
    # As float32 this is above pi / 4, so that casting after the cut would leave the space.
    assert space.contains(ActionCodec(space).to_env(np.array([[math.pi / 4]], np.float32))[0])


def test_unbounded_and_integer_boxes() -> None:
    unbounded = ActionCodec(spaces.Box(-np.inf, np.inf, (1,)))
    assert unbounded.to_env(np.array([[1e6]], np.float32)).tolist() == [[1e6]]
    pixels = ActionCodec(spaces.Box(0, 255, (2,), np.uint8)).to_env(np.array([[-3.0, 254.6]], np.float32))
    assert (pixels.tolist(), pixels.dtype) == ([[0, 255]], np.uint8)


def test_scaled_actions_span_each_dimensions_own_bounds() -> None:
    low, high = np.array([[0, -math.pi / 4], [-3, 7]], np.float32), np.array([[5, math.pi / 4], [1, 7]], np.float32)
    codec = ActionCodec(spaces.Box(low, high), scaled=True)
    assert (codec.kind, codec.shape, codec.dtype) == ("box", (4,), np.float32)
    sent = codec.to_env(np.array([[-1] * 4, [1] * 4, [0] * 4, [-0.5, 0.5, 0.5, 0.3]], np.float32))
    assert sent.dtype == np.float32
    assert sent[0].tolist() == low.tolist()
    assert sent[1].tolist() == high.tolist()
    np.testing.assert_allclose(sent[2], [[2.5, 0.0], [-1.0, 7.0]], atol=1e-7)
    np.testing.assert_allclose(sent[3], [[1.25, math.pi / 8], [0.0, 7.0]], rtol=1e-6)
    assert all(codec.space.contains(action) for action in sent)


def test_scaled_actions_of_integers_and_of_bounds_whose_difference_overflows() -> None:
    integers = ActionCodec(spaces.Box(-3, 9, (1,), np.int32), scaled=True)
    sent = integers.to_env(np.array([[-1], [0.1], [1]], np.float32))
    assert (sent.tolist(), sent.dtype) == ([[-3], [4], [9]], np.int32)
    widest = np.finfo(np.float64).max
    sent = ActionCodec(spaces.Box(-widest, widest, (1,), np.float64), scaled=True).to_env(np.array([[-1], [0], [1]]))
    assert sent.tolist() == [[-widest], [0], [widest]]


@pytest.mark.parametrize(
    "space",
    [spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(np.float32([0, -np.inf]), np.float32([1, 1])), spaces.Discrete(2)],
)
def test_actions_without_bounds_are_not_scaled(space: gym.Space[Any]) -> None:
    with pytest.raises(UnsupportedSpace, match="has no bounds to scale actions to"):
        ActionCodec(space, scaled=True)


@pytest.mark.parametrize("space", [spaces.Dict({"a": spaces.Discrete(2)}), spaces.Text(3), spaces.Box(0, 1, (0,))])
def test_other_action_spaces_are_refused(space: gym.Space[Any]) -> None:
    with pytest.raises(UnsupportedSpace, match="action space"):
        ActionCodec(space)


@pytest.mark.parametrize(
    "space",
    [
        *(case[0] for case in CASES),
        spaces.Box(-np.inf, np.inf, (2,), np.float32),
        spaces.Box(np.array([0, -np.inf]), np.array([math.pi / 4, np.inf]), dtype=np.float64),
        spaces.Box(0, 255, (84, 84, 4), np.uint8),
        spaces.Box(0, 2**64 - 1, (1,), np.uint64),
        spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64),
        spaces.Box(-1, 1, (), np.float32),
        spaces.Dict({"z": spaces.Discrete(4, start=2), "a": spaces.MultiBinary((2, 3))}),
    ],
    ids=str,
)
def test_spaces_survive_strict_json(space: gym.Space[Any]) -> None:
    text = json.dumps(space_to_json(space), allow_nan=False)
    again = space_from_json(json.loads(text))
    assert again == space
    assert again.dtype == space.dtype
    assert batch_space(again, 2) == batch_space(space, 2)


def test_bounds_that_are_equal_are_one_number() -> None:
    assert len(json.dumps(space_to_json(spaces.Box(0, 255, (84, 84, 4), np.uint8)))) < 120


def test_spaces_of_other_kinds_have_no_json() -> None:
    with pytest.raises(UnsupportedSpace, match="can't be stored"):
        space_to_json(spaces.Text(3))
    with pytest.raises(UnsupportedSpace, match="unknown kind 'Graph'"):
        space_from_json({"type": "Graph"})
