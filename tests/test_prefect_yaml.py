"""`prefect.yaml`: the shipped file, checked against Prefect's model, and the faults that `deploy` refuses."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.cli.deploy._models import ConcurrencyLimitSpec, DeploymentConfig, PrefectYamlModel
from pydantic import ValidationError

from rl_training.config.shipped_configs import list_shipped_configs
from rl_training.errors import UserError
from rl_training.experiment.loading import load_config
from rl_training.services.deploy import _run_prefect_deploy
from rl_training.services.prefect_yaml import HEARTBEAT, KEYS, LIMIT_KEYS, find_prefect_yaml, read_prefect_yaml

FILE = Path(__file__).resolve().parents[1] / "prefect.yaml"
SWEEP = "rl_training.flows.sweep.sweep_flow"
FLOWS = ("train", "resume", "evaluate", "promote", "retrain", "sweep", "trial")
NOW = datetime(2026, 3, 27, 12, 0, tzinfo=UTC)
BY_HAND, BY_CLOCK = {"limit": 1, "collision_strategy": "ENQUEUE"}, {"limit": 1, "collision_strategy": "CANCEL_NEW"}


@pytest.fixture(scope="module")
def shipped() -> dict[str, Any]:
    return yaml.safe_load(FILE.read_text())


def test_the_keys_are_those_that_prefect_knows(shipped: dict[str, Any]) -> None:
    assert set(DeploymentConfig.model_fields) == KEYS
    assert set(ConcurrencyLimitSpec.model_fields) == LIMIT_KEYS
    model = PrefectYamlModel.model_validate(shipped)
    assert len(model.deployments) == len(shipped["deployments"])
    assert model.pull == []  # which is not the same as none: then a worker would look for the folder of this machine
    shipped["deployments"][-1].setdefault("schedules", [{"cron": "0 3 * * *"}])[0]["catchup"] = False
    with pytest.raises(ValidationError, match="catchup"):  # so the model does find a stray key
        PrefectYamlModel.model_validate(shipped)
    del shipped["deployments"][-1]["schedules"][0]["catchup"]


def test_each_shipped_config_has_its_deployment_and_each_flow_its_default(shipped: dict[str, Any]) -> None:
    deployments = {deployment.name: deployment for deployment in read_prefect_yaml(FILE, NOW)}
    named = {f"train-flow/{name.replace('/', '-').replace('_', '-')}": name for name in list_shipped_configs()}
    parameters = {
        f"train-flow/{entry['name']}": entry["parameters"]["config"]
        for entry in shipped["deployments"]
        if entry["entrypoint"] == "rl_training.flows.train.train_flow" and entry["name"] != "default"
    }
    assert parameters == named
    defaults = {f"{flow}-flow/default" for flow in FLOWS}
    assert set(deployments) == {*named, *defaults}


def test_what_is_evaluated_each_day_is_what_is_retrained_each_night(shipped: dict[str, Any]) -> None:
    by_flow = {entry["entrypoint"].rpartition(".")[2]: entry["parameters"] for entry in shipped["deployments"]
               if "schedules" in entry}  # fmt: skip
    assert set(by_flow) == {"evaluate_flow", "retrain_flow"}
    model = load_config(by_flow["retrain_flow"]["config"]).promotion.model
    assert by_flow["evaluate_flow"]["source"] == f"models:/{model}@champion"


def test_each_deployment_but_that_of_trials_runs_once_at_a_time_and_is_watched(shipped: dict[str, Any]) -> None:
    for entry in shipped["deployments"]:
        limit = BY_CLOCK if "retrain" in entry["entrypoint"] else BY_HAND
        assert entry.get("concurrency_limit") == (None if "trial" in entry["entrypoint"] else limit)
        assert entry["work_pool"]["name"] == "rl-training"
        assert entry["work_pool"]["job_variables"]["env"][HEARTBEAT] == "30"
        assert entry["tags"] == ["rl-training"]
        assert entry["description"]
        for schedule in entry.get("schedules", []):
            assert schedule["timezone"]
            assert schedule["slug"]
            assert "active" not in schedule  # a pause made in the UI lasts


def test_the_file_of_the_working_directory_goes_before_the_one_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_prefect_yaml() == FILE
    (tmp_path / "prefect.yaml").touch()
    assert find_prefect_yaml() == tmp_path / "prefect.yaml"


GOOD: dict[str, Any] = {
    "name": "mine",
    "entrypoint": "rl_training.flows.train.train_flow",
    "parameters": {"config": "ppo/cartpole", "overrides": {"seed": 3}},
    "work_pool": {"name": "pool"},
    "concurrency_limit": 2,
    "schedules": [{"cron": "0 3 * * *", "timezone": "UTC", "slug": "nightly"}],
}


def written(folder: Path, *entries: Any) -> Path:
    file = folder / "prefect.yaml"
    file.write_text(yaml.safe_dump({"deployments": list(entries)}))
    return file


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    (mine,) = read_prefect_yaml(written(tmp_path, GOOD), NOW)
    assert (mine.name, mine.pool, mine.limit) == ("train-flow/mine", "pool", 2)
    assert mine.lines()[1].startswith("    nightly (UTC): Sat 2026-03-28 03:00 UTC")
    elsewhere = {**GOOD, "parameters": {"config": "/of/the/worker.yaml"}}
    (mine,) = read_prefect_yaml(written(tmp_path, elsewhere), NOW)
    assert mine.lines()[-1] == (
        "    warning: config /of/the/worker.yaml is not on this machine; a worker must be able to read it"
    )


def test_a_deployment_without_a_limit_is_reported(tmp_path: Path) -> None:
    (mine,) = read_prefect_yaml(written(tmp_path, {**GOOD, "concurrency_limit": None}), NOW)
    assert mine.limit is None
    assert "it has no concurrency_limit" in mine.lines()[-1]
    trials = {"name": "mine", "entrypoint": "rl_training.flows.trial.trial_flow", "work_pool": {"name": "pool"}}
    (mine,) = read_prefect_yaml(written(tmp_path, trials), NOW)  # which are to run at the same time
    assert mine.warnings == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shedules": []}, "unknown key shedules; did you mean schedules"),
        ({"name": None}, "name: is required"),
        ({"work_pool": {}}, "work_pool.name: is required"),
        ({"entrypoint": "rl_training.flows.train.no_flow"}, "is not a flow"),
        ({"entrypoint": "no_such_module.flow"}, "is not a flow"),
        ({"parameters": {"cofnig": 1}}, "train-flow takes no cofnig; it takes config, overrides, seeds"),
        ({"parameters": {"config": "ppo/cartpol"}}, "did you mean ppo/cartpole"),
        ({"parameters": {"config": "ppo/cartpole", "overrides": {"sed": 1}}}, "did you mean seed"),
        ({"entrypoint": SWEEP, "parameters": {"file": "ppo_cartpol"}}, "did you mean ppo_cartpole"),
        (
            {"entrypoint": SWEEP, "parameters": {"file": "ppo_cartpole", "overrides": {"trial": 1}}},
            "did you mean trials",
        ),
        ({"concurrency_limit": {"limit": 1, "strategy": "ENQUEUE"}}, "concurrency_limit: unknown key strategy"),
        ({"concurrency_limit": {"limit": 1, "collision_strategy": "WAIT"}}, "expected one of"),
        ({"concurrency_limit": 0}, "expected a whole number above 0"),
        ({"schedules": [{"cron": "0 0 31 2 *"}]}, "never fires"),
        ({"schedules": ["0 3 * * *"]}, "expected mappings"),
        ({"schedules": [{"cron": "0 3 * * *", "parameters": {"overrides": {"sed": 1}}}]}, "did you mean seed"),
        ({"tags": ["rl-training"]}, 'PREFECT_FLOWS_HEARTBEAT_FREQUENCY to "30", got none'),
    ],
)
def test_each_fault_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read_prefect_yaml(written(tmp_path, {**GOOD, **changes}), NOW)
    assert all(line.startswith(f"{tmp_path}/prefect.yaml: deployment ") for line in str(caught.value).splitlines())


def test_an_entrypoint_of_an_earlier_version_is_refused_with_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "train.py").write_text("raise ImportError('the project has a train of its own')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "flows"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match=r"'flows\.train\.train_flow' has moved; write rl_training\.flows\.train\.tr"):
        read_prefect_yaml(written(tmp_path, {**GOOD, "entrypoint": "flows.train.train_flow"}), NOW)
    sys.modules.pop("flows", None)


def test_all_faults_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    bad = [
        {**GOOD, "name": "a", "concurrency_limit": 0},
        {**GOOD, "name": "b", "schedule": {"cron": "1"}},
        "c",
        GOOD,
        GOOD,
    ]
    with pytest.raises(UserError) as caught:
        read_prefect_yaml(written(tmp_path, *bad), NOW)
    said = [line.removeprefix(f"{tmp_path}/prefect.yaml: ") for line in str(caught.value).splitlines()]
    assert [line.split(":")[0] for line in said] == [
        "deployment a", "deployment b", "deployment 3", "two deployments are named train-flow/mine",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": expected a list of deployments under the key deployments"),
        ("- a", ": expected a list of deployments under the key deployments"),
        ("deployments: {}", ": expected a list of deployments under the key deployments"),
        ("deployments: [", ":1:15: while parsing a flow node: expected the node content, but found '<stream end>'"),
        ("deployments:\n\t- a", ":2:1: got a tab in the indentation, expected spaces"),
        ("\0", ": can't be read: unacceptable character #x0000"),
    ],
)
def test_what_is_no_project_is_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "prefect.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        read_prefect_yaml(file, NOW)
    assert str(caught.value).startswith(f"{file}{message}")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.slow
def test_deploy_imports_nothing_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prefect.py").write_text("raise SystemExit('this is not Prefect')")
    (tmp_path / "prefect.yaml").write_text("deployments: []")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")  # a file without deployments needs no server
    with pytest.raises(UserError) as caught:
        _run_prefect_deploy(tmp_path / "prefect.yaml")
    assert "this is not Prefect" not in str(caught.value)
    assert "An entrypoint must be provided" in str(caught.value)
