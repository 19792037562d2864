"""A replay buffer of images that stores each frame once, and reassembles observations when it is sampled.

A stack of the latest frames shares all but the newest frame with the stack before, and the next observation of a step
is the one that the following step acts on. The buffer finds shared channels by comparing bytes and does not rely on how
an environment stacks frames: it stores every channel that is new, so samples always equal the observations that were
added. What stands before the first frame of an episode, such as zeros, is the same in each episode and stored once.

Shapes: R rows (vector steps), N environments, B batch, A action dims; C, H, W channels, height and width of an image;
P planes, each a channel of an image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.replay_buffer import ReplayBatch, ReplayBuffer
from rl_training.errors import ReplayBufferFull

PLANE_RECORD_BYTES = 8
"""Bytes per plane besides its pixels: two numbers of four bytes."""
PLACE_BYTES = 4
"""Bytes of the index of a plane."""
SETTLING = 100
"""Number of transitions without shared planes after which the observations are taken not to be stacks."""


def count_planes(capacity: int, num_envs: int, channels: int, frame_channels: int) -> int:
    """Returns the number of planes to allocate (P).

    Each transition adds one frame. An eighth more allows for the first observation of each episode, which adds one more
    frame: episodes of eight steps on average fit. Its other frames are repeated, or what stands before every episode,
    which is stored once. In addition, each environment needs room for a complete transition: the frames before the
    oldest transition, and the step that is added before the oldest one is dropped.
    """
    return frame_channels * capacity * 9 // 8 + 2 * channels * num_envs


class FrameReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` that stores observations as indices of planes, and returns batches of images.

    Args:
        capacity: Number of transitions over all environments; a multiple of `num_envs`.
        num_envs: Number of environments (N).
        observation_shape: Shape (C, H, W) of one observation, which is uint8.
        frame_channels: Number of channels that are new in each step of an episode.
        action_shape: Shape of one action of the policy.
        action_dtype: Dtype of one action.
        n_step: Maximum number of steps that a sampled transition spans.
        gamma: Discount factor of a step.
        returns_middle: See `ReplayBuffer`.

    Attributes:
        obs: Plane indices of the observations that were acted on, int32 [R, N, C].
        next_obs: Plane indices of the observations that followed, int32 [R, N, C].
        planes: Pixels, uint8 [P, H, W].
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        observation_shape: tuple[int, ...],
        frame_channels: int,
        action_shape: tuple[int, ...],
        action_dtype: np.dtype[Any],
        n_step: int = 1,
        gamma: float = 0.99,
        returns_middle: bool = False,
    ) -> None:
        channels, height, width = observation_shape
        places = (channels,), np.dtype(np.int32)
        super().__init__(capacity, num_envs, *places, action_shape, action_dtype, n_step, gamma, returns_middle)
        self.frame_channels = frame_channels
        count = count_planes(capacity, num_envs, channels, frame_channels)
        self.planes = np.zeros((count, height, width), np.uint8)
        self._last_user = np.full(count, -1, np.int32)  # index in the ring of the last transition with this plane
        self._free, self._num_free = (
            np.arange(count, dtype=np.int32)[::-1].copy(),
            count,
        )  # a stack of free plane indices
        self._newest: list[dict[bytes, int]] = [
            {} for _ in range(num_envs)
        ]  # planes of the newest observation by pixels
        self._beginnings: dict[bytes, int] = {}  # planes of latest first observations by pixels, the latest use last
        self._most_beginnings = 2 * channels * num_envs
        self.nbytes += self.planes.nbytes + self._last_user.nbytes + self._free.nbytes
        self._images = self._empty_images(0)

    def add(
        self,
        obs: NDArray[Any],
        actions: NDArray[Any],
        rewards: NDArray[Any],
        next_obs: NDArray[Any],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
    ) -> None:
        """Stores a step of all environments, like `ReplayBuffer.add`.

        Raises:
            ReplayBufferFull: No plane is free.
        """
        rows = self.rows(self.total, self.num_envs)
        leaving = self._last_used_in(rows)
        places = np.array(
            [
                [self._store(env, obs[env], acted_on=True), self._store(env, next_obs[env], acted_on=False)]
                for env in range(self.num_envs)
            ],
            np.int32,
        )  # [N, 2, C]
        super().add(places[:, 0], actions, rewards, places[:, 1], terminated, truncated)
        self._use(rows)
        self._release(np.setdiff1d(leaving, places))

    def sample(self, batch_size: int, rng: np.random.Generator) -> ReplayBatch:
        """Draws the transitions that `ReplayBuffer.sample` would draw, to the last bit."""
        batch = super().sample(batch_size, rng)
        if batch_size != len(self._images[0]):
            self._images = self._empty_images(batch_size)
        for places, images in zip((batch.obs, batch.next_obs), self._images, strict=True):
            np.take(self.planes, places, axis=0, out=images, mode="clip")
        batch = replace(batch, obs=self._images[0], next_obs=self._images[1])
        return batch if batch.middle_obs is None else replace(batch, middle_obs=self.planes[batch.middle_obs])

    def copy_rows(self, first: int, count: int) -> dict[str, NDArray[Any]]:
        """Returns copies like `ReplayBuffer.copy_rows`, and the `planes` that the copies index."""
        rows = super().copy_rows(first, count)
        places = np.stack((rows["obs"], rows["next_obs"]))
        distinct, index, inverse = np.unique(places, return_index=True, return_inverse=True)
        order = np.argsort(index)  # ordered by first use, so that the result does not depend on where planes are stored
        rows["planes"] = self.planes[distinct[order]]
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order))
        for name, ranks in zip(("obs", "next_obs"), rank[inverse].reshape(places.shape), strict=True):
            rows[name] = np.ascontiguousarray(ranks)
        return rows

    def fill_rows(self, first: int, count: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restores transitions like `ReplayBuffer.fill_rows`; rows must be restored in ascending order."""
        rows, planes = self.rows(first, count), arrays.get("planes", np.zeros(0, bool))
        if (planes.shape[1:], planes.dtype) != (self.planes.shape[1:], self.planes.dtype):
            raise ValueError(f"planes is {planes.dtype} {planes.shape}, and the buffer's is uint8 {self.planes.shape}")
        leaving = self._last_used_in(rows)
        super().fill_rows(first, count, {name: array for name, array in arrays.items() if name != "planes"})
        used = self._list_places(rows)
        if used.min() < 0 or used.max() >= len(planes):
            raise ValueError(f"it has {len(planes)} planes, of which those from {used.min()} to {used.max()} are used")
        places = self._shared_with_newest(self.obs[rows.start], planes)
        beginnings = self._find_beginnings(rows, places)
        kept = self._share_beginnings(beginnings, planes, places)
        self._release(np.setdiff1d(leaving, places))
        new = np.flatnonzero((places < 0) & (kept == np.arange(len(planes))))
        if len(new) > self._num_free:
            raise ValueError(f"it has {len(new):,} new planes, and there is room for {self._num_free:,}")
        self._num_free -= len(new)
        places[new] = self._free[self._num_free : self._num_free + len(new)]
        places = places[kept]
        self.planes[places] = planes  # planes that were stored already receive the same bytes again
        for index in beginnings:
            self._keep_beginning(planes[index].tobytes(), int(places[index]))
        for name in ("obs", "next_obs"):
            table = getattr(self, name)[rows]
            table[:] = places[table]
        self._use(rows)
        for env, newest in enumerate(self.next_obs[rows.stop - 1]):
            self._newest[env] = {self.planes[place].tobytes(): int(place) for place in newest}

    def _store(self, env: int, image: NDArray[Any], *, acted_on: bool) -> list[int]:
        """Returns the plane indices of an image [C], and stores the planes that the previous image lacks.

        If an image that is acted on has more new planes than a frame, it begins an episode, and has planes from before
        it; they are shared with those of the latest beginnings.
        """
        before, here = self._newest[env], dict[bytes, int]()
        pixels = [plane.tobytes() for plane in image]
        begins = acted_on and len({*pixels} - before.keys()) > self.frame_channels
        for plane, content in zip(image, pixels, strict=True):
            if content not in here:
                place = before.get(content)
                if place is None and begins:
                    place = self._beginnings.get(content)
                here[content] = self._store_plane(plane) if place is None else place
                if begins and content not in before:
                    self._keep_beginning(content, here[content])
        self._newest[env] = here
        return [here[content] for content in pixels]

    def _keep_beginning(self, content: bytes, place: int) -> None:
        """Remembers a plane of an episode's first observation, and forgets the one that was used longest ago."""
        self._beginnings.pop(content, None)
        self._beginnings[content] = place
        if len(self._beginnings) > self._most_beginnings:
            del self._beginnings[next(iter(self._beginnings))]

    def _store_plane(self, plane: NDArray[Any]) -> int:
        stored, room = len(self.planes) - self._num_free, self._room()
        if stored >= room:
            raise ReplayBufferFull(
                f"frame_channels: the replay buffer's {self.size:,} transitions have more than {stored:,} different "
                f"channels of images, and there is room for {room:,}: either more than {self.frame_channels} of an "
                f"observation are new in a step, or of the first one of an episode, or episodes have fewer than 8 "
                f"steps on average; begin a new run with more frame_channels, or without"
            )
        self._num_free -= 1
        place = int(self._free[self._num_free])
        self.planes[place] = plane
        return place

    def _room(self) -> int:
        """Returns the limit for the number of planes, which grows with the number of transitions.

        The limit ends a run whose observations are not stacks at its beginning, and not when the ring is half full.
        """
        channels = int(self.obs.shape[2])
        soon = self.frame_channels * self.size * 3 // 2 + 2 * channels * (SETTLING + self.num_envs)
        return min(len(self.planes), soon)

    def _shared_with_newest(self, used: NDArray[np.int32], planes: NDArray[Any]) -> NDArray[np.int32]:
        """Returns the indices [P] of `planes` among the newest observations, or -1; `used` [N, C] is the next row."""
        places = np.full(len(planes), -1, np.int32)
        for env, indices in enumerate(used):
            for index in indices:
                places[index] = self._newest[env].get(planes[index].tobytes(), -1)
        return places

    def _find_beginnings(self, rows: slice, places: NDArray[np.int32]) -> list[int]:
        """Returns the indices of the planes that begin episodes in these rows, as `_store` finds them, in its order.

        Args:
            rows: The rows, which hold indices of the planes to restore.
            places: For each of these planes its place among the newest observations, or -1, [P].
        """
        obs_RNC = self.obs[rows]
        is_new_RNC = np.empty(obs_RNC.shape, bool)
        is_new_RNC[0] = places[obs_RNC[0]] < 0
        before_RNC = self.next_obs[rows][:-1]
        is_new_RNC[1:] = (obs_RNC[1:, :, :, None] != before_RNC[:, :, None, :]).all(axis=3)
        found: list[int] = []
        for row, env in np.argwhere(is_new_RNC.sum(axis=2) > self.frame_channels):
            new = dict.fromkeys(obs_RNC[row, env][is_new_RNC[row, env]].tolist())
            if len(new) > self.frame_channels:
                found += new
        return found

    def _share_beginnings(
        self, beginnings: list[int], planes: NDArray[Any], places: NDArray[np.int32]
    ) -> NDArray[np.int64]:
        """Shares equal planes of the beginnings of episodes with stored ones, in `places`, and with each other.

        Returns:
            For each plane the first of those that share its place, [P].
        """
        kept, first = np.arange(len(planes)), dict[bytes, int]()
        for index in beginnings:
            content = planes[index].tobytes()
            kept[index] = first.setdefault(content, index)
            if places[index] < 0:
                places[index] = self._beginnings.get(content, -1)
        return kept

    def _list_places(self, rows: slice) -> NDArray[np.int32]:
        """Returns the plane indices of both observations in these rows, [rows, N, 2 C]."""
        return np.concatenate((self.obs[rows], self.next_obs[rows]), axis=2)

    def _positions(self, rows: slice) -> NDArray[np.int64]:
        """Returns the indices of the rows' transitions in the ring, [rows, N, 1]."""
        return np.arange(rows.start * self.num_envs, rows.stop * self.num_envs).reshape(-1, self.num_envs, 1)

    def _last_used_in(self, rows: slice) -> NDArray[np.int32]:
        """Returns the planes that are unused once these rows are overwritten; some may be repeated."""
        places = self._list_places(rows)
        leaving: NDArray[np.int32] = places[self._last_user[places] == self._positions(rows)]
        return leaving

    def _use(self, rows: slice) -> None:
        """Records these rows, which are the newest, as the last users of their planes."""
        places = self._list_places(rows)
        self._last_user[places] = -1
        np.maximum.at(self._last_user, places, self._positions(rows).astype(np.int32))

    def _release(self, places: NDArray[np.int32]) -> None:
        self._free[self._num_free : self._num_free + len(places)] = places
        self._num_free += len(places)
        if self._beginnings and len(places):
            free = set(places.tolist())
            self._beginnings = {content: place for content, place in self._beginnings.items() if place not in free}

    def _empty_images(self, batch_size: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        shape = (batch_size, self.obs.shape[2], *self.planes.shape[1:])
        return np.empty(shape, np.uint8), np.empty(shape, np.uint8)
