"""Writes `replay_frames_format_1`: a replay buffer that stores frames once, in two shards, the ring wrapped.

    python tests/golden/write_replay_frames_format_1.py

For the record, and for as long as format 1 is not released; what is released is not written again.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent
sys.path[:0] = [str(GOLDEN.parents[1]), str(GOLDEN.parent)]

from checkpoint_examples import CONFIG, policy_state  # noqa: E402

from rl_training.config.serialization import WrittenConfig  # noqa: E402
from rl_training.data.replay_frames import FrameReplayBuffer  # noqa: E402
from rl_training.runtime.checkpoint import ReplayStore, write_checkpoint  # noqa: E402


def stacks(first: int, step: int) -> np.ndarray:
    """Four frames of each of two environments, whose episode began at the step `first`."""
    steps = np.maximum(np.arange(step - 3, step + 1), first)
    shown = np.stack([steps, 100 + steps]).astype(np.uint8)
    return np.broadcast_to(shown[:, :, None, None], (2, 4, 2, 3)).copy()


def add(buffer: FrameReplayBuffer) -> None:
    numbers, step = buffer.total + np.arange(2), buffer.total // 2
    first, ends = step // 3 * 3, np.full(2, step % 3 == 2)
    buffer.add(stacks(first, step), numbers, numbers / 2, stacks(first, step + 1), ends, ~ends & (numbers == 14))


with tempfile.TemporaryDirectory() as folder:
    buffer = FrameReplayBuffer(12, 2, (4, 2, 3), 1, (), np.dtype(np.int64))
    store = ReplayStore(Path(folder) / "replay")
    for _ in range(10):
        add(buffer)
    checkpoint = write_checkpoint(
        Path(folder) / "checkpoints",
        config=WrittenConfig(CONFIG),
        run_uid="0" * 32,
        algorithm="dqn",
        num_timesteps=buffer.total,
        policy=policy_state(),
        trainer={},
        shards=store.seal(buffer)(),
    )
    target = GOLDEN / "replay_frames_format_1" / checkpoint.path.name
    shutil.rmtree(target.parent, ignore_errors=True)
    shutil.copytree(checkpoint.path, target)
