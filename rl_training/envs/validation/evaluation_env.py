"""Checks evaluation's environment, if it differs from that of training."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rl_training.config.settings import TrainConfig
from rl_training.envs.contract.call_watch import CallWatch
from rl_training.envs.contract.contract_guard import find_secrets
from rl_training.envs.contract.step_contract import Breach
from rl_training.envs.plain_spaces import make_plain_space
from rl_training.envs.validation.first_look import check_interface
from rl_training.envs.validation.judging import check_last_infos
from rl_training.envs.validation.opening import open_env
from rl_training.envs.validation.random_play import Player
from rl_training.envs.validation.report import Findings
from rl_training.seeding import env_seeds

Spaces = tuple[gym.Space[Any], gym.Space[Any]]
"""The observation and the action space."""


def evaluates_elsewhere(config: TrainConfig) -> bool:
    """Returns whether evaluation's environment differs from that of training."""
    judged = config.for_evaluation()
    fields = ("env_id", "env_kwargs", "wrappers", "training_wrappers", "reset_options")
    return any(getattr(judged, name) != getattr(config, name) for name in fields)


def check_evaluation_env(config: TrainConfig, training: Spaces, found: Findings, max_steps: int) -> None:
    """Compares the spaces of evaluation's environment with those of training, and plays an episode in it.

    Args:
        config: The settings.
        training: The spaces of training.
        found: Takes the findings, which name evaluation's environment.
        max_steps: Limit for the steps of the episode.
    """
    judged, own = config.for_evaluation(), Findings(find_secrets(config))
    with CallWatch(judged.env_id) as watch:
        playable = False
        with open_env(judged, own, watch) as first:
            if first is not None and check_interface(first, judged, None, own, watch, judged.reset_options):
                differences = _compare(config, training, (first.observation_space, first.action_space))
                own.add(differences)
                playable = not differences
        if playable:
            with open_env(judged, own, watch) as env, open_env(judged, own, watch) as twin:
                if env is not None and twin is not None:
                    seed = env_seeds(config.evaluation.seed, 1)[0]
                    player = Player(env, twin, seed, own, watch, judged.reset_options)
                    player.play_episode(0, max_steps)
                    own.add(check_last_infos(judged, player.last_infos))
    found.include(own, f"in evaluation's environment {judged.env_id}: ")


def _compare(config: TrainConfig, training: Spaces, evaluation: Spaces) -> list[Breach]:
    breaches = []
    for name, here, there in zip(("observation_space", "action_space"), training, evaluation, strict=True):
        if make_plain_space(here) != make_plain_space(there):
            advice = "; name wrappers that change a space under wrappers" if config.training_wrappers else ""
            message = f"{name} is {there}, and that of training {here}; one policy acts in both, so they must be equal"
            breaches.append(Breach("fatal", "space-changed", message + advice, subject=name))
    return breaches
