"""The table of exact resumes: its tool on real processes, and the page with the measurements."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.harness import RESULTS
from benchmarks.resume.cases import ALGORITHMS, CASES, format_table
from benchmarks.resume.exactness import NAME, measure, update_page

PAGE = Path(__file__).resolve().parents[1] / "docs" / "resume.md"


@pytest.mark.slow
def test_a_resume_in_the_middle_of_an_episode_is_measured(tmp_path: Path) -> None:
    cases = [case for case in CASES if case.name in ("CartPole-v1-ppo-normalised", "CartPole-v1-dqn-changed")]
    results = measure(cases, tmp_path)
    assert [(result["algo"], result["exact"], result["differences"]) for result in results] == [
        ("ppo", True, []),
        ("dqn", True, []),
    ]
    for result in results:
        assert 230 <= result["stopped_at"] < 400
        assert result["episodes_before"] >= 2
        assert min(result["steps_into_episodes"]) >= 3


def test_the_table_says_which_variants_are_not_exact() -> None:
    results = [
        {"env_id": "CartPole-v1", "algo": "ppo", "variant": "sync", "exact": True},
        {"env_id": "CartPole-v1", "algo": "ppo", "variant": "async", "exact": False},
        {"env_id": "Pendulum-v1", "algo": "sac", "variant": "sync", "exact": True},
    ]
    assert format_table(results).splitlines() == [
        "| environment | PPO | DQN | SAC | TD3 | TQC |",
        "|---|---|---|---|---|---|",
        "| `CartPole-v1` | sync, **async: not exact** | - | - | - | - |",
        "| `Pendulum-v1` | - | - | sync | - | - |",
    ]


def test_the_page_shows_what_was_measured_last() -> None:
    measured = json.loads((RESULTS / f"{NAME}.json").read_text(encoding="utf-8"))["cases"]
    page = PAGE.read_text(encoding="utf-8")
    assert update_page(page, measured) == page
    assert len(re.findall(r"^\| `[\w-]+-v\d` \|", page, re.MULTILINE)) >= 13
    done = [(result["env_id"], result["algo"], result["variant"]) for result in measured]
    assert done == [(case.env_id, case.algo, case.variant) for case in CASES]


def test_every_algorithm_is_tried_with_everything_that_a_run_can_have() -> None:
    tried = {algo: {case.variant for case in CASES if case.algo == algo} for algo in ALGORITHMS}
    everything = {"sync", "normalised", "async", "frames", "n-step", "changed", "curriculum", "all"}
    native, masked = {"native", "native-normalised"}, {"masked", "masked-normalised"}
    assert tried == {
        "ppo": everything - {"n-step"} | native | masked | {"memory"},
        "dqn": everything | native | masked | {"quantiles", "prioritized", "hindsight", "hindsight-normalised"},
        "sac": everything,
        "td3": everything,
        "tqc": everything,
    }
