"""A champion that an earlier version registered stays champion: it acts, is evaluated, and plays against candidates."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow_store import GOOD, run_with_policy

from rl_training.cli.app import run
from rl_training.promotion.model_registry import get_champion
from rl_training.tracking.checkpoint_sources import download_checkpoint

GOLDEN = Path(__file__).parent / "golden" / "registered_format_1"
"""A forced promotion by commit 7ab246c of a policy with four hidden units, after 2,000 steps of PPO on CartPole."""
MODEL = "CartPole-v1"


@pytest.fixture
def champion(client: Any, home: Path) -> str:
    """Registers the golden version as its store had it, and returns its source."""
    source = home / "artifacts" / "golden"
    shutil.copytree(GOLDEN / "model", source)
    client.create_registered_model(MODEL, tags={"env_id": MODEL})
    version = client.create_model_version(
        MODEL, f"file://{source}", tags=json.loads((GOLDEN / "tags.json").read_text())
    )
    for alias in ("challenger", "champion"):
        client.set_registered_model_alias(MODEL, alias, version.version)
    return f"models:/{MODEL}@champion"


def test_it_is_fetched_judged_and_served(champion: str, capfd: pytest.CaptureFixture[str]) -> None:
    import mlflow

    checkpoint = download_checkpoint(champion)
    assert (checkpoint.num_timesteps, checkpoint.policy_sha256[:8]) == (2_000, "f9f1870d")
    assert run(["evaluate", champion, "--episodes", "5", "--json"]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["evaluation"]["return_mean"] == 29.6
    mlflow.set_tracking_uri(None)
    observations = np.random.default_rng(0).uniform(-3, 3, (12, 4)).astype(np.float32)
    actions = mlflow.pyfunc.load_model(str(GOLDEN / "model")).predict(observations)
    assert actions.tolist() == [0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]


def test_a_better_candidate_takes_its_place_and_a_rollback_brings_it_back(champion: str, client: Any) -> None:
    checkpoint, _ = run_with_policy(GOOD)
    assert run(["promote", str(checkpoint.path), "--set", "promotion.episodes=20"]) == 0
    assert (str(get_champion(client, MODEL).version), client.get_model_version(MODEL, "2").tags["gate.verdict"]) == (
        "2", "PROMOTE",
    )  # fmt: skip
    assert run(["rollback", MODEL, "--reason", "a test"]) == 0
    assert str(get_champion(client, MODEL).version) == "1"
