"""Replay buffers that store each frame once, in checkpoints: what is restored, what a save writes, and its memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_replay_frames import PADDINGS, Episodes, assert_same_batches, make, transitions
from test_replay_shards import first_shard, peak_share, refusal, save, shards_in, write_ahead

from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.replay_frames import FrameReplayBuffer
from rl_training.runtime.checkpoint import ReplayStore, load_replay, open_checkpoint, replay_shards

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).parent / "golden" / "replay_frames_format_1" / "step_000000000020"
FORM = (12, 2, 4, 2, 8)
"""Twelve transitions of two environments, stacks of four grey frames, two steps, room for whatever comes."""


def play(seed: int, lengths: list[int], envs: int = 2) -> Iterator[tuple[Any, ...]]:
    rng = np.random.default_rng(seed)
    return transitions([Episodes(rng, lengths, 4, 1, PADDINGS[seed % 3]) for _ in range(envs)], 10_000, [1])


def add(steps: int, history: Iterator[tuple[Any, ...]], *buffers: ReplayBuffer) -> None:
    for _ in range(steps):
        transition = next(history)
        for buffer in buffers:
            buffer.add(*transition)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["save", "ahead", "resume", "cut"])), max_size=8),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.integers(0, 9),
)
def test_any_sequence_of_saves_and_resumes_samples_what_a_plain_buffer_does_that_was_never_saved(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[int, str]], lengths: list[int], seed: int
) -> None:
    run_dir, history = tmp_path_factory.mktemp("run"), play(seed, lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_shards, "PIECE_BYTES", 1_000)  # two or three steps
        store, buffer, plain = ReplayStore(run_dir / "replay"), make("shared", *FORM), make("plain", *FORM)
        for steps, move in moves:
            add(steps, history, buffer, plain)
            if move == "ahead":
                write_ahead(store, buffer)
                continue
            checkpoint = save(run_dir, store, buffer, shift=len(moves))
            assert shards_in(run_dir / "replay") == shards_in(checkpoint.path)
            if move in ("resume", "cut"):
                store, buffer = ReplayStore(run_dir / "replay"), make("shared", *FORM)
                store.load(open_checkpoint(checkpoint.path), buffer)
            if move == "cut":
                store.cut_newest(buffer, [1])
                plain.cut_newest([1])
        assert buffer.total == plain.total
        if plain.total:
            assert_same_batches(plain, buffer, seed)
    shutil.rmtree(run_dir)


def test_a_save_writes_the_new_frames_and_the_stacks_before_them(tmp_path: Path) -> None:
    env = Episodes(np.random.default_rng(0), [50], 4, 1, "first")
    env.frame = env.unlike_others  # type: ignore[method-assign]
    history = transitions([env], 1_040, [1])
    buffer, store = make("shared", 2_000, 1, 4, 1, 1), ReplayStore(tmp_path / "replay")
    add(1_020, history, buffer)
    first = save(tmp_path, store, buffer)
    add(20, history, buffer)
    second = save(tmp_path, store, buffer)
    old, new = (set(shards_in(checkpoint.path)) for checkpoint in (first, second))
    (name,) = new - old
    assert old < new
    assert (tmp_path / "replay" / name).samefile(second.path / name)
    state = torch.load(second.path / name, weights_only=True)
    assert (state["planes"].shape, state["planes"].dtype) == ((4 + 20, 2, 3), torch.uint8)
    assert (state["obs"].shape, state["obs"].dtype) == ((20, 1, 4), torch.int32)
    assert state["obs"][:2, 0].tolist() == [[0, 1, 2, 3], [1, 2, 3, 4]]
    assert state["next_obs"][-1, 0].tolist() == [20, 21, 22, 23]


def test_the_shards_of_a_resumed_run_are_those_of_the_run_that_was_never_stopped(tmp_path: Path) -> None:
    names = []
    for stopped in (False, True):
        history, run_dir = play(3, [5, 2]), tmp_path / str(stopped)
        buffer, store = make("shared", *FORM), ReplayStore(run_dir / "replay")
        add(9, history, buffer)
        checkpoint = save(run_dir, store, buffer)
        if stopped:
            buffer, store = make("shared", *FORM), ReplayStore(run_dir / "replay")
            store.load(open_checkpoint(checkpoint.path), buffer)
        add(2, history, buffer)
        names.append(shards_in(save(run_dir, store, buffer).path))
    assert names[0] == names[1]


def test_golden_shards_of_frames_of_format_1() -> None:
    """Written by `golden/write_replay_frames_format_1.py`: 20 transitions in a ring of 12."""
    buffer = make("shared", 12, 2, 4, 1, 1)
    load_replay(open_checkpoint(GOLDEN), buffer)
    assert isinstance(buffer, FrameReplayBuffer)
    assert (buffer.total, buffer.oldest) == (20, 8)
    images = buffer.planes[buffer.obs][..., 0, 0]  # a frame shows its step, and 100 of the second environment
    # Transition 16 is in the ring's row 2, step 8; the episodes begin at steps 0, 3 and 6.
    assert images[2].tolist() == [[6, 6, 7, 8], [106, 106, 107, 108]]
    assert buffer.planes[buffer.next_obs][..., 0, 0][2].tolist() == [[6, 7, 8, 9], [106, 107, 108, 109]]
    assert buffer.actions.tolist() == [[12, 13], [14, 15], [16, 17], [18, 19], [8, 9], [10, 11]]


def test_a_shard_of_frames_does_not_fit_a_plain_buffer_nor_the_other_way_round(tmp_path: Path) -> None:
    for kind, other, words in (("shared", "plain", "it holds "), ("plain", "shared", r"planes is bool (0,)")):
        history, run_dir = play(0, [5]), tmp_path / kind
        buffer = make(kind, *FORM)
        add(5, history, buffer)
        checkpoint = save(run_dir, ReplayStore(run_dir / "replay"), buffer)
        text = refusal(checkpoint.path, make(other, *FORM))
        assert text.startswith(f"{first_shard(checkpoint)} is refused: {words}")


FRAMES = """
stack, no = np.zeros((1, 4, 84, 84), np.uint8), np.zeros(1, bool)
buffer = FrameReplayBuffer(20_000, 1, (4, 84, 84), 1, (), np.dtype(np.int64))
store = ReplayStore(Path(sys.argv[1]) / "replay")
if sys.argv[2] == "save":
    for step in range(24_000):
        after = np.roll(stack, -1, axis=1)
        after[0, -1].view(np.uint32)[:] = step
        buffer.add(stack, [0], [0], after, no, no)
        stack = after
    save(Path(sys.argv[1]), store, buffer)
else:
    store.load(open_checkpoint(Path(sys.argv[1]) / "checkpoints" / "step_000000024000"), buffer)
"""


@pytest.mark.slow
def test_saving_and_loading_need_less_than_a_third_of_the_buffer_in_extra_memory(tmp_path: Path) -> None:
    """Peak memory of a process of its own with a buffer of 160 MB, of which the ninth for episodes is not touched."""
    for task in ("save", "load"):
        assert 0.85 < peak_share(FRAMES, tmp_path, task) < 1.3, task
