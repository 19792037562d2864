"""Runs as another person might send them: made in another home, with changed settings and matching hashes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_training import load_config, train_ppo
from rl_training.run_layout import CONFIG
from rl_training.runtime.checkpoint.manifest import MANIFEST, read_manifest
from rl_training.system.durable_files import write_file

SMALL = {
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "vectorization": "sync",
    "total_timesteps": 64,
    "rollout_steps": 32,
    "batch_size": 32,
    "epochs": 1,
    "network": {"hidden": [4]},
    "evaluation": {"every": 64, "episodes": 1, "final_episodes": 1, "video": False},
    "checkpoint": {"every": 64},
}

EVIL = """
import os
from pathlib import Path
import gymnasium
Path(os.environ["EVIL_MARK"]).write_text(__name__)
gymnasium.register("Evil-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv")
"""
"""A module that leaves a mark when it is imported."""


def made_elsewhere(folder: Path) -> Path:
    """Returns the directory of a CartPole run that another home has made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RL_TRAINING_HOME", str(folder / "their_home"))
        config = folder / "cartpole.json"
        config.write_text(json.dumps(SMALL))
        return train_ppo(load_config(config, {"run_dir": str(folder / "made")})).run_dir


def received(made: Path, target: Path, settings: Mapping[str, Any]) -> Path:
    """Copies a run and changes settings in it and its checkpoints, with the manifests' hashes renewed."""
    shutil.copytree(made, target)
    for checkpoint in (target / "checkpoints").glob("step_*"):
        rewrite(checkpoint, {CONFIG: changed_settings(checkpoint, settings)})
    (target / CONFIG).write_bytes(changed_settings(target, settings))
    return target


def changed_settings(folder: Path, settings: Mapping[str, Any]) -> bytes:
    """Returns the settings in a folder with some of them changed, as YAML."""
    before = yaml.safe_load((folder / CONFIG).read_text())
    return yaml.safe_dump({**before, **settings}, sort_keys=False).encode()


def rewrite(checkpoint: Path, contents: Mapping[str, bytes]) -> None:
    """Replaces files of a checkpoint, with right hashes in its manifest."""
    manifest = read_manifest(checkpoint)
    entries = dict(manifest.files)
    for name, data in contents.items():
        (checkpoint / name).unlink()  # a hard link of another run's may be there
        entries[name] = write_file(checkpoint / name, lambda file, data=data: file.write(data))
    (checkpoint / MANIFEST).unlink()
    (checkpoint / MANIFEST).write_text(manifest.model_copy(update={"files": entries}).to_json())


def listing(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Returns mode and content of everything below a folder, links not followed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[path.relative_to(folder).as_posix()] = (state.st_mode, content)
    return found
