"""Replay buffers in checkpoints: what is restored, what a save costs, and the effect of damage and kills."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_examples import CONFIG, policy_state
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import LIMIT

from rl_training.config.serialization import WrittenConfig
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.errors import CheckpointError, CheckpointNotWritten
from rl_training.runtime.checkpoint import (
    Checkpoint,
    ReplayStore,
    list_checkpoints,
    load_replay,
    newest_good,
    open_checkpoint,
    prune,
    replay_shards,
    write_checkpoint,
)

ROOT = Path(__file__).resolve().parent.parent
F4 = np.dtype(np.float32)
MIXED = np.dtype([("vector", np.float32, (3,)), ("camera", np.uint8, (1, 2, 3))])


def make_buffer(capacity: int = 12, envs: int = 2, shape: tuple[int, ...] = (3,), dtype: Any = F4) -> ReplayBuffer:
    return ReplayBuffer(capacity, envs, shape, np.dtype(dtype), (), np.dtype(np.int64), n_step=2)


def play(buffer: ReplayBuffer, steps: int) -> None:
    """Adds steps that follow from the number of transitions so far."""
    for _ in range(steps):
        rng = np.random.default_rng(buffer.total)
        obs, next_obs = (np.zeros((buffer.num_envs, *buffer.obs.shape[2:]), buffer.obs.dtype) for _ in range(2))
        for array in (obs, next_obs):
            array.view(np.uint8).reshape(-1)[:] = rng.integers(0, 100, array.nbytes)
        actions, flags = np.arange(buffer.num_envs) + buffer.total, rng.random((2, buffer.num_envs)) < 0.3
        buffer.add(obs, actions, rng.standard_normal(buffer.num_envs), next_obs, *flags)


def save(run_dir: Path, store: ReplayStore, buffer: ReplayBuffer, *, shift: float = 0.0) -> Checkpoint:
    return write_checkpoint(
        run_dir / "checkpoints",
        config=WrittenConfig(CONFIG),
        run_uid="run-a",
        algorithm="dqn",
        num_timesteps=buffer.total,
        policy=policy_state(shift),
        trainer={},
        shards=store.seal(buffer)(),
    )


def write_ahead(store: ReplayStore, buffer: ReplayBuffer) -> None:
    write = store.seal_pieces(buffer)
    if write is not None:
        write()


def run(tmp_path: Path, steps: int = 4, **options: Any) -> tuple[ReplayStore, ReplayBuffer, Checkpoint]:
    store, buffer = ReplayStore(tmp_path / "replay"), make_buffer(**options)
    play(buffer, steps)
    return store, buffer, save(tmp_path, store, buffer)


def shards_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.pt") if len(path.stem) == 64)


def first_shard(checkpoint: Checkpoint) -> Path:
    return checkpoint.path / checkpoint.manifest.extra["replay"][0]["file"]


def assert_same(a: ReplayBuffer, b: ReplayBuffer) -> None:
    assert a.total == b.total
    for name, array in a.arrays().items():
        assert array.tobytes() == b.arrays()[name].tobytes(), name
    ours, theirs = (buffer.sample(40, np.random.default_rng(5)) for buffer in (a, b))
    drawn = zip(vars(ours).values(), vars(theirs).values(), strict=True)  # None where a batch of one step has no part
    assert all(x is y or x.tobytes() == y.tobytes() for x, y in drawn)


@pytest.mark.parametrize(("shape", "dtype"), [((3,), F4), ((1, 4, 4), np.uint8), ((), MIXED)])
@pytest.mark.parametrize("steps", [0, 1, 4, 6, 7, 23])
def test_what_is_saved_comes_back_bit_for_bit(tmp_path: Path, steps: int, shape: tuple[int, ...], dtype: Any) -> None:
    _, buffer, checkpoint = run(tmp_path, steps, shape=shape, dtype=dtype)
    restored = make_buffer(shape=shape, dtype=dtype)
    load_replay(open_checkpoint(checkpoint.path), restored)
    assert restored.total == 2 * steps
    if steps:
        assert_same(buffer, restored)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["save", "ahead", "resume"])), max_size=8))
def test_any_sequence_of_saves_and_resumes_equals_the_buffer_that_was_never_saved(
    tmp_path_factory: pytest.TempPathFactory, moves: list[tuple[int, str]]
) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_shards, "PIECE_BYTES", 200)  # of 80 bytes a step: two steps
        store, buffer, never = ReplayStore(run_dir / "replay"), make_buffer(), make_buffer()
        for steps, move in moves:
            play(buffer, steps)
            play(never, steps)
            if move == "ahead":
                write_ahead(store, buffer)
                continue
            checkpoint = save(run_dir, store, buffer, shift=len(moves))
            assert shards_in(run_dir / "replay") == shards_in(checkpoint.path)
            if move == "resume":
                store, buffer = ReplayStore(run_dir / "replay"), make_buffer()
                store.load(open_checkpoint(checkpoint.path), buffer)
        if never.total:
            assert_same(buffer, never)
    shutil.rmtree(run_dir)


def test_a_save_writes_what_is_new_and_shares_the_rest(tmp_path: Path) -> None:
    store, buffer, first = run(tmp_path, steps=1_000, capacity=4_000, shape=(100,))
    play(buffer, 10)
    second = save(tmp_path, store, buffer)
    old, new = (set(shards_in(checkpoint.path)) for checkpoint in (first, second))
    assert old < new
    written = sum((second.path / name).stat().st_size for name in new - old)
    assert (
        10 * 2 * 814 <= written < 10 * 2 * 814 + 5_000
    )  # 2 * 400 + 8 + 4 + 2 bytes a transition, and the file's frame
    for name in old:
        places = [tmp_path / "replay", first.path, second.path]
        assert len({(place / name).stat().st_ino for place in places}) == 1
        assert (tmp_path / "replay" / name).stat().st_nlink == 3


def test_the_manifest_lists_the_shards_with_size_hash_and_numbers(tmp_path: Path) -> None:
    store, buffer, _ = run(tmp_path, steps=4)
    play(buffer, 5)  # 9 steps of 2 in a ring of 6: the first shard still holds steps 3
    manifest = json.loads((save(tmp_path, store, buffer).path / "manifest.json").read_text())
    assert manifest["format_version"] == 1
    listed = manifest["extra"]["replay"]
    assert [(shard["first"], shard["count"]) for shard in listed] == [(0, 8), (8, 4), (12, 6)]  # cut at the ring's end
    for shard in listed:
        entry = manifest["files"][shard["file"]]
        assert shard["file"] == entry["sha256"] + ".pt"
        state = torch.load(tmp_path / "replay" / shard["file"], weights_only=True)
        assert state["first"] == shard["first"]
        assert state["actions"].shape == (shard["count"] // 2, 2)
        assert state["actions"][0, 0] == shard["first"]


def test_shards_whose_transitions_have_all_left_the_ring_drop_out(tmp_path: Path) -> None:
    store, buffer, first = run(tmp_path, steps=4)
    play(buffer, 6)
    second = save(tmp_path, store, buffer)
    assert set(shards_in(first.path)).isdisjoint(shards_in(second.path))
    assert shards_in(tmp_path / "replay") == shards_in(second.path)
    restored = make_buffer()
    load_replay(open_checkpoint(first.path), restored)  # complete by itself
    assert restored.total == 8


def test_a_shard_goes_with_the_last_checkpoint_that_needs_it(tmp_path: Path) -> None:
    store, buffer, first = run(tmp_path, steps=4)
    shard = (tmp_path / "replay" / shards_in(first.path)[0]).open("rb")
    play(buffer, 2)
    save(tmp_path, store, buffer)
    play(buffer, 6)
    save(tmp_path, store, buffer)
    assert [c.num_timesteps for c in list_checkpoints(tmp_path / "checkpoints")[0]] == [24, 12, 8]
    for keep, links in [(3, 2), (2, 1), (1, 0)]:
        prune(tmp_path / "checkpoints", keep)
        assert os.fstat(shard.fileno()).st_nlink == links
    shard.close()


def test_a_resumed_run_continues_with_the_shards_and_removes_later_ones(tmp_path: Path) -> None:
    store, buffer, checkpoint = run(tmp_path, steps=3)
    play(buffer, 2)
    store.seal(buffer)()  # and then the process is killed
    resumed, again = ReplayStore(tmp_path / "replay"), make_buffer()
    resumed.load(open_checkpoint(checkpoint.path), again)
    assert shards_in(tmp_path / "replay") == shards_in(checkpoint.path)
    inode = first_shard(checkpoint).stat().st_ino
    play(again, 2)
    after = save(tmp_path, resumed, again)
    assert_same(again, buffer)
    assert first_shard(after).stat().st_ino == inode
    assert len(shards_in(after.path)) == 2


def test_a_fork_has_its_own_links_and_outlives_the_run_it_came_from(tmp_path: Path) -> None:
    _, buffer, checkpoint = run(tmp_path / "a", steps=5)
    fork, theirs = ReplayStore(tmp_path / "b" / "replay"), make_buffer()
    fork.load(checkpoint, theirs)
    assert (tmp_path / "b" / "replay" / first_shard(checkpoint).name).samefile(first_shard(checkpoint))
    shutil.rmtree(tmp_path / "a")
    saved = save(tmp_path / "b", fork, theirs)
    restored = make_buffer()
    load_replay(open_checkpoint(saved.path), restored)
    assert_same(restored, buffer)


def test_shards_that_somebody_removed_are_written_again(tmp_path: Path) -> None:
    store, buffer, first = run(tmp_path, steps=3)
    shutil.rmtree(tmp_path / "replay")
    shutil.rmtree(first.path)
    play(buffer, 1)
    restored = make_buffer()
    load_replay(open_checkpoint(save(tmp_path, store, buffer).path), restored)
    assert_same(restored, buffer)


def test_without_hard_links_a_checkpoint_has_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    _, buffer, checkpoint = run(tmp_path, steps=5)
    shutil.rmtree(tmp_path / "replay")
    restored, store = make_buffer(), ReplayStore(tmp_path / "replay")
    store.load(open_checkpoint(checkpoint.path), restored)
    assert_same(restored, buffer)
    assert shards_in(tmp_path / "replay") == shards_in(checkpoint.path)
    assert first_shard(checkpoint).stat().st_nlink == 1


def test_writing_ahead_leaves_little_to_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_shards, "PIECE_BYTES", 500)  # of 76 bytes a step: six steps
    store, buffer = ReplayStore(tmp_path / "replay"), make_buffer(capacity=40)
    counts = []
    for _ in range(15):
        play(buffer, 1)
        write_ahead(store, buffer)
        counts.append(len(list((tmp_path / "replay").glob("*"))))
    assert counts == [0] * 5 + [1] * 6 + [2] * 4
    before = {path: path.stat().st_ino for path in (tmp_path / "replay").iterdir()}
    entries = store.seal(buffer)()
    assert [(entry.first, entry.count) for entry in entries] == [(0, 12), (12, 12), (24, 6)]
    assert {path: path.stat().st_ino for path in before} == before


def test_a_step_waits_until_what_it_overwrites_is_taken_out_of_the_ring(tmp_path: Path) -> None:
    store, buffer = ReplayStore(tmp_path / "replay"), make_buffer()
    play(buffer, 6)
    write, there_is_room = store.seal(buffer), threading.Event()
    training = threading.Thread(target=lambda: (store.make_room(buffer), there_is_room.set()))
    training.start()
    assert not there_is_room.wait(0.1)
    assert [(entry.first, entry.count) for entry in write()] == [(0, 12)]
    assert there_is_room.wait(LIMIT)
    training.join()
    play(buffer, 1)
    store.make_room(buffer)  # the second row of what is written


def test_what_could_not_be_written_holds_nobody_up_and_is_left_to_the_next_save(tmp_path: Path) -> None:
    store, buffer = ReplayStore(tmp_path / "replay"), make_buffer()
    (tmp_path / "replay").touch()
    play(buffer, 6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay_shards, "PIECE_BYTES", 200)  # two steps
        first, second = store.seal_pieces(buffer), store.seal(buffer)
        for write in (first, second):
            with pytest.raises(CheckpointNotWritten, match=f"^{tmp_path}/replay can't be written: File exists"):
                (write or list)()
        store.make_room(buffer)
        play(buffer, 5)
        assert store.seal_pieces(buffer) is None
        (tmp_path / "replay").unlink()
        assert [(entry.first, entry.count) for entry in store.seal(buffer)()] == [(10, 2), (12, 4), (16, 4), (20, 2)]


def test_golden_shards_of_format_1() -> None:
    """Written by `golden/write_replay_format_1.py`: 20 transitions in a ring of 12."""
    buffer = make_buffer(shape=(), dtype=MIXED)
    checkpoint = open_checkpoint(Path(__file__).parent / "golden" / "replay_format_1" / "step_000000000020")
    load_replay(checkpoint, buffer)
    assert (buffer.total, buffer.oldest) == (20, 8)
    assert buffer.actions.tolist() == [[12, 13], [14, 15], [16, 17], [18, 19], [8, 9], [10, 11]]
    assert buffer.obs["camera"][4, 1].ravel().tolist() == [90, 91, 92, 93, 94, 95]  # 10 * number + 0 ... 5
    assert buffer.next_obs["vector"][3, 0].tolist() == [18.25, 18.5, 18.75]
    assert buffer.rewards[0].tolist() == [6.0, 6.5]
    assert [np.flatnonzero(flag).tolist() for flag in (buffer.terminated, buffer.truncated)] == [[4], [2]]


# A save neither writes nor reads what is unchanged, and is complete whenever it is killed.

AUDITED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [{root!r}, {tests!r}]
from test_replay_shards import *

seen, watched, act = [], "", None
def hook(event, arguments):
    if act is not None and event in ("open", "os.rename", "os.mkdir", "os.link", "os.remove", "shutil.rmtree"):
        if watched in str(arguments[0]):
            act(event, arguments)
sys.addaudithook(hook)
"""


def audited(code: str, *arguments: Path) -> str:
    script = AUDITED.format(root=str(ROOT), tests=str(ROOT / "tests")) + code
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT).stdout


def test_a_save_opens_no_shard_that_is_there_already(tmp_path: Path) -> None:
    code = """
store, buffer, first = run(Path(sys.argv[1]), 4)
watched, act = sys.argv[1], lambda event, arguments: seen.append((event, str(arguments[0])))
save(Path(sys.argv[1]), store, buffer, shift=1.0)  # of the same step: it replaces the first
play(buffer, 1)
save(Path(sys.argv[1]), store, buffer)
act = None
shard = first_shard(first).name
print([event for event, path in seen if shard in path], sum(event == "open" for event, path in seen) > 10)
"""
    assert audited(code, tmp_path) == "['os.link', 'os.link'] True\n"


KILLED = """
def save_and_be_killed(folder, moment):
    global watched, act
    store, buffer = ReplayStore(folder / "replay"), make_buffer()
    store.load(open_checkpoint(folder / "checkpoints" / "step_000000000008"), buffer)
    play(buffer, 4)
    def kill(event, arguments):
        seen.append(event)
        if len(seen) == moment:
            os.kill(os.getpid(), signal.SIGKILL)
    watched, act = str(folder), kill
    save(folder, store, buffer)
    prune(folder / "checkpoints", 1)

for moment in range(1, 100):
    folder = Path(sys.argv[1]) / str(moment)
    run(folder, 4)
    child = os.fork()
    if child == 0:
        save_and_be_killed(folder, moment)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
"""


def test_a_kill_at_any_moment_of_a_save_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    audited(KILLED, tmp_path)
    moments = sorted(tmp_path.iterdir(), key=lambda path: int(path.name))
    assert 20 < len(moments) < 100
    steps = []
    for folder in moments:
        found, _ = newest_good(folder / "checkpoints")
        assert found is not None
        store, buffer, expected = ReplayStore(folder / "replay"), make_buffer(), make_buffer()
        store.load(found, buffer)
        play(expected, found.num_timesteps // 2)
        assert_same(buffer, expected)
        steps.append(found.num_timesteps)
        play(buffer, 1)
        save(folder, store, buffer)
        assert list((folder / "replay").glob(".*")) == list((folder / "checkpoints").glob(".*")) == []
    assert steps == sorted(steps)
    assert set(steps) == {8, 16}


FULL = """
import resource
from rl_training.errors import CheckpointNotWritten
store, buffer, first = run(Path(sys.argv[1]), 4, shape=(1000,))
play(buffer, 4)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
try:
    save(Path(sys.argv[1]), store, buffer)
except CheckpointNotWritten as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
restored = make_buffer(shape=(1000,))
print(sorted(os.listdir(sys.argv[1] + "/replay")) == shards_in(first.path))
load_replay(open_checkpoint(save(Path(sys.argv[1]), store, buffer).path), restored)
assert_same(restored, buffer)
"""


def test_a_full_disk_is_one_line_and_the_next_save_works(tmp_path: Path) -> None:
    assert audited(FULL, tmp_path).splitlines() == [
        f"{tmp_path}/replay can't be written: File too large; the newest good checkpoint is "
        f"{tmp_path}/checkpoints/step_000000000008",
        "True",
    ]


# Memory.

PEAK = """
import sys
import psutil
from pathlib import Path
sys.path[:0] = [{root!r}, {tests!r}]
from test_replay_shards import *
from rl_training.data.replay_frames import FrameReplayBuffer

def peak():  # of this program; getrusage's would be the parent's if that was larger when it started this one
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status["VmHWM"].split()[0])

run(Path(sys.argv[1]) / "warm_up")
before = psutil.Process().memory_info().rss
{body}
print((peak() - before) / buffer.nbytes)
"""


def peak_share(body: str, folder: Path, task: str) -> float:
    """Runs `body`, which makes `buffer`, in a process; returns the process's peak of memory in sizes of the buffer."""
    script = PEAK.format(root=str(ROOT), tests=str(ROOT / "tests"), body=body)
    # What is freed goes back at once. By default it depends on the moment which of the threads' heaps keeps it.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
    command = [sys.executable, "-c", script, str(folder), task]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT, env=environment)
    return float(done.stdout)


PLAIN = """
buffer, store = make_buffer(3_600, 1, (4, 84, 84), np.uint8), ReplayStore(Path(sys.argv[1]) / "replay")
if sys.argv[2] == "save":
    for array in buffer.arrays().values():
        array[:] = 1
    buffer.total = 5_000
    save(Path(sys.argv[1]), store, buffer)
else:
    store.load(open_checkpoint(Path(sys.argv[1]) / "checkpoints" / "step_000000005000"), buffer)
"""


@pytest.mark.slow
def test_saving_and_loading_need_less_than_a_third_of_the_buffer_in_extra_memory(tmp_path: Path) -> None:
    """Peak memory of a process of its own with a buffer of 203 MB."""
    for task in ("save", "load"):
        assert 0.95 < peak_share(PLAIN, tmp_path, task) < 1.3, task


# Damage.


def refusal(checkpoint: Path, buffer: ReplayBuffer | None = None) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_replay(open_checkpoint(checkpoint), buffer or make_buffer())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_damaged_shard_is_named_with_the_newest_checkpoint_that_does_without(tmp_path: Path) -> None:
    store, buffer, first = run(tmp_path, steps=2)
    play(buffer, 1)
    second = save(tmp_path, store, buffer)
    new = second.path / (set(shards_in(second.path)) - set(shards_in(first.path))).pop()
    data = bytearray(new.read_bytes())
    data[len(data) // 2] ^= 1
    new.write_bytes(data)
    assert refusal(second.path) == (
        f"{new} is damaged: its sha256 differs from the manifest's; the newest good checkpoint is {first.path}"
    )
    with pytest.raises(CheckpointError, match=f"^{new} is damaged"):
        load_replay(second, make_buffer())  # damaged after it was opened
    assert newest_good(tmp_path / "checkpoints")[0] == first
    new.write_bytes(data[:100])
    assert "it has 100 bytes, the manifest says" in refusal(second.path)
    new.unlink()
    assert refusal(second.path).startswith(f"{new} is missing")


def test_a_checkpoint_without_a_buffer_says_so(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(
        tmp_path,
        config=WrittenConfig(CONFIG),
        run_uid="u",
        algorithm="dqn",
        num_timesteps=3,
        policy=policy_state(),
        trainer={},
    )
    assert refusal(checkpoint.path) == f"{checkpoint.path} has no replay buffer, which dqn needs to resume"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": (4,)}, r"obs is float32 \(4, 2, 3\), and the buffer's is float32 \(4, 2, 4\)"),
        ({"dtype": np.uint8}, r"obs is float32 \(4, 2, 3\), and the buffer's is uint8 \(4, 2, 3\)"),
        ({"capacity": 6, "envs": 2}, "extend past the end of the ring"),
        ({"capacity": 12, "envs": 3}, "not complete rows"),
    ],
)
def test_a_buffer_of_another_form_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    _, _, checkpoint = run(tmp_path, steps=4)
    with pytest.raises(CheckpointError, match=f"{first_shard(checkpoint).name} is refused: .*{message}"):
        load_replay(checkpoint, make_buffer(**options))


def test_a_larger_buffer_than_the_saved_one_is_refused(tmp_path: Path) -> None:
    _, _, checkpoint = run(tmp_path, steps=13)
    with pytest.raises(CheckpointError, match=r"holds the transitions 14 to 26, and one of 24 would hold those from 2"):
        load_replay(checkpoint, make_buffer(capacity=24))


@pytest.mark.parametrize(
    "change",
    [
        {"first": -1},
        {"first": 2},
        {"count": 0},
        {"count": "many"},
        {"file": "../../other.pt"},
        {"file": 3},
        {"file": None},
    ],
)
def test_a_list_of_shards_that_is_wrong_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    store, buffer, _ = run(tmp_path, steps=2)
    play(buffer, 1)
    checkpoint = save(tmp_path, store, buffer)
    listed = checkpoint.manifest.extra["replay"]
    listed[1].update(change)
    forged = Checkpoint(checkpoint.path, checkpoint.manifest.model_copy(update={"extra": {"replay": listed}}))
    with pytest.raises(CheckpointError, match="is refused: its list of replay shards is wrong"):
        load_replay(forged, make_buffer())


def test_a_shard_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    _, _, checkpoint = run(tmp_path, steps=4)
    good = torch.load(first_shard(checkpoint), weights_only=True)
    sparse = good["rewards"].to_sparse()
    for change in ({"first": 2}, {"more": 1}, {"rewards": 3}, {"first": torch.zeros(3)}, {"rewards": sparse}):
        first_shard(checkpoint).unlink()
        torch.save({**good, **change}, first_shard(checkpoint))
        entry = checkpoint.manifest.files[first_shard(checkpoint).name]
        data = first_shard(checkpoint).read_bytes()
        sealed = entry.model_copy(update={"size": len(data), "sha256": hashlib.sha256(data).hexdigest()})
        checkpoint.manifest.files[first_shard(checkpoint).name] = sealed
        with pytest.raises(CheckpointError, match=rf"{first_shard(checkpoint).name} is refused: "):
            load_replay(checkpoint, make_buffer())
