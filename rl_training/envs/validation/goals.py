"""Checks that an environment computes the reward of each goal as its steps give it, which hindsight relies on.

Shapes: T transitions, G numbers in a goal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rl_training.config.settings import TrainConfig
from rl_training.envs.contract.call_watch import MAKING_SECONDS, CallWatch
from rl_training.envs.contract.step_contract import Breach, failure, flag_as_bool, reward_as_float
from rl_training.envs.goals.goal_columns import ACHIEVED, DESIRED
from rl_training.envs.goals.goal_rewards import REWARD, TERMINATED, GoalRewards
from rl_training.envs.spaces import ObservationEncoder
from rl_training.envs.validation.curriculum import list_first_options
from rl_training.envs.validation.opening import open_env
from rl_training.envs.validation.report import Findings
from rl_training.errors import USER_CODE_ERRORS, EnvironmentFault, EnvironmentRefused

STEPS = 200
"""Transitions that are played with random actions."""
RELATIVE, ABSOLUTE = 1e-4, 1e-5
"""How much a computed reward may differ from the one that the step gave, because goals are stored as float32."""


class _Transitions(NamedTuple):
    achieved: NDArray[np.float32]
    """[T, G] the goals that the next observations achieved."""
    desired: NDArray[np.float32]
    """[T, G] the goals that they desired."""
    rewards: NDArray[np.float64]
    """[T] the rewards of the steps."""
    terminated: NDArray[np.bool_]
    """[T] whether the steps ended their episodes."""


def check_goals(config: TrainConfig, found: Findings, watch: CallWatch) -> None:
    """Plays the environment, and reports how what it computes for goals differs from what its steps gave."""
    with open_env(config, found, watch) as env:
        if env is None:
            return
        try:
            encoder = ObservationEncoder(env.observation_space)
            goals = watch.call("making it for goals", GoalRewards, config, encoder, seconds=MAKING_SECONDS)
        except (EnvironmentRefused, EnvironmentFault) as error:
            found.add([Breach("fatal", "goals", str(error))])
            return
        try:
            played = _play(env, encoder, config, watch)
            found.add(watch.call("computing rewards of goals", lambda: list(_compare(goals, played))))
        except EnvironmentFault as error:
            found.add([Breach("fatal", "goals", str(error).removeprefix(f"environment {config.env_id}: "))])
        except USER_CODE_ERRORS as error:  # among them a call that did not return
            found.add([failure("a step or a reward, to be compared with each other,", error)])
        finally:
            goals.close()


def _play(env: gym.Env[Any, Any], encoder: ObservationEncoder, config: TrainConfig, watch: CallWatch) -> _Transitions:
    options = dict(list_first_options(config)) or None
    env.action_space.seed(config.seed)
    vectors, numbers = [], []
    over, seed = True, config.seed
    for _ in range(STEPS):
        if over:
            watch.call("a reset", lambda seed=seed: env.reset(seed=seed, options=options))
            seed += 1
        observation, reward, terminated, truncated, _ = watch.call("a step", env.step, env.action_space.sample())
        vector = encoder.vector(encoder.encode_list([observation]))  # a copy: it may return the same arrays again
        assert vector is not None
        vectors.append(vector)
        numbers.append((reward_as_float(reward), flag_as_bool("terminated", terminated)))
        over = numbers[-1][1] or flag_as_bool("truncated", truncated)
    encoded = np.concatenate(vectors)
    achieved, desired = (encoded[:, encoder.columns((name,))] for name in (ACHIEVED, DESIRED))
    rewards, terminated_T = (np.array(column) for column in zip(*numbers, strict=True))
    return _Transitions(achieved, desired, rewards, terminated_T)


def _compare(goals: GoalRewards, played: _Transitions) -> Iterator[Breach]:
    """Yields a breach for each method that gives something else than the steps did, or than it gives one by one."""
    rewards, terminated = goals.compute(played.achieved, played.desired)
    unequal = ~np.isclose(rewards, played.rewards, RELATIVE, ABSOLUTE)
    if unequal.any():
        first = int(np.argmax(unequal))
        yield Breach(
            "fatal",
            "goals",
            f"{REWARD} gave {rewards[first]:.6g} for the goals of a step whose reward was {played.rewards[first]:.6g}: "
            f"hindsight needs rewards that depend on {ACHIEVED} and {DESIRED} alone, without infos, costs of actions, "
            f"and wrappers that change them",
        )
    unequal = terminated != played.terminated
    if unequal.any():
        first = int(np.argmax(unequal))
        yield Breach(
            "fatal",
            "goals",
            f"{TERMINATED} gave {bool(terminated[first])} for the goals of a step whose `terminated` was "
            f"{bool(played.terminated[first])}: hindsight needs episodes whose ends depend on {ACHIEVED} and {DESIRED} "
            f"alone; end others by `truncated`",
        )
    # Half of these goals are achieved, which random actions may never do.
    desired = np.where(np.arange(len(played.achieved))[:, None] % 2, played.achieved, played.desired)
    together = goals.compute(played.achieved, desired)
    single = [goals.compute(played.achieved[i : i + 1], desired[i : i + 1]) for i in range(len(desired))]
    for name, batch, each in zip((REWARD, TERMINATED), together, zip(*single, strict=True), strict=True):
        if not np.allclose(batch, np.concatenate(each), RELATIVE, ABSOLUTE):
            yield Breach(
                "fatal",
                "goals",
                f"{name} gives something else for a batch of goals than for each of them: hindsight needs a result for "
                f"each row of arrays with shape (batch, *shape of a goal), for example by axis=-1 in norms and sums",
            )
