"""Checks an environment before training, and reports everything that would fail or mislead later.

Gymnasium's own checker accepts NaN observations, rewards of None, dtypes that differ from the space, and episodes that
never end. This checker plays complete episodes and reports all of its findings.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from rl_training.config.settings import NATIVE, TrainConfig
from rl_training.envs.contract.call_watch import MAKING_SECONDS, CallBlocked, CallWatch
from rl_training.envs.contract.contract_guard import find_secrets
from rl_training.envs.contract.step_contract import (
    Breach,
    Severity,
    check_reset_result,
    check_space_change,
    check_space_type,
    check_step_result,
    failure,
)
from rl_training.envs.env_lookup import find_plugin_module
from rl_training.envs.factory import make_bare_env
from rl_training.envs.normalize import ObservationNormalizer
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.envs.validation.native import check_native
from rl_training.envs.validation.random_play import Player
from rl_training.envs.validation.report import Finding, Findings, ValidationReport, format_count
from rl_training.envs.validation.step_speed import Stopwatch, time_steps
from rl_training.errors import USER_CODE_ERRORS, EnvironmentRefused
from rl_training.seeding import env_seeds
from rl_training.system.paths import keep_working_folder

__all__ = ["CheckSpaces", "Finding", "ValidationReport", "require_valid", "validate_env"]

CheckSpaces = Callable[[gym.Space[Any], gym.Space[Any]], Sequence[str]]
"""`check_spaces(observation_space, action_space)` returns why an algorithm can't train on the spaces, one sentence per
reason."""


def validate_env(
    config: TrainConfig,
    check_spaces: CheckSpaces | None = None,
    *,
    episodes: int | None = None,
    max_steps: int | None = None,
) -> ValidationReport:
    """Plays the environment of the settings with random actions and reports all findings.

    Args:
        config: The settings; the environment is checked with its time limit and wrappers.
        check_spaces: Returns why the algorithm can't train on the spaces (`AlgorithmSpec.check_spaces`).
        episodes: Number of episodes to play; `validation.episodes` by default.
        max_steps: Limit for the steps of each episode; `validation.max_steps` by default. A longer episode is a
            warning if no time limit would end it.

    Returns:
        The report. Faults of the environment are reported and not raised; see `require_valid`.
    """
    found = Findings(find_secrets(config))
    episodes = config.validation.episodes if episodes is None else episodes
    max_steps = config.validation.max_steps if max_steps is None else max_steps
    played, steps, speed, texts, playable = 0, 0, None, ("", ""), False
    found.add(_check_life_loss(config))
    with keep_working_folder(), CallWatch(config.env_id) as watch:
        with _open_env(config, found, watch) as first:
            if first is not None:
                found.add(_check_module(config.env_id))
                texts = (str(first.observation_space), str(first.action_space))
                playable = _check_spaces(first, config, check_spaces, found) and _check_signatures(
                    first.unwrapped, found, watch
                )
                if playable and config.vectorization in NATIVE:
                    check_native(config, first, found, watch)
        if playable:
            # Two fresh instances: equal numbers of steps, so that a difference between them is not due to their ages.
            with _open_env(config, found, watch) as env, _open_env(config, found, watch) as twin:
                if env is not None and twin is not None:
                    _check_twin_spaces(env, twin, found)
                    player = Player(env, twin, env_seeds(config.seed, 1)[0], found, watch)
                    played = _play(player, env, episodes, max_steps, found)
                    steps, speed = player.steps, _measure_speed(player, env, config, found, watch)
    return ValidationReport(config.env_id, found.sort(), speed, played, steps, *texts)


def require_valid(report: ValidationReport) -> None:
    """Checks that a report has no fatal finding.

    Raises:
        EnvironmentRefused: The report has fatal findings; the message lists each on its own line.
    """
    if not report.ok:
        lines = [f"environment {report.env_id} can't be trained on:", *(finding.line() for finding in report.fatal)]
        raise EnvironmentRefused("\n".join(lines))


@contextmanager
def _open_env(config: TrainConfig, found: Findings, watch: CallWatch) -> Iterator[gym.Env[Any, Any] | None]:
    """Makes an environment for the block and closes it; yields None, and adds a finding, if it can't be made."""
    try:
        env = watch.call("making it", make_bare_env, config, seconds=MAKING_SECONDS)
    except EnvironmentRefused as error:
        found.add([Breach("fatal", "not-made", str(error).removeprefix(f"environment {config.env_id!r}: "))])
        yield None
        return
    except CallBlocked as error:
        found.add([failure("making it", error)])
        yield None
        return
    try:
        yield env
    finally:
        try:
            watch.call("close", env.close)
        except USER_CODE_ERRORS as error:
            found.add([Breach("warning", "close", failure("close", error).message)])


def _play(player: Player, env: gym.Env[Any, Any], episodes: int, max_steps: int, found: Findings) -> int:
    complete = 0
    for number in range(episodes):
        ended = player.play_episode(number, max_steps)
        if ended is None:
            break
        complete += ended
        if not ended and not _has_time_limit(env):
            message = (
                f"episode {number + 1} did not end within {format_count(max_steps, 'step')} and there is no time "
                f"limit; if this is not intended, set max_episode_steps: without an end, no return is ever recorded"
            )
            found.add([Breach("warning", "no-end", message)], step=player.steps)
    return complete


def _measure_speed(
    player: Player, env: gym.Env[Any, Any], config: TrainConfig, found: Findings, watch: CallWatch
) -> float | None:
    """Returns the environment's steps per second; plays further episodes if too few steps were timed."""
    speed = player.stopwatch.steps_per_second
    if speed is not None or found.any_fatal:
        return speed
    stopwatch = Stopwatch()
    try:
        time_steps(env, watch, config.seed, stopwatch)
    except USER_CODE_ERRORS as error:
        breach = failure("a later episode, played for its speed,", error)
        # A run may get past such a fault, by resuming from a checkpoint with fresh instances.
        severity: Severity = "fatal" if breach.code == "blocked" else "warning"
        found.add([replace(breach, severity=severity)], step=player.steps + stopwatch.steps)
    return stopwatch.steps_per_second


def _check_spaces(
    env: gym.Env[Any, Any], config: TrainConfig, check_spaces: CheckSpaces | None, found: Findings
) -> bool:
    """Reports faults of the spaces, and returns whether to play the environment.

    An environment that the algorithm refuses is not played, because it can't be trained on anyway.
    """
    observation_space, action_space = (getattr(env, name, None) for name in ("observation_space", "action_space"))
    broken = [
        *check_space_type("observation_space", observation_space),
        *check_space_type("action_space", action_space),
    ]
    found.add(broken)
    if broken:
        return False
    assert observation_space is not None
    assert action_space is not None
    sentences = check_spaces(observation_space, action_space) if check_spaces is not None else ()
    for sentence in sentences:
        found.add([Breach("fatal", "algorithm", f"{config.algo} can't train on it: {sentence}")])
    if not sentences:
        _check_array_forms(config, observation_space, action_space, found)
    if isinstance(action_space, spaces.Box) and not _is_bounded(action_space):
        message = f"action space {action_space} has no bounds; actions are sent as the policy draws them"
        found.add([Breach("warning", "unbounded-action", message)])
    return not sentences


def _check_array_forms(
    config: TrainConfig, observation_space: gym.Space[Any], action_space: gym.Space[Any], found: Findings
) -> None:
    try:
        encoder = ObservationEncoder(observation_space)
        if config.normalization.observation:
            ObservationNormalizer(encoder, config.normalization.clip)
    except EnvironmentRefused as error:
        found.add([Breach("fatal", "observation-space", str(error))])
    try:
        ActionCodec(action_space)
    except EnvironmentRefused as error:
        found.add([Breach("fatal", "action-space", str(error))])


def _check_signatures(env: gym.Env[Any, Any], found: Findings, watch: CallWatch) -> bool:
    """Calls the innermost environment, whose results wrappers hide; returns whether the environment can be played."""
    parameters = inspect.signature(env.reset).parameters.values()
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    missing = [name for name in ("seed", "options") if name not in {parameter.name for parameter in parameters}]
    if missing and not takes_any:
        message = (
            f"reset takes no {' and no '.join(f'`{name}`' for name in missing)}; it must be "
            f"reset(*, seed=None, options=None) and seed its randomness with super().reset(seed=seed)"
        )
        found.add([Breach("fatal", "reset-signature", message)])
        return False
    action_space = deepcopy(env.action_space)
    action_space.seed(0)
    during = "the first reset"
    try:
        found.add(check_reset_result(watch.call(during, lambda: env.reset(seed=0))), step=0)
        during = "the first step"
        found.add(check_step_result(watch.call(during, lambda: env.step(action_space.sample()))), step=1)
    except USER_CODE_ERRORS as error:
        found.add([failure(during, error)], step=0 if during == "the first reset" else 1)
    return not {"reset-result", "step-result", "raised", "blocked"} & {finding.code for finding in found.sort()}


def _check_twin_spaces(env: gym.Env[Any, Any], twin: gym.Env[Any, Any], found: Findings) -> None:
    found.add(check_space_change("observation_space", twin.observation_space, env.observation_space))
    found.add(check_space_change("action_space", twin.action_space, env.action_space))


def _check_module(env_id: str) -> list[Breach]:
    module = find_plugin_module(env_id)
    if module is None:
        return []
    message = (
        f"the id names no module, so another process (a worker, a resume, a flow) does not know it: write "
        f"{module}:{env_id}, or put the code that registers it into a module and write MODULE:{env_id}"
    )
    return [Breach("warning", "no-module", message)]


def _check_life_loss(config: TrainConfig) -> list[Breach]:
    if not any(wrapper.kwargs.get("terminal_on_life_loss") for wrapper in config.for_evaluation().wrappers):
        return []
    message = (
        "terminal_on_life_loss restarts the game at each lost life, so training sees the first life alone, and "
        "evaluation plays one life; to end training's episodes at a lost life, leave it out and name EpisodicLife "
        "under training_wrappers"
    )
    return [Breach("warning", "life-loss", message)]


def _is_bounded(space: spaces.Box) -> bool:
    return bool(np.isfinite(space.low).all() and np.isfinite(space.high).all())


def _has_time_limit(env: gym.Env[Any, Any]) -> bool:
    while isinstance(env, gym.Wrapper):
        if isinstance(env, TimeLimit):
            return True
        env = env.env
    return False
