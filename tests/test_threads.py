"""Threads of networks: how many there are and when, and that parallel networks compute the same as single ones."""

import threading
import warnings

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info
from waiting import LIMIT, wait_for

from rl_training.networks.flat import FlatParameters
from rl_training.networks.mlp import StackedMLP
from rl_training.networks.threads import PAYS, THREADS, Helper
from tests.network_parts import CPU


def products() -> set[int]:
    """Returns the thread counts that numpy's matrix products may use; scipy has another library."""
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas" and "scipy.libs" not in pool["filepath"]]
    return {pool["num_threads"] for pool in pools}


def test_products_and_torch_have_one_thread_unless_torch_is_given_more() -> None:
    before = products(), torch.get_num_threads()
    for _ in range(2):
        with THREADS.using(3):
            assert (products(), torch.get_num_threads()) == ({1}, 1)
            with THREADS.in_torch():
                assert (products(), torch.get_num_threads()) == ({1}, 3)
            assert (products(), torch.get_num_threads()) == ({1}, 1)
        with THREADS.in_torch():
            assert (products(), torch.get_num_threads()) == before
        assert (products(), torch.get_num_threads()) == before
    with THREADS.using(1), THREADS.in_torch():
        assert (products(), torch.get_num_threads()) == ({1}, 1)


def test_many_threads_are_one_more_for_networks() -> None:
    before = threading.active_count()
    with THREADS.using(400):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_side_by_side_means_at_the_same_time_and_an_error_is_raised_when_all_have_ended() -> None:
    meeting, ended = threading.Barrier(2, timeout=LIMIT), []

    def meet() -> None:
        meeting.wait()  # which one alone would never leave

    def fail() -> None:
        meeting.wait()
        ended.append(threading.get_ident())
        raise ValueError("no")

    with THREADS.using(2):
        THREADS.call(PAYS, meet, meet)
        for tasks in ([fail, meet], [meet, fail]):
            with pytest.raises(ValueError, match="no"):
                THREADS.call(PAYS, *tasks)
    assert len(set(ended)) == 2


def test_what_is_small_or_within_another_task_or_alone_stays_in_its_thread() -> None:
    seen: list[int] = []

    def note() -> None:
        seen.append(threading.get_ident())

    with THREADS.using(2):
        THREADS.call(PAYS - 1, note, note)
        THREADS.call(PAYS, note)
        assert set(seen) == {threading.get_ident()}
        seen.clear()
        THREADS.call(PAYS, lambda: THREADS.call(PAYS, note, note), lambda: THREADS.call(PAYS, note, note))
        assert sorted(seen.count(thread) for thread in set(seen)) == [2, 2]
    with THREADS.using(1):
        seen.clear()
        THREADS.call(PAYS, note, note)
        assert set(seen) == {threading.get_ident()}


def test_what_is_begun_runs_beside_its_caller_until_the_result_is_wanted() -> None:
    meeting = threading.Barrier(2, timeout=LIMIT)
    with THREADS.using(2):
        ahead = THREADS.begin(lambda: (meeting.wait(), threading.get_ident())[1])
        assert not THREADS.is_free
        seen: list[int] = []
        THREADS.call(PAYS, lambda: seen.append(threading.get_ident()), lambda: seen.append(threading.get_ident()))
        assert seen == [threading.get_ident()] * 2  # because the second thread waits
        meeting.wait()
        assert ahead.result() != threading.get_ident()
        assert ahead.result() == ahead.result()
        assert THREADS.is_free


def test_the_second_thread_is_free_again_when_what_was_begun_has_ended() -> None:
    with THREADS.using(2):
        ahead = THREADS.begin(threading.get_ident)
        wait_for(lambda: THREADS.is_free)
        seen: list[int] = []
        THREADS.call(PAYS, lambda: None, lambda: seen.append(threading.get_ident()))
        assert [ahead.result()] == seen


def test_what_is_begun_without_a_second_thread_is_called_once_when_its_result_is_wanted() -> None:
    calls: list[int] = []
    with THREADS.using(1):
        assert not THREADS.is_free
        ahead = THREADS.begin(lambda: calls.append(threading.get_ident()))
        ahead.settle()
        assert calls == []
        for _ in range(2):
            ahead.result()
        assert calls == [threading.get_ident()]


def test_an_error_of_what_was_begun_is_raised_with_its_result() -> None:
    def fail() -> None:
        raise ValueError("no")

    with THREADS.using(2):
        ahead = THREADS.begin(fail)
        ahead.settle()
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                ahead.result()
        assert THREADS.begin(lambda: 3).result() == 3


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_networks_side_by_side_compute_what_they_would_alone(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = StackedMLP(4, (64, 64), (3, 1), activation, (0.5, 1.0), np.random.default_rng(0))
    flat = FlatParameters(stack, CPU)
    rng, large = np.random.default_rng(1), PAYS // 64**2 + 1
    shared = []
    ask = Helper.ask
    monkeypatch.setattr(Helper, "ask", lambda self, task: (shared.append(task is not None), ask(self, task)))
    for batch in (large - 2, large):
        x = rng.standard_normal((batch, 4), np.float32)
        d_outputs = [rng.standard_normal((batch, k), np.float32) for k in (3, 1)]
        results = []
        for threads in (1, 2, 3):
            with THREADS.using(threads):
                outputs = [output.copy() for output in stack.bound.evaluate(x)]
                d_inputs = stack.bound.backpropagate(x, d_outputs, columns=slice(1, 3))
            results.append([*outputs, d_inputs, flat.gradient.numpy().copy()])
            flat.gradient.zero_()
        for alone, others in zip(results[0], zip(*results[1:], strict=True), strict=True):
            assert all(np.array_equal(alone, other) for other in others)
        asked = 4 if batch == large else 0  # there and back, with two threads and with three
        assert shared.count(True) == asked


def test_what_overflows_in_another_thread_is_no_warning() -> None:
    def overflow() -> None:
        np.exp(np.full(3, 1e4))

    with warnings.catch_warnings(), THREADS.using(2), np.errstate(all="ignore"):
        warnings.simplefilter("error")
        THREADS.call(PAYS, overflow, overflow)


def test_one_network_is_evaluated_in_two_halves_and_goes_back_by_two_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stack = StackedMLP(4, (64, 64, 64), (2,), "relu", (1.0,), np.random.default_rng(0))
    flat, batch = FlatParameters(stack, CPU), PAYS // 64**2 + 1
    rng, results, shared = np.random.default_rng(1), [], []
    x, d_output = rng.standard_normal((batch, 4), np.float32), rng.standard_normal((batch, 2), np.float32)
    ask = Helper.ask
    monkeypatch.setattr(Helper, "ask", lambda self, task: (shared.append(task is not None), ask(self, task)))
    for threads in (1, 2):
        with THREADS.using(threads):
            (output,) = stack.bound.evaluate(x)
            stack.bound.backpropagate(x, [d_output])
        results.append((output.copy(), flat.gradient.numpy().copy()))
        flat.gradient.zero_()
    for alone, shared_out in zip(*results, strict=True):
        assert np.array_equal(alone, shared_out)
    # The second half, and the upper two layers back; below the first nothing is wanted. Then the end of the thread.
    assert shared == [True, True, True, False]
