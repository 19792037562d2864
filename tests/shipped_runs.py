"""Short real trainings with shipped settings: uninterrupted, and stopped in the middle of an episode and resumed."""

from pathlib import Path
from typing import Any

from rl_training.config.settings import TrainConfig
from rl_training.envs.validation.validate import validate_env
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import load_config
from rl_training.experiment.registry import get_algorithm
from rl_training.runtime.checkpoint import load_trainer_state, open_checkpoint
from rl_training.runtime.trainer import TrainResult
from tests.stop_flags import StopAfterPolls

MANAGER = DefaultExperimentManager()


def small(name: str, **changed: Any) -> TrainConfig:
    """Returns the settings that are shipped under a name, with an evaluation of few short episodes."""
    evaluation = {"every": 100_000, "episodes": 2, "num_envs": 2, "max_episode_steps": 60}
    return load_config(name, {"evaluation": evaluation, **changed})


def findings(config: TrainConfig) -> list[str]:
    """Returns all that validation finds."""
    report = validate_env(config, get_algorithm(config.algo).check_spaces, episodes=1)
    return [finding.line() for finding in report.findings]


def policy(result: TrainResult) -> str:
    """Returns the hash of the policy that a run ended with."""
    return open_checkpoint(_newest(result)).policy_sha256


def steps_into_episodes(result: TrainResult) -> list[int]:
    """Returns how many actions each training environment had taken in its episode when the run was saved."""
    state = load_trainer_state(open_checkpoint(_newest(result)))
    return [len(snapshot["actions"]) for snapshot in state["envs"]["snapshots"]]


def stopped_and_resumed(config: TrainConfig, polls: int) -> tuple[TrainResult, TrainResult]:
    """Returns what a run came to that was stopped after so many polls of the flag, and then resumed."""
    stopped = MANAGER.setup(config, stop=StopAfterPolls(polls)).train()
    assert stopped.stop_reason == "signal"
    return stopped, MANAGER.resume(stopped.run_dir).train()


def _newest(result: TrainResult) -> Path:
    assert result.checkpoint is not None
    return result.checkpoint
