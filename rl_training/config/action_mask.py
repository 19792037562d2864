"""The setting of action masks, for the algorithms that can apply them."""

from __future__ import annotations

from collections.abc import Iterator

from rl_training.config.sections import Name
from rl_training.config.settings import NATIVE, Combination, TrainConfig

IN_INFOS = "info"
"""The value of `action_mask` with which masks come from infos."""
MASK_KEY = "action_mask"
"""The key of a mask in infos."""


class MaskedActionsConfig(TrainConfig):
    """The settings of an algorithm that can leave out forbidden actions."""

    action_mask: Name | None = None
    """Where the environment tells which actions are allowed: `info` for `info["action_mask"]` of `reset` and `step`, or
    the key of its Dict observation. Forbidden actions are never chosen. null: every action is allowed."""

    @property
    def mask_key(self) -> str | None:
        """The key of observations that holds the action mask; masks from infos are put there too."""
        return MASK_KEY if self.masks_in_infos else self.action_mask

    @property
    def masks_in_infos(self) -> bool:
        """Whether action masks come from infos."""
        return self.action_mask == IN_INFOS

    def combinations(self) -> Iterator[Combination]:
        """Yields each invalid combination of these settings."""
        yield from super().combinations()
        if self.action_mask is not None and self.vectorization in NATIVE:
            yield Combination(
                ("vectorization", "action_mask"),
                f"got {self.vectorization} with action_mask: {self.action_mask}, and masks are taken from single "
                f"environments; set vectorization to sync, async, split or ray",
            )
        if self.action_mask is not None and self.replaces_goals:
            yield Combination(
                ("action_mask", "hindsight"),
                f"got {self.action_mask} with hindsight, and the masks of an episode belong to its own goal: a state "
                f"that is terminal for it may allow no action; leave one of the two out",
            )
