"""What the reports and tables of flows show, from the results that they get."""

from types import SimpleNamespace
from uuid import uuid4

import pytest

from rl_training.api.markdown_report import format_promotion_report, format_training_report
from rl_training.api.summary import format_evaluation
from rl_training.flows import artifacts_and_events, supervised_training
from rl_training.flows.supervised_training import FlowProgress
from rl_training.flows.tracked_run import TrackedRun
from rl_training.runs.evaluation_result import EvaluationResult, select_evaluation_numbers
from rl_training.runs.stopping import StopFlag
from rl_training.tracking.shipping.shipment import ShipReport

NUMBERS = {"is_success": (1.0, 0.0), "raw_return": (3.0, 5.0), "info/fuel": (0.5, None)}
RESULT = EvaluationResult((1, 2), (10.0, 20.0), (5, 7), 1, NUMBERS)
PLAIN = EvaluationResult((1, 2), (10.0, 20.0), (5, 7))


def test_a_report_shows_each_hash_beside_its_own_checkpoint():
    summary = {
        "algo": "ppo", "env_id": "E", "num_timesteps": 200, "stop_reason": "completed", "steps_per_second": 1.0,
        "run_id": "1", "ui_command": "http://mlflow/1", "run_dir": "/r", "inexact": [],
        "warnings": ["not deterministic"],
        "checkpoint": "/r/step_200", "policy_sha256": "of-the-last",
        "best_checkpoint": "/r/step_100", "best_policy_sha256": "of-the-best",
        "evaluation": None, "promotion": None,
    }  # fmt: skip
    rows = [line for line in format_training_report(summary).splitlines() if line.startswith("| ")]
    best = rows.index("| best checkpoint | `/r/step_100` |")
    last = rows.index("| last checkpoint | `/r/step_200` |")
    assert rows[best + 1] == "| its policy's sha256 | `of-the-best` |"
    assert rows[last + 1] == "| its policy's sha256 | `of-the-last` |"
    assert "| validation warned | not deterministic |" in rows


def promotion(candidate, champion):
    players = {name: None if one is None else select_evaluation_numbers(one.to_dict()) for name, one in
               (("candidate", candidate), ("champion", champion))}  # fmt: skip
    return {
        **players,
        **{
            "verdict": "HOLD",
            "reasons": ["because"],
            "model": "m",
            "version": "2",
            "previous_version": "1",
            "opponent_version": "1",
        },
        **{"run_id": "r", "record": "runs:/r/x", "alias": None, "forced": None, "numbers": {}, "moved": False},
    }


def test_a_verdict_compares_success_raw_return_infos_and_cut_episodes_where_there_are_any():
    report = format_promotion_report(promotion(RESULT, PLAIN), None, None)
    for row in (
        "| success rate | 0.5 |  |",
        "| mean raw return | 4 |  |",
        "| mean info/fuel | 0.5 |  |",
        "| cut episodes | 1 | 0 |",
    ):
        assert row in report.splitlines()
    plain = format_promotion_report(promotion(PLAIN, None), None, None)
    assert [word for word in ("success", "raw return", "info/", "cut") if word in plain] == []


def test_an_evaluation_in_words_names_what_the_infos_say():
    line = format_evaluation(select_evaluation_numbers(RESULT.to_dict()))
    assert "over 2 held-out episodes, of which 1 cut at evaluation.max_episode_steps; " in line
    assert line.endswith("; success rate 50.0 %; mean raw return 4.00; mean info/fuel 0.5")
    assert format_evaluation(select_evaluation_numbers(PLAIN.to_dict())).endswith("over 2 held-out episodes")


def test_the_table_of_episodes_has_a_column_for_each_number():
    assert artifacts_and_events._build_table(RESULT, "candidate ") == [
        {"seed": 1, "candidate return": 10.0, "candidate length": 5, "candidate is_success": 1.0,
         "candidate raw_return": 3.0, "candidate info/fuel": 0.5},
        {"seed": 2, "candidate return": 20.0, "candidate length": 7, "candidate is_success": 0.0,
         "candidate raw_return": 5.0, "candidate info/fuel": None},
    ]  # fmt: skip


def test_the_table_of_periodic_evaluations_has_success_raw_return_infos_and_cut_episodes(monkeypatch):
    tables = []
    monkeypatch.setattr(supervised_training, "create_progress_artifact", lambda *args, **options: uuid4())
    monkeypatch.setattr(
        supervised_training, "create_table_artifact", lambda rows, **options: tables.append(list(rows)) or uuid4()
    )
    monkeypatch.setattr(supervised_training, "emit_event", lambda *args, **options: None)
    progress = supervised_training.FlowProgress()
    for result in (RESULT, PLAIN):
        progress.evaluations.put({"num_timesteps": 100, **result.metrics("eval")})
    supervised_training.FlowReporter(progress, total_timesteps=100, run_uid="u")()
    ((shaped, plain),) = tables
    assert list(plain) == ["steps", "mean return", "95 % from", "95 % to", "episodes"]
    assert {name: value for name, value in shaped.items() if name not in plain} == {
        "success rate": 0.5,
        "raw return mean": 4.0,
        "cut episodes": 1.0,
        "info/fuel": 0.5,
    }


@pytest.mark.parametrize("is_deployed", [False, True])
def test_what_was_not_sent_is_in_the_log_of_a_deployment(is_deployed, monkeypatch, caplog):
    if is_deployed:
        monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "8c8cbc5c")
    rest = "2 values; `rl-training sync run` sends the rest"
    session = SimpleNamespace(finish=lambda status, stop_reason: ShipReport(1, 2, rest))
    run = TrackedRun(SimpleNamespace(), session, FlowProgress(), [], StopFlag())
    assert run.finish("FINISHED", stop_reason="completed") == rest
    assert caplog.messages == [rest] * is_deployed
