"""SAC's update in two threads: the same bits as in one thread, and no slower for long if a CPU is busy."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms.continuous.sac import SAC
from rl_training.networks.threads import PAYS, THREADS, TRY_EVERY, Helper, Quickest, Way
from tests.off_policy_parts import make_sac, moves, random_batch
from tests.test_sac_update import bits, with_middle

LARGE = PAYS // 64**2 + 1
"""The least batch for two threads, with 64 hidden units."""


def make_wide(activation: str = "relu") -> SAC:
    return make_sac(network={"hidden": [64, 64], "activation": activation}, learning_rate=0.01, seed=3)


def ready_batch(n_step: int, seed: int) -> Any:
    batch = random_batch(moves, count=LARGE, seed=seed)
    return batch if n_step == 1 else with_middle(batch, n_step, seed)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_two_threads_update_to_the_same_bits_as_one(n_step: int, activation: str) -> None:
    results = []
    for threads in (1, 2, 2):
        sac = make_wide(activation)
        with THREADS.using(threads):
            metrics = [sac.update(ready_batch(n_step, seed), 0.0) for seed in range(6)]
        results.append((metrics, bits(sac)))
    assert results[0] == results[1] == results[2]
    assert np.isfinite([*results[0][0][-1].values()]).all()


@pytest.mark.parametrize(
    ("way", "threads_of_torch", "hands_over"),
    [(Way.TORCH, 2, False), (Way.HANDED_OVER, 1, True), (Way.ALONE, 1, False)],
)
def test_large_updates_alone_use_two_threads_in_one_way(
    monkeypatch: pytest.MonkeyPatch, way: Way, threads_of_torch: int, hands_over: bool
) -> None:
    counts: list[int] = []
    asked: list[object] = []
    update, ask = SAC._update, Helper.ask

    def count_threads(sac: SAC, *arguments: Any) -> dict[str, float]:
        counts.append(torch.get_num_threads())
        return update(sac, *arguments)

    def note(helper: Helper, task: Any) -> None:
        asked.extend([] if task is None else [task])
        ask(helper, task)

    monkeypatch.setattr(Quickest, "choose", lambda self: way)
    monkeypatch.setattr(Helper, "ask", note)
    monkeypatch.setattr(SAC, "_update", count_threads)
    sac = make_wide()
    with THREADS.using(2):
        sac.update(random_batch(moves, count=LARGE - 2), 0.0)
        assert not asked
        sac.update(random_batch(moves, count=LARGE), 0.0)
        assert torch.get_num_threads() == 1
        assert bool(asked) is hands_over
        asked.clear()
    with THREADS.using(1):
        sac.update(random_batch(moves, count=LARGE), 0.0)
    assert (counts, asked) == ([1, threads_of_torch, 1], [])


def choose_by(seconds: dict[Way, float], count: int) -> list[Way]:
    """The ways that are chosen, given the duration of each way."""
    quickest, chosen = Quickest(), []
    for _ in range(count):
        chosen.append(quickest.choose())
        quickest.record(chosen[-1], seconds[chosen[-1]])
    return chosen


@pytest.mark.parametrize("ways", list(permutations(Way)), ids=lambda ways: "-".join(way.name for way in ways))
def test_after_two_tries_of_each_way_the_quickest_is_taken_but_for_two_tries_of_the_others_in_128(
    ways: tuple[Way, ...],
) -> None:
    best, second, third = ways
    chosen = choose_by({best: 1.0, second: 1.5, third: 2.0}, 2 * TRY_EVERY + 4)
    assert chosen[:6] == [way for way in Way for _ in range(2)]
    tries = {i: way for i, way in enumerate(chosen, start=1) if way is not best and i > 6}
    expected = {128: second, 129: second, 130: third, 131: third}
    assert tries == expected | {i + TRY_EVERY: way for i, way in expected.items() if i + TRY_EVERY <= len(chosen)}


def test_a_single_interruption_changes_nothing_and_lasting_load_does() -> None:
    quickest = Quickest()
    for way in (way for way in Way for _ in range(2)):
        assert quickest.choose() is way
        quickest.record(way, 1.0 if way is Way.HANDED_OVER else 2.0)
    for seconds in (9.0, 1.0, 9.0, 9.0, 9.0, 9.0):  # of the last four, one is 1.0
        assert quickest.choose() is Way.HANDED_OVER
        quickest.record(Way.HANDED_OVER, seconds)
    assert quickest.choose() is Way.TORCH  # the first of two equal ways
