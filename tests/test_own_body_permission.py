"""A received policy's body is imported only with the user's word, wherever the policy is used."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import mlflow_store
import numpy as np
import pytest
from mlflow_store import GOOD, WEAK, make_run, run_with_policy, write_policy

from rl_training import evaluate, load_policy
from rl_training.api.promotion import promote_candidate, roll_back
from rl_training.cli.app import run
from rl_training.errors import CheckpointError, ModuleRefused
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.loading import config_from_mapping
from rl_training.promotion.monitoring import monitor
from rl_training.runtime.checkpoint import Checkpoint
from rl_training.tracking.pyfunc import save_model
from rl_training.tracking.sinks.completion import complete_sinks
from tests.received_runs import SMALL, received

MANAGER = DefaultExperimentManager()
REFUSED = r"network\.body\.name names the module bodies; .*--allow-module bodies"
CHAMPION, RULES = "models:/CartPole-v1@champion", ["promotion.episodes=20"]


def train(run_dir: Path, body: str | None) -> Path:
    network = {"hidden": [4], "body": body}
    return MANAGER.setup(config_from_mapping({**SMALL, "network": network, "run_dir": str(run_dir)})).train().run_dir


@pytest.fixture
def gift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with a body, made in another home than that of the test."""
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "another home"))
    run_dir = train(tmp_path / "gift", "bodies:Normed")
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))
    return run_dir


def test_every_use_of_a_received_run_is_refused_without_it(gift: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for use in (
        lambda: load_policy(gift),
        lambda: evaluate(gift),
        lambda: MANAGER.resume(gift, total_timesteps=128),
        lambda: MANAGER.resume(gift, fine_tune=True),
    ):
        with pytest.raises(ModuleRefused, match=REFUSED):
            use()
    for command in ("record", "promote"):
        assert run([command, str(gift)]) == 2
        assert "--allow-module bodies" in capsys.readouterr().err


def test_it_is_given_for_one_call(gift: Path) -> None:
    assert load_policy(gift, allow_modules=["bodies"]).action_space.n == 2
    assert evaluate(gift, allow_modules="bodies").episodes == 1
    assert MANAGER.resume(gift, total_timesteps=128, allow_modules=["bodies"]).train().num_timesteps == 128
    assert MANAGER.resume(gift, fine_tune=True, allow_modules=["bodies"]).train().num_timesteps == 64
    with pytest.raises(ModuleRefused, match=REFUSED):
        load_policy(gift)


def test_what_makes_no_network_needs_none(gift: Path) -> None:
    assert complete_sinks(gift) == []


def test_an_allowed_body_is_not_imported_from_the_received_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gift = received(
        train(tmp_path / "made", None), tmp_path / "gift", {"network": {"hidden": [4], "body": "seed:Body"}}
    )
    (gift / "seed.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(gift))
    with pytest.raises(ModuleRefused, match=r"network\.body\.name names the module seed, .* never imported from"):
        load_policy(gift, allow_modules=["seed"])


def test_settings_that_describe_a_larger_network_than_the_file_holds_are_refused(gift: Path, tmp_path: Path) -> None:
    large = received(gift, tmp_path / "large", {"network": {"hidden": [100_000, 100_000], "body": "bodies:Normed"}})
    with pytest.raises(CheckpointError, match=r"it has at least 10,000,300,000 in 3 layers, and the checkpoint \d+ in"):
        load_policy(large, allow_modules=["bodies"])


# The registry. A body that returns vectors as they are lets the controllers of `mlflow_store` act.


def with_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_store, "NETWORK", {"hidden": (4,), "body": "bodies:Vectors"})


def test_a_server_imports_it_with_the_word_of_its_process_alone(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_body(monkeypatch)
    checkpoint: Checkpoint = write_policy(make_run()[0], 100, GOOD)
    save_model(checkpoint, tmp_path / "model")
    with pytest.raises(ModuleRefused, match=REFUSED):
        mlflow.pyfunc.load_model(str(tmp_path / "model"))
    monkeypatch.setenv("RL_TRAINING_ALLOW_MODULES", "bodies")
    observations = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    actions = mlflow.pyfunc.load_model(str(tmp_path / "model")).predict(observations)
    assert actions.tolist() == (observations @ [0, 0, 1.0, 0.5] > 0).astype(int).tolist()  # the controller `GOOD`
    assert actions.tolist() == load_policy(checkpoint).act(observations).tolist()


def test_candidate_champion_and_the_champion_before_it_need_it(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_body(monkeypatch)
    runs = []
    for gains in (WEAK, GOOD):
        checkpoint, run_id = run_with_policy(gains)
        shutil.rmtree(checkpoint.path.parent.parent)  # the store alone has it
        runs.append(run_id)
    with pytest.raises(ModuleRefused, match=REFUSED):
        promote_candidate(runs[0], RULES)
    for run_id in runs:
        assert promote_candidate(run_id, RULES, allow_modules=["bodies"]).verdict.kind == "PROMOTE"
    with pytest.raises(ModuleRefused, match=REFUSED):
        monitor(CHAMPION, episodes=20)
    assert monitor(CHAMPION, episodes=20, allow_modules=["bodies"]).evaluation.return_mean == 500
    monkeypatch.setattr(mlflow_store, "NETWORK", {"hidden": (4,)})
    _, plain = run_with_policy(GOOD)
    with pytest.raises(ModuleRefused, match=REFUSED):  # the champion that it is compared with has one
        promote_candidate(plain, RULES)
    with pytest.raises(ModuleRefused, match=REFUSED):
        roll_back("CartPole-v1", reason="a test")
    assert roll_back("CartPole-v1", reason="a test", allow_modules=["bodies"]).version == "1"
