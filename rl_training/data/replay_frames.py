"""A replay buffer of images that stores each of their frames once, and puts observations together when it is sampled.

Observations that are stacks of the latest frames have all but the newest in common with the one before, and the next
observation of a step is the one that the following step acts on. Which channels an observation really shares is seen by
comparing bytes, and not taken from how an environment is said to stack: what it has in common with nothing, such as the
first frames of an episode, is stored, and what is sampled is what was added, whatever that was.

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
"""What is kept of a plane beside its pixels: two numbers of four bytes."""
PLACE_BYTES = 4
"""Of the number that says where a plane is."""
SETTLING = 100
"""Transitions that may share nothing before observations are judged to be no stacks."""


def planes_held(capacity: int, num_envs: int, channels: int, frame_channels: int) -> int:
    """Returns the planes that there is room for (P).

    They are one frame a transition and an eighth more for the first frames of episodes, which are repeated or zero all
    but one: episodes of eight steps on average fit, whatever their lengths. Beside these, a whole transition of each
    environment: the frames before the oldest transition's, and the step that is added before the oldest one goes.
    """
    return frame_channels * capacity * 9 // 8 + 2 * channels * num_envs


class FrameReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` whose observations are places of planes, and whose batches are the images.

    Args:
        capacity: As of `ReplayBuffer`, as are the others that are not named here.
        num_envs: N.
        observation_shape: (C, H, W), of uint8.
        frame_channels: Channels that are new in each step of an episode.
        action_shape: Of one action.
        action_dtype: Of one action.
        n_step: Steps that a sampled transition spans at most.
        gamma: Discount of a step.

    Attributes:
        obs: Places of the planes of what was acted on, int32 [R, N, C].
        next_obs: Of what followed, likewise.
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
    ) -> None:
        channels, height, width = observation_shape
        super().__init__(capacity, num_envs, (channels,), np.dtype(np.int32), action_shape, action_dtype, n_step, gamma)
        self.frame_channels = frame_channels
        count = planes_held(capacity, num_envs, channels, frame_channels)
        self.planes = np.zeros((count, height, width), np.uint8)
        self._last_user = np.full(count, -1, np.int32)  # the place in the ring of the last transition with this plane
        self._free, self._num_free = np.arange(count, dtype=np.int32)[::-1].copy(), count  # a stack
        self._newest: list[dict[bytes, int]] = [{} for _ in range(num_envs)]  # planes of the newest observation
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
        """As of `ReplayBuffer`.

        Raises:
            ReplayBufferFull: There is no room for a plane.
        """
        rows = self.rows(self.total, self.num_envs)
        leaving = self._last_used_in(rows)
        places = np.array(
            [[self._store(env, image) for image in (obs[env], next_obs[env])] for env in range(self.num_envs)], np.int32
        )  # [N, 2, C]
        super().add(places[:, 0], actions, rewards, places[:, 1], terminated, truncated)
        self._use(rows)
        self._release(np.setdiff1d(leaving, places))

    def sample(self, batch_size: int, rng: np.random.Generator) -> ReplayBatch:
        """As of `ReplayBuffer`, to the same bytes for the same generator."""
        batch = super().sample(batch_size, rng)
        if batch_size != len(self._images[0]):
            self._images = self._empty_images(batch_size)
        for places, images in zip((batch.obs, batch.next_obs), self._images, strict=True):
            np.take(self.planes, places, axis=0, out=images, mode="clip")
        return replace(batch, obs=self._images[0], next_obs=self._images[1])

    def copy_rows(self, first: int, count: int) -> dict[str, NDArray[Any]]:
        """As of `ReplayBuffer`, with `planes`, those of these transitions alone, which `obs` and `next_obs` count."""
        rows = super().copy_rows(first, count)
        places = np.stack((rows["obs"], rows["next_obs"]))
        distinct, index, inverse = np.unique(places, return_index=True, return_inverse=True)
        order = np.argsort(index)  # by their first use: the same bytes wherever the planes lie
        rows["planes"] = self.planes[distinct[order]]
        rank = np.empty(len(order), np.int32)
        rank[order] = np.arange(len(order))
        for name, ranks in zip(("obs", "next_obs"), rank[inverse].reshape(places.shape), strict=True):
            rows[name] = np.ascontiguousarray(ranks)
        return rows

    def fill_rows(self, first: int, count: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """As of `ReplayBuffer`, from what `copy_rows` returned; rows must come in their order."""
        rows, planes = self.rows(first, count), arrays.get("planes", np.zeros(0, bool))
        if (planes.shape[1:], planes.dtype) != (self.planes.shape[1:], self.planes.dtype):
            raise ValueError(f"planes is {planes.dtype} {planes.shape}, and the buffer's is uint8 {self.planes.shape}")
        leaving = self._last_used_in(rows)
        super().fill_rows(first, count, {name: array for name, array in arrays.items() if name != "planes"})
        used = self._places(rows)
        if used.min() < 0 or used.max() >= len(planes):
            raise ValueError(f"it has {len(planes)} planes, of which those from {used.min()} to {used.max()} are used")
        places = self._shared_with_newest(self.obs[rows.start], planes)
        self._release(np.setdiff1d(leaving, places))
        new = np.flatnonzero(places < 0)
        if len(new) > self._num_free:
            raise ValueError(f"it has {len(new):,} new planes, and there is room for {self._num_free:,}")
        self._num_free -= len(new)
        places[new] = self._free[self._num_free : self._num_free + len(new)]
        self.planes[places] = planes  # those that were there already are the same bytes, and no copy is made
        for name in ("obs", "next_obs"):
            table = getattr(self, name)[rows]
            table[:] = places[table]
        self._use(rows)
        for env, newest in enumerate(self.next_obs[rows.stop - 1]):
            self._newest[env] = {self.planes[place].tobytes(): int(place) for place in newest}

    def _store(self, env: int, image: NDArray[Any]) -> list[int]:
        """Returns the places of an image's planes [C], after storing those that the one before has not."""
        before, places = self._newest[env], []
        here: dict[bytes, int] = {}
        for plane in image:
            pixels = plane.tobytes()
            place = here.get(pixels, before.get(pixels))
            here[pixels] = self._store_plane(plane) if place is None else place
            places.append(here[pixels])
        self._newest[env] = here
        return places

    def _store_plane(self, plane: NDArray[Any]) -> int:
        stored, room = len(self.planes) - self._num_free, self._room()
        if stored >= room:
            raise ReplayBufferFull(
                f"frame_channels: the replay buffer's {self.size:,} transitions have more than {stored:,} different "
                f"channels of images, and there is room for {room:,}: either more than {self.frame_channels} of an "
                f"observation are new in a step, or episodes have fewer than 8 steps on average; begin a new run with "
                f"more frame_channels, or without"
            )
        self._num_free -= 1
        place = int(self._free[self._num_free])
        self.planes[place] = plane
        return place

    def _room(self) -> int:
        """Returns how many planes there may be now: while there are few transitions, no more than would ever fit them.

        So that observations which are no stacks end a run at its beginning, and not when the ring is half full.
        """
        channels = int(self.obs.shape[2])
        soon = self.frame_channels * self.size * 3 // 2 + 2 * channels * (SETTLING + self.num_envs)
        return min(len(self.planes), soon)

    def _shared_with_newest(self, used: NDArray[np.int32], planes: NDArray[Any]) -> NDArray[np.int32]:
        """Returns the places of planes [P] that the newest observations have, by what follows these [N, C]; else -1."""
        places = np.full(len(planes), -1, np.int32)
        for env, indices in enumerate(used):
            for index in indices:
                places[index] = self._newest[env].get(planes[index].tobytes(), -1)
        return places

    def _places(self, rows: slice) -> NDArray[np.int32]:
        """Returns [rows, N, 2 C]."""
        return np.concatenate((self.obs[rows], self.next_obs[rows]), axis=2)

    def _positions(self, rows: slice) -> NDArray[np.int64]:
        """Returns the places in the ring of the rows' transitions, [rows, N, 1]."""
        return np.arange(rows.start * self.num_envs, rows.stop * self.num_envs).reshape(-1, self.num_envs, 1)

    def _last_used_in(self, rows: slice) -> NDArray[np.int32]:
        """Returns the planes that nothing needs once these rows are overwritten, some of them repeatedly."""
        places = self._places(rows)
        leaving: NDArray[np.int32] = places[self._last_user[places] == self._positions(rows)]
        return leaving

    def _use(self, rows: slice) -> None:
        """Notes that these rows, the newest, are the last users of their planes."""
        places = self._places(rows)
        self._last_user[places] = -1
        np.maximum.at(self._last_user, places, self._positions(rows).astype(np.int32))

    def _release(self, places: NDArray[np.int32]) -> None:
        self._free[self._num_free : self._num_free + len(places)] = places
        self._num_free += len(places)

    def _empty_images(self, batch_size: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        shape = (batch_size, self.obs.shape[2], *self.planes.shape[1:])
        return np.empty(shape, np.uint8), np.empty(shape, np.uint8)
