"""The settings of TQC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from rl_training.config.algorithms.maximum_entropy import MaximumEntropyConfig
from rl_training.config.settings import Combination


class TQCConfig(MaximumEntropyConfig):
    """Truncated Quantile Critics (Kuznetsov et al. 2020), on SAC with a learned temperature."""

    algo: Literal["tqc"] = "tqc"
    """The algorithm."""
    critics: Annotated[PositiveInt, Field(le=32)] = 2
    """Number of critics."""
    quantiles: Annotated[PositiveInt, Field(le=1_000)] = 25
    """Quantiles of the return that each critic estimates."""
    drop_quantiles: NonNegativeInt = 2
    """Quantiles per critic that targets leave out: the largest ones of all target critics together."""

    def combinations(self) -> Iterator[Combination]:
        """Yields each invalid combination of these settings."""
        yield from super().combinations()
        if self.drop_quantiles >= self.quantiles:
            yield Combination(
                ("drop_quantiles", "quantiles"),
                f"got {self.drop_quantiles}, expected less than quantiles = {self.quantiles}, because a target needs "
                f"at least one of them; lower drop_quantiles or raise quantiles",
            )
