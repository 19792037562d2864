"""The trainers of TD3 and TQC on a tiny environment, and the means of metrics that only some updates have."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from rl_training import train_td3, train_tqc
from rl_training.config.algorithms.td3 import TD3Config
from rl_training.config.algorithms.tqc import TQCConfig
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.runtime.checkpoint import load_trainer_state, open_checkpoint
from rl_training.runtime.trainers.off_policy_trainer import UpdateMetrics
from rl_training.runtime.workflows import evaluate_checkpoint, load_policy
from rl_training.state_checks import validate
from tests.off_policy_runs import Events, td3, tqc

TRAIN: dict[str, Any] = {"td3": train_td3, "tqc": train_tqc}
CONFIGS: dict[str, Any] = {"td3": td3, "tqc": tqc}
SHORT: dict[str, Any] = {"total_timesteps": 48, "learning_starts": 20, "batch_size": 8, "logging": {"every": 1}}


@pytest.mark.parametrize("algo", TRAIN)
def test_it_passes_what_a_policy_stuck_in_unit_bounds_can_reach(algo: str) -> None:
    """Actions lie in [0, 5] and [-pi/4, pi/4], the best one is [4, 0]; in [-1, 1] the return is at most -30."""
    result = TRAIN[algo](CONFIGS[algo](total_timesteps=1_500))
    assert result.metrics["eval/return_mean"] > -10.0
    assert evaluate_checkpoint(result.checkpoint, episodes=2).return_mean > -10.0
    observations = list(np.tile(np.arange(10, dtype=np.float32)[:, None] / 10, 4))
    assert load_policy(result.checkpoint).act(observations)[0] == pytest.approx([4.0, 0.0], abs=0.8)


def test_the_policys_loss_is_logged_for_the_updates_that_have_it() -> None:
    events = Events()
    train_td3(td3(**SHORT, policy_delay=3), [events])
    assert sorted(events.values("train/critic_loss")) == list(range(21, 49))
    assert sorted(events.values("train/actor_loss")) == list(range(23, 49, 3))


def test_the_checkpoint_holds_all_targets_and_the_steps_of_both_optimisers() -> None:
    state = load_trainer_state(open_checkpoint(train_td3(td3(**SHORT, policy_delay=3)).checkpoint))
    algorithm = state["algorithm"]
    assert (algorithm["critic_optimizer"]["steps"], algorithm["actor_optimizer"]["steps"]) == (28, 9)
    assert {"targets", "target_policy", "noise_rng"} <= algorithm.keys()


def test_a_mean_is_over_the_updates_that_have_the_metric() -> None:
    metrics = UpdateMetrics()
    for update in ({"a": 1.0}, {"a": 2.0, "b": 10.0}, {"a": 6.0}, {"a": 3.0, "b": 20.0}):
        metrics.add(update)
    assert metrics.summary() == {"a": 3.0, "b": 15.0}
    restored = validate("measured", asdict(metrics), UpdateMetrics)
    restored.add({"a": 8.0})
    assert restored.summary() == {"a": 4.0, "b": 15.0}


def test_the_state_of_an_earlier_version_has_all_metrics_in_each_update() -> None:
    saved = {"sums": {"train/a": 6.0}, "newest": {"train/a": 1.0}, "updates": 3}
    restored = validate("measured", saved, UpdateMetrics)
    assert restored.summary() == {"train/a": 2.0}
    restored.add({"train/a": 2.0})
    assert restored.summary() == {"train/a": 2.0}


def test_a_critics_number_may_not_change_in_fine_tuning() -> None:
    done = train_tqc(tqc(**SHORT, critics=2))
    with pytest.raises(CheckpointError, match="critics: 2 -> 3"):
        DefaultExperimentManager().resume(done.run_dir, fine_tune=True, critics=3)


@pytest.mark.parametrize(
    ("config", "fields", "fault"),
    [
        (TQCConfig, {"drop_quantiles": 25}, "drop_quantiles: got 25, expected less than quantiles = 25"),
        (TQCConfig, {"critics": 33}, "critics: got 33, expected less than or equal to 32"),
        (TQCConfig, {"quantiles": 1_001}, "quantiles: got 1001, expected less than or equal to 1000"),
        (TD3Config, {"policy_delay": 0}, "policy_delay: got 0, expected greater than 0"),
        (TD3Config, {"exploration_noise": -0.1}, "exploration_noise: got -0.1, expected greater than or equal to 0"),
    ],
)
def test_settings_out_of_range_are_refused(config: Any, fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        config(env_id="Pendulum-v1", total_timesteps=5_000, **fields)


def test_the_default_hyper_parameters_of_stable_baselines3_can_be_expressed() -> None:
    settings = {"learning_rate": 1e-3, "exploration_noise": 0.0, "learning_starts": 100, "buffer_size": 1_000_000}
    config = TD3Config(env_id="Pendulum-v1", total_timesteps=5_000, **settings, network={"hidden": [400, 300]})
    defaults = (config.batch_size, config.tau, config.gamma, config.train_freq, config.gradient_steps)
    assert defaults == (256, 0.005, 0.99, 1, 1)
    assert (config.policy_delay, config.target_noise, config.target_noise_clip) == (2, 0.2, 0.5)
    assert config.network.hidden == (400, 300)
