"""Checks an environment before training, and reports everything that would fail or mislead later.

Gymnasium's own checker accepts NaN observations, rewards of None, dtypes that differ from the space, and episodes that
never end. This checker plays complete episodes and reports all of its findings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import TimeLimit

from rl_training.config.settings import NATIVE, TrainConfig
from rl_training.envs.contract.call_watch import CallWatch
from rl_training.envs.contract.contract_guard import find_secrets
from rl_training.envs.contract.step_contract import Breach, Severity, check_space_change, failure
from rl_training.envs.native.automatic_choice import choose_vectorization
from rl_training.envs.validation.action_masks import check_forbidden_action, check_unused_mask
from rl_training.envs.validation.curriculum import check_curriculum, list_first_options
from rl_training.envs.validation.evaluation_env import check_evaluation_env, evaluates_elsewhere
from rl_training.envs.validation.first_look import CheckSpaces, check_interface
from rl_training.envs.validation.goals import check_goals
from rl_training.envs.validation.judging import check_episodes_of_promotion, check_last_infos
from rl_training.envs.validation.native import check_native
from rl_training.envs.validation.opening import open_env
from rl_training.envs.validation.other_processes import check_other_processes
from rl_training.envs.validation.random_play import Player
from rl_training.envs.validation.report import Finding, Findings, ValidationReport, format_count
from rl_training.envs.validation.step_speed import Stopwatch, time_steps
from rl_training.envs.wrappers.lookup import find_wrapper
from rl_training.errors import USER_CODE_ERRORS, EnvironmentRefused
from rl_training.seeding import env_seeds
from rl_training.system.paths import keep_working_folder

__all__ = ["CheckSpaces", "Finding", "ValidationReport", "require_valid", "validate_env"]


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
    config = choose_vectorization(config)  # what a new run of these settings steps is checked
    found, options = Findings(find_secrets(config)), list_first_options(config)
    episodes = config.validation.episodes if episodes is None else episodes
    max_steps = config.validation.max_steps if max_steps is None else max_steps
    played, steps, speed, texts, playable = 0, 0, None, ("", ""), False
    found.add([*_check_life_loss(config), *check_episodes_of_promotion(config)])
    with keep_working_folder(), CallWatch(config.env_id) as watch:
        with open_env(config, found, watch) as first:
            if first is not None:
                found.add(check_other_processes(config))
                training = first.observation_space, first.action_space
                texts = (str(first.observation_space), str(first.action_space))
                playable = check_interface(first, config, check_spaces, found, watch, options)
                if playable and config.vectorization in NATIVE:
                    check_native(config, first, found, watch)
        if playable:
            # Two fresh instances: equal numbers of steps, so that a difference between them is not due to their ages.
            with open_env(config, found, watch) as env, open_env(config, found, watch) as twin:
                if env is not None and twin is not None:
                    _check_twin_spaces(env, twin, found)
                    player = Player(env, twin, env_seeds(config.seed, 1)[0], found, watch, options)
                    played = _play(player, env, episodes, max_steps, found)
                    found.add(player.check_global_generators())
                    steps, speed = player.steps, _measure_speed(player, env, config, found, watch)
                    found.add(check_unused_mask(config, training[0], player.gives_mask))
                    found.add(check_last_infos(config, player.last_infos))
            if config.replaces_goals:
                check_goals(config, found, watch)
            if not found.any_fatal:
                check_forbidden_action(config, found, watch, options)
            if config.vectorization not in NATIVE:  # a native vector environment has attributes of its own
                check_curriculum(config, found, watch)
    if playable and evaluates_elsewhere(config):
        with keep_working_folder():
            check_evaluation_env(config, training, found, max_steps)
    return ValidationReport(config.env_id, found.sort(), speed, played, steps, *texts)


def require_valid(report: ValidationReport) -> None:
    """Checks that a report has no fatal finding.

    Raises:
        EnvironmentRefused: The report has fatal findings; the message lists each on its own line.
    """
    if not report.ok:
        lines = [f"environment {report.env_id} can't be trained on:", *(finding.line() for finding in report.fatal)]
        raise EnvironmentRefused("\n".join(lines))


def _play(player: Player, env: gym.Env[Any, Any], episodes: int, max_steps: int, found: Findings) -> int:
    complete = 0
    for number in range(episodes):
        ended = player.play_episode(number, max_steps)
        if ended is None:
            break
        complete += ended
        if not ended and find_wrapper(env, TimeLimit) is None:
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
        time_steps(env, watch, config.seed, stopwatch, list_first_options(config))
    except USER_CODE_ERRORS as error:
        breach = failure("a later episode, played for its speed,", error)
        # A run may get past such a fault, by resuming from a checkpoint with fresh instances.
        severity: Severity = "fatal" if breach.code == "blocked" else "warning"
        found.add([replace(breach, severity=severity)], step=player.steps + stopwatch.steps)
    return stopwatch.steps_per_second


def _check_twin_spaces(env: gym.Env[Any, Any], twin: gym.Env[Any, Any], found: Findings) -> None:
    found.add(check_space_change("observation_space", twin.observation_space, env.observation_space))
    found.add(check_space_change("action_space", twin.action_space, env.action_space))


def _check_life_loss(config: TrainConfig) -> list[Breach]:
    if not any(wrapper.kwargs.get("terminal_on_life_loss") for wrapper in config.for_evaluation().wrappers):
        return []
    message = (
        "terminal_on_life_loss restarts the game at each lost life, so training sees the first life alone, and "
        "evaluation plays one life; to end training's episodes at a lost life, leave it out and name EpisodicLife "
        "under training_wrappers"
    )
    return [Breach("warning", "life-loss", message)]
