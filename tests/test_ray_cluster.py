"""The start of a Ray cluster of this machine, by a program in Ray's place that fails as Ray does."""

import sys
from pathlib import Path

import pytest

from rl_training.system import ray_cluster

LATE = "Exception: The current node timed out during startup. This could happen because the GCS has become overloaded."


@pytest.fixture
def starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the number of CPUs of each start, of which those that `errors` has lines for fail with them."""
    program = tmp_path / "head"
    program.write_text(
        f"""#!/bin/sh
cd {tmp_path}
for last; do :; done
echo "$last" >> starts
error=$(sed -n "$(wc -l < starts)p" errors)
if [ -n "$error" ]; then echo "$error" >&2; exit 1; fi
echo address=127.0.0.1:7
cat
"""
    )
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    return tmp_path / "starts"


def test_a_cluster_whose_node_joins_too_late_is_started_again(starts: Path) -> None:
    starts.with_name("errors").write_text(f"{LATE}\n" * 2)
    assert ray_cluster._start_head(3) == "127.0.0.1:7"
    assert ray_cluster._connection.head is not None
    ray_cluster._end_head()
    assert starts.read_text().split() == ["3"] * 3


@pytest.mark.parametrize(("error", "expected"), [(LATE, ray_cluster.STARTS), ("OSError: no space left", 1)])
def test_a_cluster_that_can_not_start_is_an_error(error: str, expected: int, starts: Path) -> None:
    starts.with_name("errors").write_text(f"{error}\n" * 9)
    with pytest.raises(RuntimeError, match=error[-20:]):
        ray_cluster._start_head(1)
    ray_cluster._end_head()
    assert len(starts.read_text().split()) == expected
