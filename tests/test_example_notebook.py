"""The notebook in examples/, and the page that shows it beside the one for Stable-Baselines3."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from notebooks import EXAMPLES, list_code, run_notebook

from rl_training.runtime.checkpoint import find_checkpoint

PAGE = EXAMPLES.parent / "docs" / "coming-from-stable-baselines3.md"
NOTEBOOKS = ("dock.ipynb", "dock_stable_baselines3.ipynb")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_has_fewer_than_twenty_cells_and_no_output(name: str) -> None:
    cells = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))["cells"]
    assert len(cells) < 20
    assert not [cell for cell in cells if cell.get("outputs")]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_page_shows_each_cell_of_both_notebooks(name: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for code in list_code(name):
        assert code.removeprefix("%%writefile dock.py\n").strip() in page


def test_both_notebooks_write_the_same_environment() -> None:
    ours, theirs = (list_code(name)[0] for name in NOTEBOOKS)
    assert ours == theirs


@pytest.mark.slow
def test_the_notebook_interrupts_resumes_evaluates_films_compares_and_promotes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    _, valid, interrupted, resumed, evaluated, filmed, compared, promoted, acted = run_notebook("dock.ipynb", tmp_path)
    assert "can be trained on: 0 fatal, 0 warnings" in valid
    assert "signal 15360" in interrupted  # the first rollout of 1,024 steps that ends after 15,000
    assert "done at 40,000 steps" in resumed
    assert "success rate 1.00" in evaluated
    assert filmed.startswith("Dock-v0_step=40000_episode=1_return=1_")
    assert filmed.rstrip().endswith("success.webp")
    assert "success rate: shaped 1.00, plain 0.00" in compared
    assert "same episodes: True" in compared
    assert "REJECT: registered model dock, version 1" in promoted
    assert "PROMOTE: registered model dock, version 2, now champion" in promoted
    assert acted

    (run_dir,) = (tmp_path / "home" / "runs").glob("*ppo-s0*")
    uninterrupted = [sys.executable, "-c", _without_interruption()]
    answer = subprocess.run(uninterrupted, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert answer.stdout.split()[-1] == find_checkpoint(run_dir).policy_sha256


def _without_interruption() -> str:
    settings = list_code("dock.ipynb")[1].partition("print(")[0].replace("from IPython.display import Image\n", "")
    train = "result = rl_training.train(config.replace(run_dir='plain'), track=False)\nprint(result.policy_sha256)\n"
    return settings + train
