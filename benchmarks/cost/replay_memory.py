"""Measures the memory of a replay buffer of Atari images: complete observations, and frames that are stored once.

Observations are stacks of 4 different frames of 84 x 84 bytes, in episodes of 1,000 steps. Each ring is filled one and
a quarter times, in its own process. For each ring:

- `bytes_each`: size of the buffer's arrays per transition, which is checked against the memory before training;
- `resident_each`: growth of the process's resident memory per transition;
- `add_us`, `sample_us`: CPU time to store a transition when the ring is full, and to draw a batch of 32.

`load_average` is the one-minute load average of the machine before the measurement.

    python -m benchmarks.cost.replay_memory
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.harness import record, run_json
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.replay_frames import FrameReplayBuffer

MEASURED = (("whole", 50_000), ("frames", 50_000), ("frames", 1_000_000))
SHAPE = (4, 84, 84)
EPISODE = 1_000
BATCH = 32
DRAWS = 2_000


def measure(kind: str, transitions: int) -> dict[str, Any]:
    """Returns the measurements of one buffer."""
    rng = np.random.default_rng(0)
    frames, flags = rng.integers(0, 256, (257, *SHAPE[1:])).astype(np.uint8), np.zeros(1, bool)
    process = psutil.Process()
    before, seconds = process.memory_info().rss, 0.0
    action = ((), np.dtype(np.int64))
    buffer = (
        ReplayBuffer(transitions, 1, SHAPE, np.dtype(np.uint8), *action)
        if kind == "whole"
        else FrameReplayBuffer(transitions, 1, SHAPE, 1, *action)
    )
    for step in range(transitions * 5 // 4):
        frame = frames[step % len(frames)]
        frame[:2, :2].view(np.uint16)[:, 0] = divmod(step, 2**16)
        if step % EPISODE == 0:
            stack = np.stack([frame] * SHAPE[0])[None]
        after = np.concatenate((stack[:, 1:], frame[None, None]), axis=1)
        began = time.process_time()
        buffer.add(stack, flags, flags, after, flags, flags)
        seconds += (time.process_time() - began) * (step >= transitions)
        stack = after
    resident = process.memory_info().rss - before
    began = time.process_time()
    for _ in range(DRAWS):
        buffer.sample(BATCH, rng)
    return {
        "kind": kind,
        "transitions": transitions,
        "bytes_each": buffer.nbytes / transitions,
        "resident_each": resident / transitions,
        "add_us": 1e6 * seconds / (transitions // 4),
        "sample_us": 1e6 * (time.process_time() - began) / DRAWS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the memory of replay buffers of images.")
    parser.add_argument("--only", nargs=2, metavar=("KIND", "TRANSITIONS"), help="measure one buffer in this process")
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(arguments.only[0], int(arguments.only[1]))))
        return
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="replay-memory-") as home:
        rows = [
            run_json(["-m", "benchmarks.cost.replay_memory", "--only", kind, str(count)], Path(home))
            for kind, count in MEASURED
        ]
    for row in rows:
        print(json.dumps(row))
    record("replay-memory", {"load_average": load, "rows": rows})


if __name__ == "__main__":
    main()
