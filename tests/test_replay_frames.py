"""A replay buffer that stores each frame once, compared with the plain one: samples, memory, and when it is full."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training import train_dqn
from rl_training.config.algorithms.dqn import DQNConfig
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.replay_frames import FrameReplayBuffer, count_planes
from rl_training.errors import ReplayBufferFull

I8 = np.dtype(np.int64)
SIDES = (2, 3)


PADDINGS = ("first", "zeros", "picture")


class Episodes:
    """An environment's observations as stacks of frames; before an episode are its first frame, zeros, or a picture."""

    def __init__(self, rng: np.random.Generator, lengths: list[int], frames: int, channels: int, padding: str) -> None:
        self.rng, self.lengths, self.frames, self.shape, self.padding = (
            rng,
            lengths,
            frames,
            (channels, *SIDES),
            padding,
        )
        self.played = 0
        self.begin()

    def begin(self) -> None:
        first = self.frame()
        picture = np.arange(first.size, dtype=np.uint8).reshape(self.shape)
        before = {"first": first, "zeros": np.zeros_like(first), "picture": picture}[self.padding]
        self.stack, self.left = [before] * (self.frames - 1) + [first], self.lengths[self.played % len(self.lengths)]
        self.played += 1

    def frame(self) -> np.ndarray:
        """A frame of two colours, so that some frames are equal."""
        return np.full(self.shape, self.rng.integers(2), np.uint8) if self.rng.random() < 0.5 else self.unlike_others()

    def unlike_others(self) -> np.ndarray:
        return self.rng.integers(0, 256, self.shape).astype(np.uint8)

    def observation(self) -> np.ndarray:
        return np.concatenate(self.stack)

    def step(self, newer: int) -> bool:
        """Makes so many new frames; returns whether the episode is over."""
        self.stack = (self.stack + [self.frame() for _ in range(newer)])[-self.frames :]
        self.left -= 1
        return self.left == 0


def transitions(envs: list[Episodes], steps: int, newer: list[int]) -> Iterator[tuple[Any, ...]]:
    """Yields the transitions that a trainer stores; `newer` has the numbers of new frames per step, in turn."""
    rng = envs[0].rng
    for t in range(steps):
        obs = np.stack([env.observation() for env in envs])
        over = np.array([env.step(newer[t % len(newer)]) for env in envs])
        next_obs, terminated = np.stack([env.observation() for env in envs]), over & (rng.random(len(envs)) < 0.5)
        for env in [env for env, ends in zip(envs, over, strict=True) if ends]:
            env.begin()
        actions, rewards = rng.integers(0, 5, len(envs)), rng.standard_normal(len(envs))
        yield obs, actions, rewards, next_obs, terminated, over & ~terminated


def make(kind: str, capacity: int, num_envs: int, channels: int, n_step: int, frame_channels: int) -> ReplayBuffer:
    shape = (channels, *SIDES)
    if kind == "plain":
        return ReplayBuffer(capacity, num_envs, shape, np.dtype(np.uint8), (), I8, n_step, 0.9, returns_middle=True)
    return FrameReplayBuffer(capacity, num_envs, shape, frame_channels, (), I8, n_step, 0.9, returns_middle=True)


def assert_same_batches(plain: ReplayBuffer, shared: ReplayBuffer, seed: int, batch_size: int = 40) -> None:
    expected, got = (buffer.sample(batch_size, np.random.default_rng(seed)) for buffer in (plain, shared))
    for name, array in vars(expected).items():
        other = getattr(got, name)
        if array is None:
            assert other is None
            continue
        assert (other.shape, other.dtype, other.tobytes()) == (array.shape, array.dtype, array.tobytes()), name


def held(buffer: FrameReplayBuffer) -> int:
    return len(buffer.planes) - buffer._num_free


def used(buffer: FrameReplayBuffer) -> int:
    rows = min(buffer.total, buffer.capacity) // buffer.num_envs
    return len(np.unique([buffer.obs[:rows], buffer.next_obs[:rows]]))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_is_sampled_is_what_the_plain_buffer_returns(data: st.DataObject) -> None:
    """Over episodes of any lengths, several laps of the ring, frames that are skipped and cut episodes."""
    draw = data.draw
    num_envs, rows, n_step = draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(1, 4))
    frames, channels, padding = draw(st.integers(1, 4)), draw(st.sampled_from([1, 3])), draw(st.sampled_from(PADDINGS))
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    newer = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    envs = [Episodes(rng, lengths, frames, channels, padding) for _ in range(num_envs)]
    form = (rows * num_envs, num_envs, frames * channels, n_step, 2 * frames * channels)  # room for whatever comes
    plain, shared = make("plain", *form), make("shared", *form)
    assert isinstance(shared, FrameReplayBuffer)
    for t, transition in enumerate(transitions(envs, draw(st.integers(1, 40)), newer)):
        for buffer in (plain, shared):
            buffer.add(*transition)
        if rng.random() < 0.1:
            cut = list(np.flatnonzero(rng.random(num_envs) < 0.5))
            for buffer in (plain, shared):
                buffer.cut_newest(cut)
            for env in cut:
                envs[env].begin()
        assert_same_batches(plain, shared, t)
        assert held(shared) == used(shared)  # neither lost nor given away


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_buffer_that_was_filled_from_copies_continues_like_the_original(data: st.DataObject) -> None:
    draw = data.draw
    num_envs, rows = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    envs = [
        Episodes(rng, draw(st.lists(st.integers(1, 9), min_size=1)), 4, 1, draw(st.sampled_from(PADDINGS)))
        for _ in "abc"
    ]
    form = (rows * num_envs, num_envs, 4, 2, 8)
    buffer, copied, pieces = make("shared", *form), 0, []
    for transition in transitions(envs[:num_envs], draw(st.integers(1, 25)), [1]):
        buffer.add(*transition)
        ring_ends = buffer.total % buffer.capacity == 0
        if ring_ends or draw(st.booleans()):  # a piece of what is new, as a shard has it
            pieces.append((copied, buffer.total - copied, buffer.copy_rows(copied, buffer.total - copied)))
            copied = buffer.total
        if copied == buffer.total and draw(st.booleans()):
            other = make("shared", *form)
            assert isinstance(buffer, FrameReplayBuffer)
            assert isinstance(other, FrameReplayBuffer)
            for first, count, arrays in pieces:
                if first + count > buffer.oldest:
                    other.fill_rows(first, count, arrays)
            other.total = buffer.total
            assert_same_batches(buffer, other, buffer.total)
            if buffer.size == buffer.capacity:
                assert held(other) == held(buffer) == used(other)
            buffer = other


def test_copies_are_the_same_bytes_wherever_their_planes_lie() -> None:
    rng = np.random.default_rng(0)
    history = list(transitions([Episodes(rng, [7, 3], 4, 1, "first")], 30, [1]))
    one, other = make("shared", 10, 1, 4, 1, 1), make("shared", 10, 1, 4, 1, 1)
    for transition in history:
        one.add(*transition)
    for transition in history[-12:]:
        other.add(*transition)
    assert not np.array_equal(one.obs, other.obs)
    a, b = one.copy_rows(22, 6), other.copy_rows(4, 6)
    assert {name: array.tobytes() for name, array in a.items()} == {name: array.tobytes() for name, array in b.items()}


@pytest.mark.parametrize(("padding", "once"), [("first", 0), ("zeros", 1), ("picture", 1)])
def test_a_step_takes_one_frame_and_an_episode_one_more(padding: str, once: int) -> None:
    """Three laps of a ring of 200 with episodes of 20 steps, of which it holds ten; padding is held once."""
    env = Episodes(np.random.default_rng(0), [20], 4, 1, padding)
    env.frame = env.unlike_others  # type: ignore[method-assign]
    buffer = make("shared", 200, 1, 4, 1, 1)
    assert isinstance(buffer, FrameReplayBuffer)
    for transition in transitions([env], 600, [1]):
        buffer.add(*transition)
    assert (held(buffer), len(buffer.planes)) == (200 + 10 + once, 225 + 8)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("frames", "channels"), [(4, 1), (4, 3), (2, 1), (1, 3)])
@pytest.mark.parametrize("num_envs", [1, 4])
@pytest.mark.parametrize("lengths", [[8], [1, 15], [1, 1, 30, 4, 4]])
def test_episodes_of_eight_steps_on_average_fit_for_ever(
    num_envs: int, lengths: list[int], frames: int, channels: int, padding: str
) -> None:
    rng = np.random.default_rng(0)
    envs = [Episodes(rng, lengths, frames, channels, padding) for _ in range(num_envs)]
    for env in envs:
        env.frame = env.unlike_others  # type: ignore[method-assign]
    form = (80 * num_envs, num_envs, frames * channels, 3, channels)
    buffer, plain = (make(kind, *form) for kind in ("shared", "plain"))
    for transition in transitions(envs, 250, [1]):
        buffer.add(*transition)
        plain.add(*transition)
    assert_same_batches(plain, buffer, 0)


@pytest.mark.parametrize("padding", ["reset", "zero"])
def test_gymnasiums_stacks_of_frames_fit_whatever_their_padding(padding: str) -> None:
    """Episodes of twelve steps, and more steps than the buffer holds."""
    config = DQNConfig(
        env_id="frame_envs:Frames-v0",
        wrappers=[{"name": "FrameStackObservation", "kwargs": {"stack_size": 4, "padding_type": padding}}],
        frame_channels=1,
        total_timesteps=2_200,
        buffer_size=2_000,
        learning_starts=2_190,
        network={"hidden": [8]},
        evaluation={"every": 9_999, "episodes": 1},
    )
    assert train_dqn(config).num_timesteps == 2_200


@pytest.mark.parametrize("padding", ["zeros", "picture"])
def test_after_a_resume_what_is_before_episodes_is_held_once_too(padding: str) -> None:
    """Episodes of eight steps fill the room to the last frame, also if the buffer is filled from 40 copies."""
    env = Episodes(np.random.default_rng(0), [8], 4, 1, padding)
    env.frame = env.unlike_others  # type: ignore[method-assign]
    buffer, history = make("shared", 160, 1, 4, 1, 1), transitions([env], 800, [1])
    for _ in range(320):
        buffer.add(*next(history))
    other = make("shared", 160, 1, 4, 1, 1)
    for first in range(160, 320, 4):
        other.fill_rows(first, 4, buffer.copy_rows(first, 4))
    other.total = buffer.total
    assert isinstance(buffer, FrameReplayBuffer)
    assert isinstance(other, FrameReplayBuffer)
    assert held(other) == held(buffer) == 160 + 20 + 1
    for transition in history:
        buffer.add(*transition)
        other.add(*transition)
    assert_same_batches(buffer, other, 0)


@pytest.mark.parametrize(
    ("lengths", "newer", "fits", "room"),
    [
        # There is room for 9/8 of 2,000 and 8 frames; t steps have 2 t, 5/4 t, 1 + 2 t; 1 + 4 t > 808 + 3/2 (t - 1).
        pytest.param([1], [1], 1_129, 2_258, id="episodes of one step"),
        pytest.param([4], [1], 1_806, 2_258, id="episodes of four steps"),
        pytest.param([9_999], [2], 1_128, 2_258, id="two frames a step"),
        pytest.param([9_999], [4], 322, 1_291, id="nothing in common"),
    ],
)
def test_what_does_not_fit_ends_the_run_in_one_line_in_the_first_lap(
    lengths: list[int], newer: list[int], fits: int, room: int
) -> None:
    env = Episodes(np.random.default_rng(0), lengths, 4, 1, "first")
    env.frame = env.unlike_others  # type: ignore[method-assign]
    buffer = make("shared", 2_000, 1, 4, 1, 1)

    def fill() -> None:
        for transition in transitions([env], 2_000, newer):
            buffer.add(*transition)

    with pytest.raises(ReplayBufferFull) as full:
        fill()
    assert buffer.total == fits
    assert str(full.value) == (
        f"frame_channels: the replay buffer's {fits:,} transitions have more than {room:,} different channels of "
        f"images, and there is room for {room:,}: either more than 1 of an observation are new in a step, or of the "
        f"first one of an episode, or episodes have fewer than 8 steps on average; begin a new run with more "
        f"frame_channels, or without"
    )


def test_the_room_follows_the_arithmetic() -> None:
    assert count_planes(1_000_000, 8, 4, 1) == 1_000_000 * 9 // 8 + 8 * 8
    buffer = FrameReplayBuffer(800, 2, (12, 84, 84), 3, (), I8)
    # 3 * 900 + 2 * 12 * 2 = 2,748 planes of 7,056 + 8 bytes; 800 transitions of 2 * 12 * 4 + 8 + 4 + 2 bytes
    assert (len(buffer.planes), buffer.nbytes) == (2_748, 2_748 * 7_064 + 800 * 110)


def test_batches_reuse_their_memory_and_are_no_part_of_the_buffer() -> None:
    buffer, rng = make("shared", 20, 1, 4, 1, 1), np.random.default_rng(0)
    for transition in transitions([Episodes(rng, [9], 4, 1, "first")], 25, [1]):
        buffer.add(*transition)
    first, second = buffer.sample(8, np.random.default_rng(1)), buffer.sample(8, np.random.default_rng(1))
    assert first.obs is second.obs
    before = first.obs.copy()
    first.obs[:] = 0
    assert np.array_equal(buffer.sample(8, np.random.default_rng(1)).obs, before)
    assert (len(buffer.sample(5, rng)), len(buffer.sample(50, rng))) == (5, 50)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.pop("planes"), r"planes is bool \(0,\), and the buffer's is uint8"),
        (lambda rows: rows.update(planes=rows["planes"][:, :1]), r"planes is uint8 \(\d+, 1, 3\), and the buffer's"),
        (lambda rows: rows.update(planes=rows["planes"].astype(np.int8)), r"planes is int8"),
        (lambda rows: rows.update(planes=rows["planes"][:-1]), r"it has \d+ planes, of which those from 0 to \d+ are"),
        (lambda rows: rows["obs"].__isub__(1), r"those from -1 to"),
        (lambda rows: rows.update(obs=rows["obs"].astype(np.int64)), r"obs is int64 \(6, 1, 4\), and the buffer's is"),
        (lambda rows: rows.update(planes=np.zeros((400, 2, 3), np.uint8)), "it has 400 new planes, and there is room"),
    ],
)
def test_copies_that_were_changed_are_refused(change: Any, message: str) -> None:
    buffer = make("shared", 20, 1, 4, 1, 1)
    for transition in transitions([Episodes(np.random.default_rng(0), [9], 4, 1, "first")], 6, [1]):
        buffer.add(*transition)
    rows = buffer.copy_rows(0, 6)
    change(rows)
    with pytest.raises(ValueError, match=message):
        make("shared", 20, 1, 4, 1, 1).fill_rows(0, 6, rows)
