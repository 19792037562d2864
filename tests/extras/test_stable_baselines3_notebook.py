"""The notebook for Stable-Baselines3 in examples/, which shows the same steps as ours."""

from __future__ import annotations

from pathlib import Path

from notebooks import run_notebook


def test_the_notebook_for_stable_baselines3_runs_to_its_champion(tmp_path: Path) -> None:
    *_, interrupted, resumed, evaluated, _, _, _, acted = run_notebook("dock_stable_baselines3.ipynb", tmp_path)
    assert "interrupted at 15000" in interrupted
    assert resumed.strip() == "40600"  # rollouts are never shortened: 24 of 1,024 steps follow the 16,024 of before
    assert evaluated.startswith("return ")
    assert (tmp_path / "champion.zip").exists()
    assert acted
