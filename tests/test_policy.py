"""The greedy policy, which several threads may use at once, as a server that answers each request in its own thread."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.runtime.policy import GreedyPolicy
from tests.off_policy_parts import VECTOR, make_dqn, make_sac


@pytest.fixture
def _hasty_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_hasty_threads")
@pytest.mark.parametrize("algo", ["dqn", "sac"])
def test_threads_that_ask_at_once_get_the_answers_that_each_gets_alone(algo: str) -> None:
    agent, space = (make_dqn(), gym.spaces.Discrete(3)) if algo == "dqn" else (make_sac(), gym.spaces.Box(-2, 2, (2,)))
    agent.parameters.vector.normal_()
    policy = GreedyPolicy(
        encoder=ObservationEncoder(VECTOR),
        normalizer=None,
        act_greedy=agent.act_greedy,
        codec=ActionCodec(space, scaled=algo == "sac"),
        observation_space=VECTOR,
        action_space=space,
    )
    batches = np.random.default_rng(0).standard_normal((400, 8, 3), np.float32)
    alone = [policy.act(list(batch)) for batch in batches]
    with ThreadPoolExecutor(4) as threads:
        at_once = list(threads.map(lambda batch: policy.act(list(batch)), batches))
    wrong = sum(not np.array_equal(got, expected) for got, expected in zip(at_once, alone, strict=True))
    assert wrong == 0
