"""Writes `replay_format_1`: a replay buffer of mixed observations in two shards, the ring wrapped.

    python tests/golden/write_replay_format_1.py

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
from rl_training.data.replay_buffer import ReplayBuffer  # noqa: E402
from rl_training.runtime.checkpoint import ReplayStore, write_checkpoint  # noqa: E402

MIXED = np.dtype([("vector", np.float32, (3,)), ("camera", np.uint8, (1, 2, 3))])


def add(buffer: ReplayBuffer) -> None:
    numbers = buffer.total + np.arange(2)
    obs, next_obs = np.zeros(2, MIXED), np.zeros(2, MIXED)
    for i, number in enumerate(numbers):
        obs["camera"][i] = (10 * number + np.arange(6)).reshape(1, 2, 3) % 256
        next_obs["vector"][i] = number + np.array([0.25, 0.5, 0.75])
    buffer.add(obs, numbers, numbers / 2, next_obs, numbers == 16, numbers == 14)


with tempfile.TemporaryDirectory() as folder:
    buffer, store = ReplayBuffer(12, 2, (), MIXED, (), np.dtype(np.int64)), ReplayStore(Path(folder) / "replay")
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
    target = GOLDEN / "replay_format_1" / checkpoint.path.name
    shutil.rmtree(target.parent, ignore_errors=True)
    shutil.copytree(checkpoint.path, target)
