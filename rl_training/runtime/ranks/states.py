"""Divides the state of training among ranks, and puts it together again.

A checkpoint holds the state of all environments, so it does not depend on the number of ranks.

Shapes: T steps, N environments of all ranks.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rl_training.distributed.share import Share
from rl_training.runtime.checkpoint import to_plain
from rl_training.runtime.checkpoint.plain_state import from_plain


def write_state(state: Any) -> bytes:
    """Returns a state as bytes; see `to_plain` for what it may hold."""
    file = io.BytesIO()
    torch.save(to_plain(state), file)
    return file.getvalue()


def read_state(data: bytes) -> Any:
    """Returns the state that `write_state` was given; no code in it is run."""
    return from_plain(torch.load(io.BytesIO(data), weights_only=True))


def select_part(state: Mapping[str, Any], share: Share) -> dict[str, Any]:
    """Returns the part of a training state (`envs`, `buffer`, `observation`) that belongs to a rank's environments."""
    rows, envs = share.rows, dict(state["envs"])
    envs["snapshots"] = envs["snapshots"][rows]
    if envs["reward_normalizer"] is not None:
        envs["reward_normalizer"] = {**envs["reward_normalizer"], "returns": envs["reward_normalizer"]["returns"][rows]}
    buffer = {
        name: value[:, rows].contiguous() if isinstance(value, torch.Tensor) else value
        for name, value in state["buffer"].items()
    }
    return {**state, "envs": envs, "buffer": buffer, "observation": state["observation"][rows]}


def join_parts(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the training state of all environments, from the part of each rank; what they share is the first's."""
    first, envs = parts[0], dict(parts[0]["envs"])
    envs["snapshots"] = [snapshot for part in parts for snapshot in part["envs"]["snapshots"]]
    if envs["reward_normalizer"] is not None:
        returns_N = np.concatenate([part["envs"]["reward_normalizer"]["returns"] for part in parts])
        envs["reward_normalizer"] = {**envs["reward_normalizer"], "returns": returns_N}
    buffer = {
        name: torch.cat([part["buffer"][name] for part in parts], 1) if isinstance(value, torch.Tensor) else value
        for name, value in first["buffer"].items()
    }
    observation_NO = np.concatenate([part["observation"] for part in parts])
    return {**first, "envs": envs, "buffer": buffer, "observation": observation_NO}
