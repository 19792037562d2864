"""Writing checkpoints, finding the newest valid one, and removing old ones."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_examples import CONFIG, policy_state, trainer_state, write
from waiting import LIMIT

from rl_training.config.serialization import WrittenConfig, config_hash
from rl_training.errors import CheckpointError, CheckpointNotWritten, NumericError
from rl_training.experiment.loading import config_from_text
from rl_training.runtime.checkpoint import (
    FORMAT_VERSION,
    list_checkpoints,
    load_policy_state,
    load_trainer_state,
    newest_good,
    open_checkpoint,
    policy_sha256,
    prune,
    read_best,
    write_best,
    write_checkpoint,
)

ROOT = Path(__file__).resolve().parent.parent


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    write(tmp_path / "checkpoints", 100_352)
    checkpoint = open_checkpoint(tmp_path / "checkpoints" / "step_000000100352")
    assert (checkpoint.num_timesteps, checkpoint.algorithm, checkpoint.run_uid) == (100_352, "ppo", "run-a")
    policy, trainer = load_policy_state(checkpoint), load_trainer_state(checkpoint)
    assert torch.equal(policy["weights"]["body"], torch.arange(6.0).reshape(2, 3))
    assert policy["observation_normalizer"]["mean"].tolist() == [0.5, -1.0]
    assert policy["observation_space"]["low"] == [float("-inf"), -1.0]
    assert trainer["rng"] == {"state": hex(2**127 + 5)}
    assert trainer["buffer"]["obs"].dtype == np.float32
    assert checkpoint.policy_sha256 == policy_sha256(policy_state())
    assert config_from_text(checkpoint.config_text(), source="config.yaml") == CONFIG


def test_the_manifest_states_format_step_run_versions_config_hash_and_each_file(tmp_path: Path) -> None:
    path = write(tmp_path).path
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["format_version"] == FORMAT_VERSION == 1
    assert (manifest["num_timesteps"], manifest["algorithm"], manifest["run_uid"]) == (100, "ppo", "run-a")
    assert set(manifest["versions"]) == {"python", "rl_training", "torch", "numpy", "gymnasium"}
    assert manifest["config_hash"] == config_hash(CONFIG)
    assert sorted(manifest["files"]) == ["config.yaml", "policy.pt", "trainer.pt"]
    assert names(path) == ["config.yaml", "manifest.json", "policy.pt", "trainer.pt"]
    for name, entry in manifest["files"].items():
        assert entry["size"] == (path / name).stat().st_size


def test_files_are_as_readable_as_any_the_user_makes(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        path = write(tmp_path / "checkpoints").path
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o644}


def test_a_good_checkpoint_of_the_same_step_and_states_is_kept(tmp_path: Path) -> None:
    first = write(tmp_path)
    before = (first.path / "trainer.pt").stat()
    second = write(tmp_path, run_uid="run-b")
    assert second.run_uid == "run-a"
    assert (first.path / "trainer.pt").stat().st_ino == before.st_ino
    assert names(tmp_path) == ["step_000000000100"]


def test_one_of_the_same_step_and_policy_from_before_its_evaluation_gives_way(tmp_path: Path) -> None:
    state = trainer_state(100)
    write(tmp_path)
    later = {**state, "progress": {**state["progress"], "last_evaluation": 100}}
    written = write(tmp_path, trainer=later, run_uid="run-b")
    assert written.run_uid == "run-b"
    assert load_trainer_state(open_checkpoint(written.path))["progress"]["last_evaluation"] == 100
    assert names(tmp_path) == ["step_000000000100"]


def test_one_of_the_same_step_from_the_middle_of_its_update_gives_way(tmp_path: Path) -> None:
    write(tmp_path, shift=0.0)
    whole = write(tmp_path, shift=1.0)
    assert open_checkpoint(whole.path).policy_sha256 == policy_sha256(policy_state(1.0))
    assert names(tmp_path) == ["step_000000000100"]


def test_a_kill_while_one_gives_way_leaves_a_good_one(tmp_path: Path) -> None:
    path = write(tmp_path).path
    path.rename(tmp_path / f"superseded-{path.name}")  # as between the two renames
    found, skipped = newest_good(tmp_path)
    assert found is not None
    assert (found.num_timesteps, skipped) == (100, [])
    write(tmp_path, shift=1.0)
    write(tmp_path, step=200)
    assert names(tmp_path) == ["step_000000000100", "step_000000000200"]


def test_a_damaged_one_of_the_same_step_is_set_aside_and_never_overwritten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for i in range(2):
        flip_a_byte(write(tmp_path, shift=i).path / "trainer.pt")
    write(tmp_path, shift=2)
    assert names(tmp_path) == [
        "damaged-step_000000000100",
        "damaged-step_000000000100-1",
        "step_000000000100",
    ]
    assert "trainer.pt is damaged" in caplog.text
    assert newest_good(tmp_path)[1] == []


def test_a_policy_with_a_nan_or_infinity_is_named_and_not_written(tmp_path: Path) -> None:
    for value in (float("nan"), float("inf")):
        policy = policy_state()
        policy["weights"]["head"][1] = value
        with pytest.raises(NumericError, match=r"weights/head\[1\] is NaN or infinite at step 7"):
            write_checkpoint(
                tmp_path / "checkpoints",
                config=WrittenConfig(CONFIG),
                run_uid="u",
                algorithm="ppo",
                num_timesteps=7,
                policy=policy,
                trainer={},
            )
    assert not (tmp_path / "checkpoints").exists()


def test_leavings_of_processes_that_are_gone_are_swept_and_those_of_live_ones_kept(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    live = f".tmp-{os.getppid()}-step_000000000005"
    for name in (f".tmp-{gone.pid}-step_000000000005", f".tmp-{os.getpid()}-step_000000000006", live):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.pt").write_bytes(b"half")
    (tmp_path / f".tmp-{gone.pid}-best.json").write_text("{")
    write(tmp_path)
    assert names(tmp_path) == [live, "step_000000000100"]


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
sys.path[:0] = [{root!r}, {tests!r}]
from checkpoint_examples import CONFIG, policy_state, write
from rl_training.config.serialization import WrittenConfig
from rl_training.errors import CheckpointNotWritten
from rl_training.runtime.checkpoint import write_checkpoint
import torch
root = Path(sys.argv[1])
write(root, 100)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for limit in map(int, sys.argv[2:]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        write_checkpoint(root, config=WrittenConfig(CONFIG), run_uid="u", algorithm="ppo", num_timesteps=200,
            policy={{**policy_state(), "big": torch.zeros(10_000)}}, trainer={{"big": torch.zeros(100_000)}})
    except CheckpointNotWritten as error:
        print(error)
"""


def test_a_write_that_fails_is_one_line_and_leaves_what_was_there(tmp_path: Path) -> None:
    """The system refuses bytes beyond a limit, as a full disk does: in the settings, the policy, the trainer state."""
    script = FULL_DISK.format(root=str(ROOT), tests=str(ROOT / "tests"))
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), "100", "20000", "200000"],
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT,
    )
    assert (
        done.stdout.splitlines()
        == [
            f"{tmp_path}/step_000000000200 can't be written: File too large; the newest good checkpoint is "
            f"{tmp_path}/step_000000000100"
        ]
        * 3
    )
    assert names(tmp_path) == ["step_000000000100"]


def test_a_directory_that_cannot_be_written_is_one_line() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "checkpoints"
        write(root, 100)
        root.chmod(0o555)
        Path(folder).chmod(0o755)
        nobody = 65534
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(nobody)
            with pytest.raises(CheckpointNotWritten) as caught:
                write(root, 200)
            with pytest.raises(CheckpointNotWritten, match=r"best.json can't be written: Permission denied"):
                write_best(root, open_checkpoint(root / "step_000000000100"), 1.0)
        finally:
            if user == 0:
                os.seteuid(0)
            root.chmod(0o755)
        assert str(caught.value) == (
            f"{root}/step_000000000200 can't be written: Permission denied; the newest good checkpoint is "
            f"{root}/step_000000000100"
        )
        assert names(root) == ["step_000000000100"]


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [{root!r}, {tests!r}]
from checkpoint_examples import write

def save(root, moment):
    count = 0
    def kill_at(event, arguments):
        nonlocal count
        if event in ("open", "os.rename", "os.mkdir", "shutil.rmtree") and str(root) in str(arguments[0]):
            count += 1
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(kill_at)
    write(root, 200, shift=5.0)

for moment in range(1, 100):
    root = Path(sys.argv[1]) / str(moment)
    write(root, 100)
    write(root, 200)
    child = os.fork()
    if child == 0:
        save(root, moment)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
"""


def test_a_kill_at_any_moment_of_a_save_leaves_only_complete_files_under_final_names(tmp_path: Path) -> None:
    """SIGKILL at the first, second, ... file operation of a save that replaces a checkpoint of its step."""
    script = KILLED.format(root=str(ROOT), tests=str(ROOT / "tests"))
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=LIMIT, check=True)
    moments = sorted(tmp_path.iterdir(), key=lambda path: int(path.name))
    assert 15 < len(moments) < 100
    policies = []
    for root in moments:
        found, skipped = newest_good(root)
        assert found is not None
        assert found.num_timesteps == 200
        policies.append(found.policy_sha256)
        assert all("a save that did not finish" in line for line in skipped)
        for path in root.glob("step_*"):
            open_checkpoint(path)
    old, new = policy_sha256(policy_state()), policy_sha256(policy_state(5.0))
    renamed = policies.index(new)
    assert policies == [old] * renamed + [new] * (len(moments) - renamed)


def test_the_newest_good_one_is_by_the_step_inside_and_says_what_it_skipped(tmp_path: Path) -> None:
    for step in (100, 900, 1000, 2000):
        write(tmp_path, step)
    (tmp_path / "step_000000000900").rename(tmp_path / "renamed-by-hand")
    os.utime(tmp_path / "step_000000000100")
    flip_a_byte(tmp_path / "step_000000002000" / "policy.pt")
    (tmp_path / "step_000000001000" / "trainer.pt").unlink()
    (tmp_path / ".tmp-1-step_000000003000").mkdir()
    (tmp_path / "best.json").write_text("not a directory")
    found, skipped = newest_good(tmp_path)
    assert found is not None
    assert (found.path.name, found.num_timesteps) == ("renamed-by-hand", 900)
    assert skipped == [
        f"{tmp_path}/.tmp-1-step_000000003000: a save that did not finish",
        f"{tmp_path}/step_000000002000/policy.pt is damaged: its sha256 differs from the manifest's",
        f"{tmp_path}/step_000000001000/trainer.pt is missing",
    ]


def test_no_checkpoints_is_none() -> None:
    assert newest_good(Path("/nowhere/at/all")) == (None, [])


def test_prune_keeps_the_newest_and_the_named_checkpoints(tmp_path: Path) -> None:
    for step in (100, 200, 300, 400, 500):
        write(tmp_path, step)
    removed = prune(tmp_path, 2, {tmp_path / "step_000000000200"})
    assert sorted(path.name for path in removed) == ["step_000000000100", "step_000000000300"]
    assert names(tmp_path) == ["step_000000000200", "step_000000000400", "step_000000000500"]
    assert [c.num_timesteps for c in list_checkpoints(tmp_path)[0]] == [500, 400, 200]


def test_best_is_recorded_and_read_back_verified(tmp_path: Path) -> None:
    assert read_best(tmp_path) is None
    write_best(tmp_path, write(tmp_path, 100), 12.5)
    write_best(tmp_path, write(tmp_path, 200), 21.25)
    best = read_best(tmp_path)
    assert best is not None
    assert (best[0].num_timesteps, best[1]) == (200, 21.25)
    assert json.loads((tmp_path / "best.json").read_text()) == {
        "checkpoint": "step_000000000200",
        "return_mean": 21.25,
        "num_timesteps": 200,
    }
    flip_a_byte(tmp_path / "step_000000000200" / "policy.pt")
    with pytest.raises(CheckpointError, match=r"policy.pt is damaged.*newest good checkpoint is .*step_000000000100"):
        read_best(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"checkpoint": "../../etc", "return_mean": 1, "num_timesteps": 1}', '{"checkpoint": 1}', "{" * 10_000],
)
def test_a_damaged_record_of_the_best_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "best.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"best\.json is damaged") as caught:
        read_best(tmp_path)
    assert "\n" not in str(caught.value)
