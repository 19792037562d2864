"""Gymnasium-Robotics with the shipped settings, in the environment of the extra robotics: `make extras-test`."""

from tests.shipped_runs import MANAGER, findings, policy, small, steps_into_episodes, stopped_and_resumed

SMALL = {"total_timesteps": 280, "num_envs": 1, "learning_starts": 60, "buffer_size": 250, "batch_size": 32}


def test_fetch_reach_trains_with_hindsight_and_resumes_within_an_episode() -> None:
    config = small("sac/fetch_reach", **SMALL)
    assert config.hindsight is not None
    assert findings(config) == []
    whole = MANAGER.setup(config).train()
    stopped, resumed = stopped_and_resumed(config, 300)
    assert min(steps_into_episodes(stopped)) > 0
    assert 0 < stopped.num_timesteps < resumed.num_timesteps == whole.num_timesteps == config.total_timesteps
    assert policy(resumed) == policy(whole) != policy(stopped)
