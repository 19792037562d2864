"""Runs and points for the tests of tracking."""

from rl_training.experiment.loading import config_from_mapping
from rl_training.runtime.run_utils import create_training_run


def make_run(**settings):
    """Makes a run's directory; returns it and the settings."""
    config = config_from_mapping(
        {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 100_000, "num_envs": 8, **settings}
    )
    return create_training_run(config).run_dir, config


def stored_points(client, run_id: str) -> set[tuple[str, int, float, int]]:
    """Returns (name, step, value, milliseconds) of every point that MLflow holds of a run; none may be there twice."""
    points = [
        (m.key, m.step, m.value, m.timestamp)
        for key in client.get_run(run_id).data.metrics
        for m in client.get_metric_history(run_id, key)
    ]
    assert len(points) == len(set(points)) == len({(key, step) for key, step, _, _ in points})
    return set(points)
