"""SAC's update in two threads: the same bits as in one, few waits, and an error in either of them."""

from typing import Any

import numpy as np
import pytest

from rl_training.algorithms.sac import SAC
from rl_training.networks import squashed_gaussian
from rl_training.networks.threads import PAYS, THREADS, Helper
from tests.off_policy_parts import make_sac, moves, random_batch
from tests.test_sac_update import bits, with_middle

LARGE = PAYS // 64**2 + 1
"""The least batch for two threads, with 64 hidden units."""


def make_wide() -> SAC:
    return make_sac(network={"hidden": [64, 64]}, learning_rate=0.01, seed=3)


def ready_batch(n_step: int, seed: int) -> Any:
    batch = random_batch(moves, count=LARGE, seed=seed)
    return batch if n_step == 1 else with_middle(batch, n_step, seed)


@pytest.mark.parametrize("n_step", [1, 2, 3])
def test_two_threads_update_to_the_same_bits_as_one(n_step: int) -> None:
    results = []
    for threads in (1, 2, 2):
        sac = make_wide()
        with THREADS.using(threads):
            metrics = [sac.update(ready_batch(n_step, seed), 0.0) for seed in range(3)]
        results.append((metrics, bits(sac)))
    assert results[0] == results[1] == results[2]
    assert np.isfinite([*results[0][0][-1].values()]).all()


def test_an_update_hands_over_four_tasks_and_none_if_the_batch_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both critics' values, their gradients, their values of the policy's actions, and the policy's gradient."""
    asked, ask = [], Helper.ask
    monkeypatch.setattr(Helper, "ask", lambda self, task: (asked.append(task is not None), ask(self, task)))
    sac = make_wide()
    with THREADS.using(2):
        sac.update(random_batch(moves, count=LARGE - 2), 0.0)
        assert asked == []
        sac.update(random_batch(moves, count=LARGE), 0.0)
        assert asked == [True] * 4


@pytest.mark.parametrize("failing", ["evaluate_aside", "forward"], ids=["the next actions", "the policy's actions"])
def test_an_error_in_either_thread_is_raised_and_the_next_update_succeeds(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*observations: Any) -> None:
        raise ValueError("no actions")

    alone, sac = make_wide(), make_wide()
    batch = random_batch(moves, count=LARGE)
    alone.update(batch, 0.0)
    with THREADS.using(2):
        with monkeypatch.context() as patched:
            patched.setattr(sac.actor, failing, fail)
            with pytest.raises(ValueError, match="no actions"):
                sac.update(batch, 0.0)
        sac.state.noise_rng.bit_generator.state = make_wide().state.noise_rng.bit_generator.state
        sac.update(batch, 0.0)
    assert bits(sac) == bits(alone)


def test_no_actions_drawn_ahead_outlive_a_failed_update() -> None:
    """An update that fails between both backward passes leaves the policy's actions behind, for other observations."""
    first, second = random_batch(moves, count=LARGE, seed=1), random_batch(moves, count=LARGE, seed=2)
    sac, alone = make_wide(), make_wide()
    with THREADS.using(2):
        sac.update(first, 0.0)
        assert sac._sample_ahead is None
        sac._sample_ahead = squashed_gaussian.sample(
            np.zeros((LARGE, 4), np.float32), np.zeros((LARGE, 2), np.float32), sac.backend
        )
        sac.update(second, 0.0)
    for batch in (first, second):
        alone.update(batch, 0.0)
    assert bits(sac) == bits(alone)
