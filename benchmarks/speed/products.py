"""The matrix products of one update of SAC or DQN, which are the least that an update computes.

Each function lists the products in the order of an update, as (left, right, result), each with operands in memory of
its own. Networks are multilayer perceptrons, whose layers x @ W need x.T @ d for the gradient of W, and d @ W.T for
that of x.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from benchmarks.speed.tasks import Task

SECONDS = 1.0
"""Least duration of the measurement of a floor."""

Array = npt.NDArray[Any]
Operands = list[tuple[Array, Array, Array]]


class Products:
    """Collects the operands and the results of products of a batch."""

    def __init__(self, batch: int) -> None:
        self.operands: Operands = []
        self._rng, self._batch = np.random.default_rng(0), batch

    def make_net(self, *sizes: int) -> list[Array]:
        """Returns the weights of a network with layers of these sizes."""
        return [self._make_array(*pair) for pair in pairwise(sizes)]

    def add_forward(self, net: list[Array]) -> list[Array]:
        """Adds the evaluation of a network; returns the inputs of its layers, and its outputs."""
        activations = [self._make_array(self._batch, net[0].shape[0])]
        for weights in net:
            activations.append(self._add_product(activations[-1], weights))
        return activations

    def add_backward(self, net: list[Array], activations: list[Array], *, weights: bool, inputs: bool) -> None:
        """Adds the gradients of a network with respect to its weights, its inputs, or both."""
        gradient = self._make_array(*activations[-1].shape)
        for i in reversed(range(len(net))):
            if weights:
                self._add_product(activations[i].T, gradient)
            if i > 0 or inputs:
                gradient = self._add_product(gradient, net[i].T)

    def _make_array(self, *shape: int) -> Array:
        return self._rng.standard_normal(shape, np.float32)

    def _add_product(self, left: Array, right: Array) -> Array:
        result = np.empty((left.shape[0], right.shape[1]), np.float32)
        self.operands.append((left, right, result))
        return result


def list_sac_products(batch: int, observation: int, action: int, hidden: Sequence[int]) -> Operands:
    """Returns the products of one SAC update with twin critics (Haarnoja et al. 2018, algorithm 1)."""
    products = Products(batch)
    actor = products.make_net(observation, *hidden, 2 * action)
    critics, targets = ([products.make_net(observation + action, *hidden, 1) for _ in "12"] for _ in "12")
    products.add_forward(actor)  # next actions
    for target in targets:
        products.add_forward(target)
    for critic in critics:
        products.add_backward(critic, products.add_forward(critic), weights=True, inputs=False)
    activations = products.add_forward(actor)
    for critic in critics:
        products.add_backward(critic, products.add_forward(critic), weights=False, inputs=True)
    products.add_backward(actor, activations, weights=True, inputs=False)
    return products.operands


def list_dqn_products(batch: int, observation: int, actions: int, hidden: Sequence[int]) -> Operands:
    """Returns the products of one DQN update, without double Q-learning (Mnih et al. 2015, algorithm 1)."""
    products = Products(batch)
    network, target = (products.make_net(observation, *hidden, actions) for _ in "12")
    products.add_forward(target)
    products.add_backward(network, products.add_forward(network), weights=True, inputs=False)
    return products.operands


def list_products(task: Task) -> Operands:
    """Returns the products of one update of a SAC or DQN task."""
    env = gym.make(task.env_id)
    observations, actions = env.observation_space.shape, env.action_space
    env.close()
    assert observations is not None
    form = (task.settings["batch_size"], int(np.prod(observations)))
    if isinstance(actions, gym.spaces.Discrete):
        return list_dqn_products(*form, int(actions.n), task.settings["network"]["hidden"])
    assert actions.shape is not None
    return list_sac_products(*form, int(np.prod(actions.shape)), task.settings["network"]["hidden"])


def plan_products(multiply: Callable[..., Any], operands: Sequence[Sequence[Any]]) -> list[Callable[[], object]]:
    """Returns a call for each product (left, right, result), by `np.matmul` or `torch.mm`.

    A column times a row, which is the way back through a head of one output, is a broadcast product in torch, because
    numpy's product of two matrices takes ten times as long.
    """
    tensors = [tuple(torch.as_tensor(array) for array in arrays) for arrays in operands]
    return [
        partial(torch.mul, left_T, right_T, out=result_T)
        if left.shape[1] == 1
        else partial(multiply, left, right, out=result)
        for (left, right, result), (left_T, right_T, result_T) in zip(operands, tensors, strict=True)
    ]


def call_all(calls: Sequence[Callable[[], object]]) -> None:
    """Calls functions one after another."""
    for call in calls:
        call()


def time_calls(work: Callable[[], object], seconds: float = SECONDS) -> float:
    """Returns the median duration of a call, over repeated calls for `seconds` after a first call."""
    work()
    taken: list[float] = []
    began = time.perf_counter()
    while len(taken) < 5 or time.perf_counter() - began < seconds:
        before = time.perf_counter()
        work()
        taken.append(time.perf_counter() - before)
    return median(taken)
