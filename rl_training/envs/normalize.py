"""Normalises observations and rewards by running statistics.

Gymnasium's wrappers are not used because they are wrong at some episode boundaries (`NormalizeReward` carries its
accumulator across truncations under the next-step autoreset mode) and can't be saved in a checkpoint. Statistics are
kept in float64 by the parallel update of Chan, Golub and LeVeque (1979).

Shapes: `N` environments, `O` features of the vector part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.distributed.moments import Moments, measure
from rl_training.envs.spaces import ObservationEncoder
from rl_training.errors import CheckpointError, EnvironmentRefused
from rl_training.state_checks import Count, require_finite_values, require_same_form, validate

EPSILON = 1e-8
"""Added to variances before taking the square root."""


class RunningMeanStd:
    """Mean and population variance of all rows seen so far.

    Args:
        shape: Shape of one row; `()` if a row is one number.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = 0
        self.mean = np.zeros(shape, np.float64)
        self._squares = np.zeros(shape, np.float64)
        self.combine: Callable[[Moments], Moments] | None = None
        """Returns the moments of new rows together with those of other ranks; None if there is one rank."""

    @property
    def var(self) -> NDArray[np.float64]:
        """Population variance; 1 before the first row, so that nothing is scaled."""
        return self._squares / self.count if self.count else np.ones_like(self._squares)

    def update(self, rows: NDArray[Any]) -> None:
        """Adds rows [n, *shape] to the statistics."""
        added = measure(rows)
        count, mean, squares = added if self.combine is None else self.combine(added)
        total = self.count + count
        delta = mean - self.mean
        self.mean = self.mean + delta * (count / total)
        self._squares = self._squares + squares + delta**2 * (self.count * count / total)
        self.count = total

    def state_dict(self) -> dict[str, Any]:
        """Returns the count, the mean and the sum of squared deviations."""
        return {"count": self.count, "mean": np.array(self.mean), "squares": np.array(self._squares)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the statistics that `state_dict` returned.

        Raises:
            CheckpointError: The rows had another shape, or the numbers can't be statistics.
        """
        self.count = validate("statistics/count", state["count"], Count)
        self.mean, self._squares = (self._check(f"statistics/{name}", state[name]) for name in ("mean", "squares"))
        if (self._squares < 0).any():
            raise CheckpointError("statistics/squares: a sum of squares is negative")

    def _check(self, name: str, got: Any) -> NDArray[np.float64]:
        like = np.zeros(np.shape(self.mean))
        if type(got) is float and like.shape == ():  # checkpoints of the first versions hold a float
            got = np.array(got)
        numbers: NDArray[np.float64] = require_finite_values(name, require_same_form(name, got, like)).copy()
        return numbers


class ObservationNormalizer:
    """Subtracts the running mean of each feature and divides by its running standard deviation; images pass unchanged.

    Only `update` changes the statistics, so evaluation, which never calls it, uses them as they are.

    Args:
        encoder: Encoder of the observations, which locates their vector part.
        clip: Results are clipped to [-clip, clip].

    Raises:
        EnvironmentRefused: The observation is a single image, which is never normalised.
    """

    def __init__(self, encoder: ObservationEncoder, clip: float) -> None:
        if encoder.vector_size == 0:
            raise EnvironmentRefused(
                f"normalization.observation has nothing to normalise in {encoder.space}: images are not normalised; "
                f"set it to false"
            )
        self._encoder = encoder
        self._clip = clip
        self.statistics = RunningMeanStd((encoder.vector_size,))
        self.imagine: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None = None
        """Returns what else training makes of the vector parts of observations, which enters the statistics too."""

    def update(self, observation: NDArray[Any]) -> None:
        """Adds encoded observations [N, *O] to the statistics; call it once for each real transition."""
        vector = self._encoder.vector(observation)
        assert vector is not None
        self.statistics.update(vector if self.imagine is None else np.concatenate((vector, self.imagine(vector))))

    def normalize(self, observation: NDArray[Any]) -> NDArray[Any]:
        """Returns a normalised copy of encoded observations [N, *O]."""
        vector = self._encoder.vector(observation)
        assert vector is not None
        statistics = self.statistics
        scaled = (vector - statistics.mean) / np.sqrt(statistics.var + EPSILON)
        clipped = np.clip(scaled, -self._clip, self._clip).astype(np.float32)
        if observation.dtype.names is None:
            return clipped
        normalized = observation.copy()
        part = self._encoder.vector(normalized)
        assert part is not None
        part[:] = clipped
        return normalized

    def state_dict(self) -> dict[str, Any]:
        """Returns the statistics."""
        return self.statistics.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state that `state_dict` returned."""
        self.statistics.load_state_dict(state)


class RewardNormalizer:
    """Divides rewards by the running standard deviation of the discounted return, without subtracting a mean.

    Args:
        num_envs: Number of environments (N).
        gamma: Discount factor of the return.
        clip: Results are clipped to [-clip, clip].
    """

    def __init__(self, num_envs: int, gamma: float, clip: float) -> None:
        self._gamma = gamma
        self._clip = clip
        self.returns = np.zeros(num_envs, np.float64)
        self.statistics = RunningMeanStd(())

    def update(self, reward: NDArray[Any], done: NDArray[np.bool_]) -> None:
        """Adds one vector step to the statistics.

        The last reward of an episode still counts towards its return; the accumulator is zeroed afterwards.

        Args:
            reward: [N] rewards.
            done: [N] whether the episode terminated or was truncated on this step.
        """
        self.returns = self.returns * self._gamma + reward
        self.statistics.update(self.returns)
        self.returns[done] = 0.0

    def normalize(self, reward: NDArray[Any]) -> NDArray[np.float32]:
        """Returns rewards [N], scaled and clipped."""
        scaled = reward / np.sqrt(self.statistics.var + EPSILON)
        return np.clip(scaled, -self._clip, self._clip).astype(np.float32)

    def forget(self, env_indices: list[int]) -> None:
        """Zeroes the running returns of environments that had to begin a fresh episode on a resume."""
        self.returns[env_indices] = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Returns the statistics and each environment's running return."""
        return {"statistics": self.statistics.state_dict(), "returns": self.returns.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state that `state_dict` returned."""
        self.statistics.load_state_dict(state["statistics"])
        self.returns = require_finite_values(
            "returns", require_same_form("returns", state["returns"], self.returns)
        ).copy()
