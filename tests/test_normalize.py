"""The running normalisers, compared with values worked out by hand and with numpy over all the data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from rl_training.envs.normalize import EPSILON, ObservationNormalizer, RewardNormalizer, RunningMeanStd
from rl_training.envs.spaces import ObservationEncoder
from rl_training.errors import EnvironmentRefused


def observation_normalizer(clip: float = 10.0) -> ObservationNormalizer:
    return ObservationNormalizer(ObservationEncoder(spaces.Box(-np.inf, np.inf, (2,))), clip)


def test_statistics_of_1_2_3_6() -> None:
    statistics = RunningMeanStd(())
    statistics.update(np.array([1.0, 2.0]))
    statistics.update(np.array([3.0, 6.0]))
    # mean 3, squared deviations 4 + 1 + 0 + 9 = 14
    assert (statistics.count, float(statistics.mean), float(statistics.var)) == (4, 3.0, 3.5)


def test_before_the_first_row_nothing_is_scaled() -> None:
    statistics = RunningMeanStd((2,))
    assert statistics.mean.tolist() == [0.0, 0.0]
    assert statistics.var.tolist() == [1.0, 1.0]


@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=7), min_size=1, max_size=6))
def test_merging_batches_equals_numpy_over_all(batches: list[list[float]]) -> None:
    statistics = RunningMeanStd(())
    for batch in batches:
        statistics.update(np.array(batch))
    together = np.concatenate([np.array(batch) for batch in batches])
    assert statistics.count == len(together)
    assert float(statistics.mean) == pytest.approx(together.mean(), rel=1e-12, abs=1e-9)
    assert float(statistics.var) == pytest.approx(together.var(), rel=1e-9, abs=1e-7)


def test_a_large_offset_keeps_its_variance_in_float64() -> None:
    rows = 1e8 + np.random.default_rng(0).normal(size=(1_000, 3))
    statistics = RunningMeanStd((3,))
    for part in np.array_split(rows, 37):
        statistics.update(part)
    assert statistics.var == pytest.approx(rows.var(axis=0), rel=1e-6)


def test_a_float32_batch_is_summed_in_float64() -> None:
    rows = np.full((3, 1), 16_777_217, np.float64)  # 2**24 + 1 has no float32
    statistics = RunningMeanStd((1,))
    statistics.update(rows)
    statistics.update(np.array([[0.5]], np.float32))
    assert statistics.mean[0] == pytest.approx((3 * 16_777_217 + 0.5) / 4, rel=1e-15)


def test_observations_are_centred_scaled_and_cut() -> None:
    normalizer = observation_normalizer(clip=1.5)
    normalizer.update(np.array([[1.0, 0.0], [3.0, 0.0]], np.float32))
    # Feature 0: mean 2, deviation 1. Feature 1 never varies: only the epsilon is under the root.
    scaled = normalizer.normalize(np.array([[3.0, 0.0], [9.0, 1e-6], [-9.0, -1.0]], np.float32))
    assert scaled.dtype == np.float32
    assert scaled == pytest.approx(np.array([[1.0, 0.0], [1.5, 0.01], [-1.5, -1.5]]), rel=1e-6)
    assert math.sqrt(EPSILON) == pytest.approx(1e-4)


def test_normalising_changes_neither_statistics_nor_input() -> None:
    normalizer = observation_normalizer()
    normalizer.update(np.array([[1.0, 2.0], [3.0, 5.0]], np.float32))
    before = normalizer.state_dict()
    observation = np.array([[7.0, 8.0]], np.float32)
    for _ in range(3):
        normalizer.normalize(observation)
    after = normalizer.state_dict()
    assert observation.tolist() == [[7.0, 8.0]]
    assert all(np.array_equal(before[key], after[key]) for key in before)


def test_in_a_mix_the_images_pass_unchanged() -> None:
    space = spaces.Dict({"eye": spaces.Box(0, 255, (2, 2, 1), np.uint8), "speed": spaces.Box(-9, 9, (1,))})
    encoder = ObservationEncoder(space)
    normalizer = ObservationNormalizer(encoder, 10.0)
    eye = np.full((2, 2, 1), 200, np.uint8)
    encoded = encoder.encode_list([{"eye": eye, "speed": [1.0]}, {"eye": eye, "speed": [3.0]}])
    normalizer.update(encoded)
    normalized = normalizer.normalize(encoded)
    assert normalized["vector"] == pytest.approx(np.array([[-1.0], [1.0]]))
    assert (normalized["image_0"] == 200).all()
    assert encoded["vector"].tolist() == [[1.0], [3.0]]


def test_an_image_alone_is_refused() -> None:
    with pytest.raises(EnvironmentRefused, match=r"normalization\.observation has nothing to normalise"):
        ObservationNormalizer(ObservationEncoder(spaces.Box(0, 255, (8, 8, 3), np.uint8)), 10.0)


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_the_return_is_zeroed_after_the_last_reward_by_either_flag(flag: str) -> None:
    # done is either flag: the caller ORs them, so that both kinds of end look alike here.
    normalizer = RewardNormalizer(1, gamma=0.9, clip=10.0)
    seen = []
    for step in range(6):
        done = np.array([step % 3 == 2])
        before = normalizer.returns.copy()
        normalizer.update(np.array([1.0]), done)
        seen.append(float(before[0]) * 0.9 + 1.0)
        assert normalizer.returns[0] == (0.0 if done[0] else pytest.approx(seen[-1]))
    expected = [1, 1.9, 2.71, 1, 1.9, 2.71]
    assert seen == pytest.approx(expected)
    assert float(normalizer.statistics.mean) == pytest.approx(np.mean(expected))
    assert float(normalizer.statistics.var) == pytest.approx(np.var(expected))


def test_each_env_has_a_return_of_its_own() -> None:
    normalizer = RewardNormalizer(2, gamma=0.5, clip=10.0)
    normalizer.update(np.array([1.0, 4.0]), np.array([True, False]))
    normalizer.update(np.array([1.0, 4.0]), np.array([False, False]))
    assert normalizer.returns.tolist() == [1.0, 6.0]
    # Over 1, 4, 1, 6: mean 3, variance (4 + 1 + 4 + 9) / 4 = 4.5
    assert float(normalizer.statistics.var) == 4.5
    normalizer.forget([1])
    assert normalizer.returns.tolist() == [1.0, 0.0]


def test_rewards_are_scaled_without_a_mean_and_cut() -> None:
    normalizer = RewardNormalizer(4, gamma=0.9, clip=2.0)
    normalizer.update(np.array([0.0, 0.0, 4.0, 4.0]), np.zeros(4, bool))
    # The deviation of the returns is 2.
    scaled = normalizer.normalize(np.array([1.0, -3.0, 4.5, 0.0]))
    assert scaled.dtype == np.float32
    assert scaled == pytest.approx([0.5, -1.5, 2.0, 0.0], rel=1e-6)


def test_states_continue_where_they_were() -> None:
    rng = np.random.default_rng(3)
    first, second = observation_normalizer(), observation_normalizer()
    rewards, again = RewardNormalizer(3, 0.9, 10.0), RewardNormalizer(3, 0.9, 10.0)
    first.update(rng.normal(size=(5, 2)))
    rewards.update(rng.normal(size=3), np.array([True, False, False]))
    second.load_state_dict(first.state_dict())
    again.load_state_dict(rewards.state_dict())
    rows, reward, done = rng.normal(size=(4, 2)), rng.normal(size=3), np.array([False, False, True])
    for normalizer in (first, second):
        normalizer.update(rows)
    for scaler in (rewards, again):
        scaler.update(reward, done)
    assert first.normalize(rows).tobytes() == second.normalize(rows).tobytes()
    assert rewards.normalize(reward).tobytes() == again.normalize(reward).tobytes()
    assert rewards.returns.tolist() == again.returns.tolist()
