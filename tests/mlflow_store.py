"""Runs, checkpoints of known skill, and metric points for the tests of tracking."""

import shutil

import gymnasium as gym
import torch

from rl_training import run_layout
from rl_training.config.serialization import WrittenConfig
from rl_training.envs.space_json import space_to_json
from rl_training.experiment.loading import config_from_mapping
from rl_training.runtime.checkpoint import Checkpoint, write_best, write_checkpoint
from rl_training.runtime.run_utils import create_training_run
from rl_training.system.paths import embedded_tracking_uri
from rl_training.tracking import json_files
from rl_training.tracking.run_description import describe_run
from rl_training.tracking.shipping.metrics_reader import MetricsReader
from rl_training.tracking.shipping.shipment import Shipment


def make_run(**settings):
    """Makes a run's directory; returns it and the settings."""
    config = config_from_mapping(
        {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 100_000, "num_envs": 8, **settings}
    )
    return create_training_run(config).run_dir, config


def tracked_run(own_tags=None, **settings):
    """Makes a run's directory as tracking starts in it; returns it."""
    run_dir, config = make_run(**settings)
    json_files.write_json(run_dir / run_layout.TRACKING, describe_run(run_dir, config, own_tags or {}))
    return run_dir


def of_another_machine(run_dir, config):
    """Returns a directory in which a run resumes from step 200, as after a download to another machine."""
    elsewhere, _ = make_run(**config)
    shutil.copy(run_dir / "metadata.json", elsewhere)
    description = json_files.read_json(run_dir / run_layout.TRACKING)
    description["process"] |= {"host": "another-machine", "created": description["process"]["created"] + 1}
    description["from_step"] = 200
    json_files.write_json(elsewhere / run_layout.TRACKING, description)
    return elsewhere


def ship_all(run_dir, status=None, uri=None, **options) -> Shipment:
    """Sends all that there is, to the embedded store by default."""
    shipment = Shipment(run_dir, uri or embedded_tracking_uri())
    shipment.open(**options)
    while shipment.ship(status):
        pass
    return shipment


def points_of_file(run_dir, total_timesteps=100_000) -> set[tuple[str, int, float, int]]:
    """Returns (name, step, value, milliseconds) of every point of a run's metrics file that MLflow must hold."""
    lines = MetricsReader(run_dir / run_layout.METRICS, total_timesteps).read(most=10**9)
    return {(p.key, p.step, p.value, p.timestamp) for line in lines for p in line.points}


def stored_points(client, run_id: str) -> set[tuple[str, int, float, int]]:
    """Returns (name, step, value, milliseconds) of every point that MLflow holds of a run; none may be there twice."""
    points = [
        (m.key, m.step, m.value, m.timestamp)
        for key in client.get_run(run_id).data.metrics
        for m in client.get_metric_history(run_id, key)
    ]
    assert len(points) == len(set(points)) == len({(key, step) for key, step, _, _ in points})
    return set(points)


BAD, WEAK, GOOD = (-1.0, 0.0), (1.0, 0.0), (1.0, 0.5)
"""CartPole controllers: push by the pole's angle and its rate, with these gains. Mean returns 9 (the wrong way), 43 (no
damping) and 500, so far apart that no choice of seeds blurs them."""

NETWORK = {"hidden": (4,)}


def write_policy(run_dir, step: int, gains: tuple[float, float], **more) -> Checkpoint:
    """Writes a checkpoint of a run whose policy is that controller, as a network with one unit that does anything."""
    config = config_from_mapping(
        {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 1_000, "num_envs": 8, "network": NETWORK}
    )
    first = torch.zeros(2, 4, 4)  # policy and value network; observation (position, speed, angle, its rate) to units
    first[0, :, 0] = 0.1 * torch.tensor([0.0, 0.0, *gains])
    head = torch.zeros(4, 2)
    head[0] = torch.tensor([-1.0, 1.0])
    weights = {
        "mlps.weights.0": first,
        "mlps.biases.0": torch.zeros(2, 1, 4),
        "mlps.head_weights.0": head,
        "mlps.head_weights.1": torch.zeros(4, 1),
        "mlps.head_biases.0": torch.zeros(2),
        "mlps.head_biases.1": torch.zeros(1),
    }
    env = gym.make("CartPole-v1")
    policy = {
        "weights": weights,
        "observation_normalizer": None,
        "observation_space": space_to_json(env.observation_space),
        "action_space": space_to_json(env.action_space),
    }
    return write_checkpoint(
        run_dir / "checkpoints",
        config=WrittenConfig(config),
        run_uid=json_files.read_json(run_dir / "metadata.json")["run_uid"],
        algorithm="ppo",
        num_timesteps=step,
        policy=policy,
        trainer={"step": step},
        **more,
    )


def run_with_policies(*gains_and_means, **settings):
    """Makes a run with a checkpoint every 100 steps, each with a controller and its recorded mean return.

    Returns:
        The checkpoints and the MLflow run's id.
    """
    run_dir = tracked_run(network=NETWORK, **settings)
    checkpoints = []
    for i, (gains, mean) in enumerate(gains_and_means):
        checkpoints.append(write_policy(run_dir, 100 * (i + 1), gains))
        if mean == max(mean for _, mean in gains_and_means[: i + 1]):
            write_best(run_dir / "checkpoints", checkpoints[-1], mean)
    return checkpoints, ship_all(run_dir).address.run_id


def run_with_policy(gains: tuple[float, float], uri=None, **settings):
    """Makes a run with one checkpoint and sends it; returns the checkpoint and the MLflow run's id."""
    run_dir = tracked_run(network=NETWORK, **settings)
    checkpoint = write_policy(run_dir, 100, gains)
    return checkpoint, ship_all(run_dir, uri=uri).address.run_id
