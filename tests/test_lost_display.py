"""If the terminal or pipe is lost, training completes and is recorded. Only a result that was asked for is an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import LIMIT

TRAIN = [sys.executable, "-m", "rl_training", "train", "--no-track", "--set", "env_id=case_envs:Prints-v0", "--config"]


def shell(command: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    """Runs a line of a shell, in which the exit code of the first program of a pipe counts."""
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        env={**os.environ, **{name: str(value) for name, value in variables.items()}},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def record(small_config: Path) -> list[float]:
    """The steps of the held-out evaluation that the one run has on record."""
    (metrics,) = small_config.parent.glob("home/runs/*/metrics.jsonl")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [line["step"] for line in lines if line["event"] == "heldout"]


@pytest.mark.parametrize(
    "redirection",
    [
        pytest.param("2>&1 | head -n 1", id="a reader that quits"),
        pytest.param(">/dev/full 2>/dev/full", marks=pytest.mark.slow, id="a full disk"),
        pytest.param("<&- >&- 2>&-", marks=pytest.mark.slow, id="closed streams"),
    ],
)
def test_training_outlives_its_display(redirection: str, small_config: Path) -> None:
    done = shell(f"{' '.join(TRAIN)} {small_config} {redirection}")
    assert done.returncode == 0, done
    assert record(small_config) == [256]


def test_a_result_in_json_that_nobody_can_read_is_an_error_and_the_run_is_recorded(small_config: Path) -> None:
    done = shell(f"{' '.join(TRAIN)} {small_config} --json | true")
    assert done.returncode == 1, done
    (run_dir,) = (small_config.parent / "home/runs").glob("*")
    lost = f"the result could not be written to stdout: Broken pipe; the record of the run is in {run_dir}"
    assert done.stderr.splitlines()[-1] == f"error: {lost}"
    assert record(small_config) == [256]


def test_unread_lines_for_people_are_no_error_but_lines_lost_on_a_full_disk_are(
    small_config: Path,
) -> None:
    algorithms = f"{' '.join(TRAIN[:3])} algorithms"
    assert shell(f"{algorithms} | true").returncode == 0
    done = shell(f"{algorithms} >/dev/full")
    assert (done.returncode, done.stderr) == (
        1,
        "error: the result could not be written to stdout: No space left on device\n",
    )


@pytest.mark.slow
def test_a_terminal_that_is_gone_ends_no_run_that_ignores_its_hangup(small_config: Path) -> None:
    """Each write to the terminal fails then, in the middle of the progress bar."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        ["env", "--ignore-signal=HUP", *TRAIN, str(small_config), "--set", "total_timesteps=2_560"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        cwd=small_config.parent,
    )
    os.close(theirs)
    os.read(ours, 1)
    os.close(ours)
    assert process.wait(LIMIT) == 0
    assert record(small_config) == [2_560]
