"""The entropy terms between the steps of SAC's n-step targets.

The soft return of n steps is the sum over k < n of gamma^k r_k, plus the sum over 0 < k < n of gamma^k alpha H(s_k),
plus gamma^n times the soft value of s_n, where H(s) is the policy's entropy at s. It follows from the reward with
entropy r(s, a) + gamma alpha H(s') (Haarnoja et al. 2018, "Soft Actor-Critic", proof of lemma 1), summed over n steps.

H(s_k) is estimated by -log pi(a'|s_k) with an action a' that is drawn from the current policy. The density of the
stored action would estimate it only if the stored action came from that policy: the action of an older policy can be
so unlikely under the current one that its term has no bound.

Shapes: M observations between the steps (n - 1), B batch, O observation dims, A action dims.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.data.replay_buffer import ReplayBatch
from rl_training.networks import squashed_gaussian
from rl_training.networks.backend import Array, Backend
from rl_training.networks.feature_extractors import Observations, to_arrays
from rl_training.networks.observed_mlp import ObservedMLP


def draw_middle(batch: ReplayBatch, action_dims: int, rng: np.random.Generator, backend: Backend) -> tuple[Any, ...]:
    """Draws the noise of the actions between the steps.

    Args:
        batch: Transitions with normalised observations.
        action_dims: Number of action dims (A).
        rng: Generator of the noise, which is advanced unless the transitions have one step.
        backend: Backend of the arrays.

    Returns:
        The observations between the steps, the noise and the discounts, for `sum_middle_logprobs`; nothing if the
        transitions have one step.
    """
    if batch.middle_obs is None or batch.middle_discounts is None:
        return ()
    observations = batch.middle_obs.reshape(-1, *batch.middle_obs.shape[2:])  # [M B, *O]
    noise = rng.standard_normal((len(observations), action_dims), dtype=np.float32)
    return to_arrays(observations, backend), backend.array(noise), backend.array(batch.middle_discounts)


def sum_middle_logprobs(
    actor: ObservedMLP, backend: Backend, observations: Observations, noise: Array, discounts_MB: Array
) -> Array:
    """Returns the sum over 0 < k < n of gamma^k log pi(a'|s_k), with a' from the policy, [B].

    Args:
        actor: The policy.
        backend: Backend of the arrays.
        observations: The observations s_k, [M B, *O].
        noise: Standard normal draws, [M B, A].
        discounts_MB: gamma^k, or 0 if the transition has no more than k steps.
    """
    sample = squashed_gaussian.sample(actor.evaluate(observations)[0], noise, backend)
    total: Array = backend.xp.sum(discounts_MB * sample.logprobs_B.reshape(discounts_MB.shape), 0)
    return total
