"""The valid files that the fuzzer starts from: those of small real runs, and of golden checkpoints."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import torch
import yaml
from fuzz_edits import Case, on_archive, on_bytes, on_values, to_json, to_tensors, to_yaml

from rl_training import run_layout
from rl_training.config.algorithms.dqn import DQNConfig
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.algorithms.sac import SACConfig
from rl_training.config.settings import TrainConfig
from rl_training.runtime.checkpoint.plain_state import policy_sha256
from rl_training.runtime.checkpoint.tensor_file import read_tensor_file
from rl_training.runtime.run_utils import TrainingRun, create_training_run
from rl_training.runtime.trainers.dqn_trainer import DQNTrainer
from rl_training.runtime.trainers.ppo_trainer import PPOTrainer
from rl_training.runtime.trainers.sac_trainer import SACTrainer
from rl_training.tracking import json_files
from rl_training.tracking.metric_log import MetricLog
from rl_training.tracking.run_description import describe_run

GOLDEN = Path(__file__).parents[1] / "golden"
ALGORITHMS = ("ppo", "dqn", "sac")
TENSORS = (*(f"{part}/{algo}" for part in ("policy", "trainer") for algo in ALGORITHMS), "shard", "frame shard")
RUN_FILES = (
    "metadata.json",
    "tracking.json",
    "mlflow.json",
    "shipped.json",
    "status.json",
    "best.json",
    "download.json",
)
JSON = (*RUN_FILES, "overrides", "promotion", "attempts", "monitoring")
VERSION = GOLDEN / "registered_format_1" / "model"
SWEEPS = ("sweep", "segment", "step", "record")
FORMATS = (*TENSORS, *JSON, *SWEEPS, "manifest", "config", "metrics.jsonl", "MLmodel")

_SMALL: dict[str, Any] = {
    "num_envs": 2, "vectorization": "sync", "network": {"hidden": (3,)}, "seed": 1,
    "normalization": {"observation": True, "reward": True},
    "evaluation": {"every": 24, "episodes": 1, "num_envs": 1, "max_episode_steps": 20},
    "checkpoint": {"every": 1_000}, "logging": {"every": 8},
}  # fmt: skip
_REPLAY: dict[str, Any] = {"buffer_size": 32, "learning_starts": 8, "batch_size": 4, "train_freq": 2}


def settings(algo: str, run_dir: Path) -> TrainConfig:
    """Returns the settings of a small run."""
    if algo == "ppo":
        return PPOConfig(
            env_id="CartPole-v1", total_timesteps=48, run_dir=run_dir, rollout_steps=8, batch_size=8, epochs=1, **_SMALL
        )
    if algo == "dqn":
        return DQNConfig(env_id="CartPole-v1", total_timesteps=40, run_dir=run_dir, **_REPLAY, **_SMALL)
    return SACConfig(env_id="Pendulum-v1", total_timesteps=40, run_dir=run_dir, **_REPLAY, **_SMALL)


TRAINERS: dict[str, Any] = {"ppo": PPOTrainer, "dqn": DQNTrainer, "sac": SACTrainer}


def make_samples(root: Path) -> None:
    """Trains the small runs and writes a file of each format into `root`."""
    for algo in ALGORITHMS:
        config = settings(algo, root / algo)
        run = create_training_run(config, run_uid=algo * 8)
        log = MetricLog(run.run_dir)
        TRAINERS[algo](config, run, [log]).train()
    run_dir = root / "ppo"
    json_files.write_json(run_dir / run_layout.TRACKING, describe_run(run_dir, settings("ppo", run_dir), {}))
    json_files.write_status(run_dir, "FINISHED", "completed", None)
    cursor = {"tracking_uri": "sqlite:///x.db", "run_id": "0" * 32, "offsets": {"metrics.jsonl": 0}, "points": 3}
    json_files.write_json(run_dir / run_layout.SHIPPED, {**cursor, "checkpoints": ["a"], "artifacts": {"b.png": "c"}})
    address = {"run_id": "0" * 32, "experiment_id": "1", "ui": "where", "tracking_uri": "sqlite:///x.db"}
    json_files.write_json(run_dir / run_layout.MLFLOW, address)
    json_files.write_json(run_dir / "download.json", {"newest": True, "run_dir": str(run_dir)})
    shutil.copy(run_dir / "checkpoints" / "best.json", run_dir / "best.json")


def checkpoint_of(root: Path, format: str) -> Path:
    """Returns the directory of the checkpoint that a format's file is in."""
    if format in ("shard", "frame shard"):
        folder = "replay_format_1" if format == "shard" else "replay_frames_format_1"
        return next((GOLDEN / folder).glob("step_*"))
    algo = format.partition("/")[2] or "ppo"
    return max((root / algo / "checkpoints").glob("step_*"))


def name_of(root: Path, format: str) -> str:
    """Returns the name of a format's file."""
    if format in ("shard", "frame shard"):
        return min(path.name for path in checkpoint_of(root, format).glob("?" * 64 + ".pt"))
    if format in TENSORS:
        return format.partition("/")[0] + ".pt"
    return {"manifest": "manifest.json", "config": "config.yaml"}.get(format, format)


def sample(root: Path, format: str) -> bytes:
    """Returns the valid file of a format."""
    if format in TENSORS or format in ("manifest", "config"):
        return (checkpoint_of(root, format) / name_of(root, format)).read_bytes()
    if format in RUN_FILES or format == "metrics.jsonl":
        return (root / "ppo" / format).read_bytes()
    if format == "MLmodel":
        return (VERSION / format).read_bytes()
    if format == "sweep":
        return to_yaml(_TEXTS[format])
    return json.dumps(_TEXTS[format]).encode()


_EPISODES = {"seeds": [1, 2], "returns": [1.0, 2.0], "lengths": [3, 4], "cut": 0}
_FORK = {"key": "t0001-s0", "num_timesteps": 16, "lineage": [{"trial": 1, "params": {"gamma": 0.9}}]}
_TEXTS: dict[str, Any] = {
    "sweep": {
        "name": "small", "config": {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 1_000},
        "overrides": {"gamma": 0.9}, "method": {"name": "tpe"}, "trials": 4, "parallel": 2, "seeds": 2,
        "space": {
            "learning_rate": {"log_range": [0.0001, 0.1]},
            "network": {"hidden": {"choice": [[64], [64, 64]]}},
            "clip_range": {"range": [0.1, 0.3], "when": {"network.hidden": [[64]]}},
        },
        "pruning": {"percentile": 50}, "engine": "local", "resources": {"cpus": 1},
    },
    "segment": {
        "sweep_uid": "0" * 32, "trial": 0, "seed": 0, "generation": 1, "settings": {"algo": "ppo", "gamma": 0.9},
        "until": 32, "metric": "eval/return_mean", "prune_below": {"16": 1.5}, "fork_of": _FORK, "memory_gb": None,
    },
    "step": {
        "trial": 1, "params": {"gamma": 0.9, "network.hidden": [64]}, "seeds": [0], "until": 32,
        "phase": "search", "fork": {"trial": 0, "num_timesteps": 16}, "prune_below": {"16": 1.5},
    },
    "record": {
        "seed": 0, "run_uid": "0" * 32, "run_id": None, "run_dir": "/runs/a", "state": "complete",
        "num_timesteps": 32, "evaluations": {"16": 1.5, "32": 2.5}, "policy_sha256": "0" * 64, "held_out": 2.0,
        "summary": {"stop_reason": "completed"}, "error": None, "lineage": _FORK["lineage"],
    },
    "overrides": {"learning_rate": 0.001, "network": {"hidden": [4]}, "tags": ["a", "b"], "evaluation.every": 50},
    "attempts": [{"from_step": 0, "host": "here", "pid": 7, "created": 1.5}],
    "promotion": {
        "verdict": {"kind": "PROMOTE", "reasons": ["it is better"], "numbers": {"mean": 1.5, "bound": None}},
        "forced": None, "model": "m", "decision_id": "0" * 24, "time": "2025-01-01T00:00:00+00:00",
        "rules": {"margin": 0.0},
        "candidate": {"evaluation": _EPISODES}, "champion": {"version": "1", "evaluation": _EPISODES},
    },
    "monitoring": {
        "evaluation": _EPISODES, "time": "2025-01-01T00:00:00+00:00", "evaluation_id": "a", "is_champion": True,
        "drop": {"dropped": False, "reasons": ["as good"], "numbers": {"mean": 1.5}},
    },
}  # fmt: skip


def apply(root: Path, case: Case) -> bytes:
    """Returns the input that a case is."""
    data = sample(root, case.format)
    for edit in case.edits:
        data = _apply(case.format, data, edit)[: 2 * 2**20]
    return data


def _apply(format: str, data: bytes, edit: Any) -> bytes:
    if edit[0] in ("flip", "cut", "drop bytes", "insert", "repeat bytes", "mark", "crlf"):
        return on_bytes(data, edit)
    if edit[0] not in ("set", "drop", "add", "copy", "wrap", "multiply"):
        return on_archive(data, edit)
    try:
        if format in TENSORS:
            value = torch.load(_file(data), weights_only=True)
            return to_tensors(on_values(value, edit, tensors=True)) or data
        if format == "metrics.jsonl":
            lines = [json.loads(line) for line in data.splitlines()]
            return b"".join(json.dumps(line).encode() + b"\n" for line in on_values(lines, edit, tensors=False))
        if format in ("config", "MLmodel", "sweep"):
            return to_yaml(on_values(yaml.safe_load(data), edit, tensors=False))
        return to_json(on_values(json.loads(data), edit, tensors=False))
    except Exception:  # an earlier edit broke it
        return data


def _file(data: bytes) -> Any:
    return io.BytesIO(data)


def seal(path: Path, name: str) -> None:
    """Makes the hashes of a checkpoint right again, after one of its files has changed."""
    manifest: Any = None
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        if name != "manifest.json":
            data = (path / name).read_bytes()
            manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        if name == "policy.pt":
            with (path / name).open("rb") as file:
                manifest["policy_sha256"] = policy_sha256(read_tensor_file(file))
    except Exception:  # it is no policy, or no manifest: the reader says so
        pass
    if isinstance(manifest, dict):
        manifest.pop("manifest_sha256", None)
        body = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
        manifest["manifest_sha256"] = hashlib.sha256(body.encode()).hexdigest()
        (path / "manifest.json").write_bytes(json.dumps(manifest).encode())


def trainer_of(root: Path, algo: str, run_dir: Path) -> Any:
    """Returns a trainer that a checkpoint of a small run can be restored into."""
    config = settings(algo, root / algo)
    (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
    return TRAINERS[algo](config, TrainingRun(run_dir, "another"))
