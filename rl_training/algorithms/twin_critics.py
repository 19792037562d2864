"""Evaluates SAC's twin critics: one after the other, or each of them in a thread of its own where that pays.

A thread keeps all that it computes with one critic in its nearest cache, and the threads wait for each other once per
function instead of once per evaluation. Shapes: B batch, A action dims.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from rl_training.networks import squashed_gaussian
from rl_training.networks.backend import Array
from rl_training.networks.feature_extractors import Observations
from rl_training.networks.observed_mlp import ObservedMLP
from rl_training.networks.squashed_gaussian import SquashedSample
from rl_training.networks.threads import PAYS, THREADS


def value_next_actions(
    actor: ObservedMLP,
    targets: ObservedMLP,
    next_observations: Observations,
    noise_BA: Array,
    beside: Callable[[int | None], object],
) -> tuple[SquashedSample, list[Array]]:
    """Draws the policy's next actions, and values them by both target critics.

    Args:
        actor: The policy.
        targets: Both target critics.
        next_observations: The observations after the step.
        noise_BA: Standard normal draws.
        beside: Is called with the index of each critic, in the thread of its target, or once with None for both. The
            call with 1 may use the actor at the same time as the next actions are drawn.

    Returns:
        The next actions, and their value by each target critic, [B, 1] each.
    """
    samples: list[SquashedSample] = []
    lanes, drawn = targets.lanes(len(noise_BA)), threading.Lock()
    act = actor.evaluate if len(lanes) == 1 else actor.evaluate_aside
    drawn.acquire()

    def draw_and_value() -> None:
        try:
            samples.append(squashed_gaussian.sample(act(next_observations)[0], noise_BA, actor.backend))
            targets.prepare(next_observations, samples[0].actions_BA)
        finally:
            drawn.release()
        beside(lanes[0])
        targets.compute(lanes[0])

    def value(network: int | None) -> None:
        beside(network)
        with drawn:  # The next actions are usually drawn by now.
            targets.compute(network)

    THREADS.call(PAYS, draw_and_value, *(partial(value, network) for network in lanes[1:]))
    return samples[0], targets.outputs


def follow_smaller(critics: ObservedMLP, observations: Observations, actions_BA: Array) -> tuple[list[Array], Array]:
    """Values actions by both critics, and differentiates minus the mean of the smaller values.

    Each critic is differentiated in all rows, and the choice comes last, because rows are independent. So neither
    thread waits for the other's values.

    Args:
        critics: Both critics.
        observations: The observations, B of them.
        actions_BA: The actions.

    Returns:
        The value by each critic, [B, 1] each; and the gradient of minus the mean with respect to the actions, [B, A].
    """
    critics.prepare(observations, actions_BA)
    weights_B1 = critics.backend.xp.full_like(actions_BA[:, :1], -1.0 / len(actions_BA))
    lanes = critics.lanes(len(actions_BA))
    gradients: dict[int | None, list[Array]] = {}

    def follow(network: int | None) -> None:
        critics.compute(network)
        d_values = [weights_B1] * (2 if network is None else 1)
        gradients[network] = critics.further_gradients(*d_values, network=network)

    THREADS.call(PAYS, *(partial(follow, network) for network in lanes))
    first_BA, second_BA = (gradient for network in lanes for gradient in gradients[network])
    first_B1, second_B1 = critics.outputs
    d_actions_BA = critics.backend.xp.where(first_B1 <= second_B1, first_BA, second_BA)
    return critics.outputs, d_actions_BA
