"""SAC's update in torch's threads: the same bits as in one thread, and no slower for long if a CPU is busy."""

from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms.continuous.sac import SAC
from rl_training.networks.threads import PAYS, THREADS, TRY_EVERY, Helper, Quicker
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


def test_torch_has_all_threads_in_large_updates_alone_and_none_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    asked: list[object] = []
    update, ask = SAC._update, Helper.ask

    def count_threads(sac: SAC, *arguments: Any) -> dict[str, float]:
        counts.append(torch.get_num_threads())
        return update(sac, *arguments)

    def note(helper: Helper, task: Any) -> None:
        asked.extend([] if task is None else [task])
        ask(helper, task)

    monkeypatch.setattr(Quicker, "choose", lambda self: True)
    monkeypatch.setattr(Helper, "ask", note)
    monkeypatch.setattr(SAC, "_update", count_threads)
    sac = make_wide()
    with THREADS.using(2):
        for count in (LARGE - 2, LARGE):
            sac.update(random_batch(moves, count=count), 0.0)
        assert torch.get_num_threads() == 1
    with THREADS.using(1):
        sac.update(random_batch(moves, count=LARGE), 0.0)
    assert (counts, asked) == ([1, 2, 1], [])


def choose_by(seconds: dict[bool, list[float]], count: int) -> list[bool]:
    """The ways that are chosen, given the durations of each way, which repeat."""
    quicker, taken, chosen = Quicker(), {way: cycle(each) for way, each in seconds.items()}, []
    for _ in range(count):
        chosen.append(quicker.choose())
        quicker.record(chosen[-1], next(taken[chosen[-1]]))
    return chosen


@pytest.mark.parametrize("quick", [True, False])
def test_after_two_tries_of_each_way_the_quicker_one_is_taken_but_for_two_tries_in_64(quick: bool) -> None:
    chosen = choose_by({quick: [1.0], not quick: [2.0]}, 3 * TRY_EVERY)
    assert chosen[:4] == [True, True, False, False]
    tries = [i for i, way in enumerate(chosen, start=1) if way != quick and i > 4]
    assert tries == [64, 65, 128, 129, 192]


def test_a_single_interruption_changes_nothing_and_lasting_load_does() -> None:
    quicker = Quicker()
    for way in (True, True, False, False):
        assert quicker.choose() is way
        quicker.record(way, 1.0 if way else 2.0)
    for seconds in (9.0, 1.0, 9.0, 9.0, 9.0, 9.0):  # of the last four, one is 1.0
        assert quicker.choose() is True
        quicker.record(True, seconds)
    assert quicker.choose() is False
