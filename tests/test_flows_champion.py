"""promote-flow and evaluate-flow: who becomes champion, when its performance has dropped, and what Prefect shows."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flow_records import artifacts, events, task_states
from mlflow_store import BAD, GOOD, run_with_policy
from prefect.exceptions import ParameterTypeError
from received_runs import made_elsewhere, received

from rl_training.cli.app import run
from rl_training.errors import ModuleRefused
from rl_training.flows.evaluate import evaluate_flow
from rl_training.flows.promote import promote_flow
from rl_training.flows.resume import resume_flow
from rl_training.system.paths import embedded_tracking_uri

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("flow_home")]

MODEL = {"promotion": {"model": "carts", "episodes": 20}}
CHAMPION = "models:/carts@champion"
CARTS = "gymnasium.envs.classic_control"
UI = "http://127.0.0.1:5999"


@pytest.fixture(scope="module")
def story(flow_home: Path) -> Any:
    return tell_story()


@cache  # a process may leave this module and come back, to the same home
def tell_story() -> SimpleNamespace:
    """A bad policy becomes the first champion, a good one follows, and then the world gets worse for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RL_TRAINING_MLFLOW_UI", f"{UI}/")
        (bad, bad_run), (good, good_run) = run_with_policy(BAD, seed=1), run_with_policy(GOOD, seed=2)
        first = promote_flow(bad_run, MODEL, return_state=True)
        better = promote_flow(str(good.path), MODEL, return_state=True)
        again = promote_flow(good_run, MODEL)
        well = evaluate_flow(CHAMPION, return_state=True)
        worse = {"evaluation.max_episode_steps": 30}
        dropped = evaluate_flow(CHAMPION, roll_back=True, overrides=worse, return_state=True)
    return SimpleNamespace(**locals())


def flow_run_of(state: Any) -> str:
    return str(state.state_details.flow_run_id)


def test_promote_flow_decides_and_shows_both_tables(story: Any, flow_client: Any) -> None:
    first, better = story.first.result(), story.better.result()
    assert (first["verdict"], first["version"], first["alias"], first["champion"]) == ("PROMOTE", "1", "champion", None)
    assert (better["verdict"], better["version"], better["previous_version"]) == ("PROMOTE", "2", "1")
    assert better["candidate"]["return_mean"] == 500.0 > 20.0 > better["champion"]["return_mean"]
    assert task_states(flow_run_of(story.better), expected=1) == [("promote-candidate", "Completed", 1)]
    assert json.loads(json.dumps(better, allow_nan=False)) == better
    rows = json.loads(artifacts(flow_run_of(story.better), "table")["promotion-episodes"])
    record = flow_client.download_artifacts(story.good_run, f"promotions/{better['decision_id']}.json")
    evaluation = json.loads(Path(record).read_text())["champion"]["evaluation"]
    assert [row["seed"] for row in rows] == evaluation["seeds"]
    assert [row["champion return"] for row in rows] == evaluation["returns"]
    assert [row["candidate return"] for row in rows] == [500.0] * 20
    (row, *_) = json.loads(artifacts(flow_run_of(story.first), "table")["promotion-episodes"])
    assert list(row) == ["seed", "candidate return", "candidate length"]


def test_the_verdict_in_markdown_has_reasons_numbers_and_links(story: Any, flow_client: Any) -> None:
    better = story.better.result()
    texts = artifacts(flow_run_of(story.better), "markdown")
    lines = texts["promotion-verdict"].splitlines()
    assert lines[:3] == [
        "# PROMOTE: carts, version 2",
        "",
        "PROMOTE: registered model carts, version 2, now champion",
    ]
    assert f"- {better['reasons'][-1]}" in lines
    assert "|  | candidate, version 2 | champion, version 1 |" in lines
    (mean,) = [line for line in lines if line.startswith("| mean return ")]
    assert mean == f"| mean return | 500.00 | {better['champion']['return_mean']:,.2f} |"
    experiment = flow_client.get_run(story.good_run).info.experiment_id
    page = f"{UI}/#/experiments/{experiment}/runs/{story.good_run}?workflowType=machine_learning"
    assert f"| MLflow run | [{story.good_run}]({page}) |" in lines
    assert texts["mlflow-run"] == f"[MLflow run]({page})"
    assert f"| registered version | [carts, version 2]({UI}/#/models/carts/versions/2) |" in lines


def test_evaluate_flow_plays_the_champion_and_finds_it_as_good_as_it_was(story: Any, flow_client: Any) -> None:
    well = story.well.result()
    assert (well["version"], well["number"], well["is_champion"]) == ("2", 1, True)
    assert (well["dropped"], well["rolled_back"]) == (False, None)
    assert well["evaluation_id"] == flow_run_of(story.well)
    assert task_states(flow_run_of(story.well), expected=1) == [("monitor", "Completed", 1)]
    rows = json.loads(artifacts(flow_run_of(story.well), "table")["evaluation-episodes"])
    assert [row["return"] for row in rows] == [500.0] * 20
    report = artifacts(flow_run_of(story.well), "markdown")["evaluation-report"]
    assert report.startswith("# carts, version 2: no drop\n\nmean return 500.00")
    page = artifacts(flow_run_of(story.well), "markdown")["mlflow-run"]
    assert f"{UI}/#/experiments/" in page
    assert page.endswith(f"/runs/{well['run_id']}?workflowType=machine_learning)")
    assert flow_client.get_run(well["run_id"]).data.tags["registered_model"] == "carts"


def test_a_champion_that_has_dropped_is_rolled_back_where_that_is_asked_for(story: Any, flow_client: Any) -> None:
    dropped = story.dropped.result()
    assert (dropped["dropped"], dropped["is_champion"], dropped["version"]) == (True, True, "2")
    rolled_back = dropped["rolled_back"]
    assert (rolled_back["version"], rolled_back["previous_version"]) == ("1", "2")
    assert rolled_back["reason"].startswith("evaluation 2: the mean return is 30, at most ")
    assert str(flow_client.get_model_version_by_alias("carts", "champion").version) == "1"
    names = [name for name, _, _ in task_states(flow_run_of(story.dropped), expected=2)]
    assert names == ["monitor", "roll-back"]
    texts = artifacts(flow_run_of(story.dropped), "markdown")
    assert texts["evaluation-report"].startswith("# carts, version 2: DROPPED\n")
    assert texts["rollback-report"].startswith("# carts: rolled back to version 1\n")


def test_each_change_of_the_champion_is_one_event(story: Any) -> None:
    (dropped,) = events("rl.champion.dropped", "rl-training.model.carts", expected=1)
    assert dropped == {name: value for name, value in story.dropped.result().items() if name != "rolled_back"}
    promoted = events("rl.champion.promoted", "rl-training.model.carts", expected=2)
    assert [(event["version"], event["previous_version"]) for event in promoted] == [("1", None), ("2", "1")]
    assert promoted[1] == {**story.better.result(), "page": promoted[1]["page"]}
    assert (story.again["alias"], story.again["moved"]) == ("champion", False)


def test_nonsense_parameters_fail_at_once_and_are_not_retried(story: Any, flow_client: Any) -> None:
    versions = len(flow_client.search_model_versions("name = 'carts'"))
    with pytest.raises(ParameterTypeError, match="episodes"):
        evaluate_flow(CHAMPION, episodes=0)
    faults = [
        (evaluate_flow, {"source": CHAMPION, "episodes": 3}, "promotion.episodes: got 3", 1),
        (evaluate_flow, {"source": CHAMPION, "overrides": ["learning_rate=1"]}, "an evaluation may set promotion.*", 1),
        (evaluate_flow, {"source": str(story.good.path), "roll_back": True}, "only a champion can be rolled back", 0),
        (promote_flow, {"candidate": story.good_run, "overrides": {"promotion": {"flor": 1}}}, "promotion.flor", 1),
        (promote_flow, {"candidate": story.good_run, "overrides": MODEL, "force": " "}, "needs a reason", 1),
        (promote_flow, {"candidate": "nowhere"}, "'nowhere' is no checkpoint", 1),
    ]
    for flow, parameters, says, tasks in faults:
        state = flow(**parameters, return_state=True)
        assert state.is_failed()
        assert says in str(state.message)
        assert [runs for _, _, runs in task_states(flow_run_of(state), expected=tasks)] == [1] * tasks
    assert len(flow_client.search_model_versions("name = 'carts'")) == versions


def test_without_a_champion_only_a_schedule_has_nothing_to_do(
    story: Any, flow_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow_client.create_registered_model("never-promoted")
    version = flow_client.get_model_version("carts", "1")
    flow_client.create_model_version("never-promoted", version.source)
    where = f"MLflow at {embedded_tracking_uri()}"
    faults = {
        "models:/cart@champion": f"{where} has no version of a registered model 'cart'",
        "models:/never-promoted@champion": f"none of the 1 versions of 'never-promoted' in {where} is champion; "
        "`rl-training promote models:/never-promoted/1` offers the newest",
        "models:/carts@champoin": f"models:/carts@champoin: {where} has no such thing: ",
        "models:/carts/77": f"models:/carts/77: {where} has no such thing: ",
    }
    by_hand = {source: evaluate_flow(source, return_state=True) for source in faults}
    monkeypatch.setattr("rl_training.flows.tasks.is_scheduled", lambda: True)
    scheduled = {source: evaluate_flow(source, return_state=True) for source in faults}
    for source, says in faults.items():
        assert (by_hand[source].name, says in by_hand[source].message) == ("Failed", True), by_hand[source].message
        assert task_states(flow_run_of(by_hand[source]), expected=1) == [("monitor", "Failed", 1)]
        assert says in scheduled[source].message
    assert [state.name for state in scheduled.values()] == ["Skipped", "Skipped", "Failed", "Failed"]
    assert scheduled["models:/cart@champion"].result() == {"skipped": faults["models:/cart@champion"]}


def test_the_command_line_prints_the_results(story: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Version 1 is champion again: nine steps an episode are all that it comes to, and ever came to."""
    assert run(["flow", "evaluate", CHAMPION, "--episodes", "20", "--json"]) == 0
    evaluated = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (evaluated["version"], evaluated["dropped"], evaluated["number"]) == ("1", False, 3)
    assert (
        run(["flow", "promote", story.bad_run, "--set", "promotion.model=carts", "--set", "promotion.episodes=20"]) == 0
    )
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "PROMOTE, judged by nothing but being first: registered model carts, version 1, now champion"
    assert lines[-1].startswith(f"record: runs:/{story.bad_run}/promotions/")
    assert run(["flow", "promote", "nowhere"]) == 2


def test_a_received_runs_module_needs_the_word_of_the_flow_runs_parameter(tmp_path: Path) -> None:
    run_dir = str(received(made_elsewhere(tmp_path), tmp_path / "run", {"env_id": f"{CARTS}:CartPole-v1"}))
    for flow, parameters in (
        (evaluate_flow, {"source": run_dir}),
        (promote_flow, {"candidate": run_dir}),
        (resume_flow, {"source": run_dir, "overrides": {"total_timesteps": 128}}),
    ):
        with pytest.raises(ModuleRefused, match="env_id names the module gymnasium"):
            flow(**parameters)
    result = evaluate_flow(run_dir, episodes=20, allow_modules=[CARTS])
    assert result["evaluation"]["episodes"] == 20
