"""Checkpoints: directories that are complete or absent, are verified by hash, and hold nothing that can run.

`write_checkpoint` writes a checkpoint, `open_checkpoint` verifies one, `newest_good` finds the one to resume from, and
`prune` removes old ones. `ReplayStore` keeps a replay buffer in files that checkpoints share. `docs/checkpoints.md`
describes the format.
"""

from rl_training.run_layout import CHECKPOINTS, CONFIG, checkpoint_name
from rl_training.runtime.checkpoint.best_checkpoint import BEST_RETURN, best_path, find_best, read_best, write_best
from rl_training.runtime.checkpoint.kept_checkpoints import keep_pause, list_kept
from rl_training.runtime.checkpoint.manifest import FORMAT_VERSION, Manifest
from rl_training.runtime.checkpoint.plain_state import from_plain, policy_sha256, to_plain
from rl_training.runtime.checkpoint.reading import (
    Checkpoint,
    find_checkpoint,
    has_later,
    list_checkpoints,
    load_policy_state,
    load_trainer_state,
    newest_good,
    open_checkpoint,
)
from rl_training.runtime.checkpoint.replay_shards import ReplayStore, ShardEntry, WriteShards, load_replay
from rl_training.runtime.checkpoint.writing import prune, require_finite, write_checkpoint

__all__ = [
    "BEST_RETURN",
    "CHECKPOINTS",
    "CONFIG",
    "FORMAT_VERSION",
    "Checkpoint",
    "Manifest",
    "ReplayStore",
    "ShardEntry",
    "WriteShards",
    "best_path",
    "checkpoint_name",
    "find_best",
    "find_checkpoint",
    "from_plain",
    "has_later",
    "keep_pause",
    "list_checkpoints",
    "list_kept",
    "load_policy_state",
    "load_replay",
    "load_trainer_state",
    "newest_good",
    "open_checkpoint",
    "policy_sha256",
    "prune",
    "read_best",
    "require_finite",
    "to_plain",
    "write_best",
    "write_checkpoint",
]
