"""The figures of a run: what they show, when they are drawn, and that they hold up nothing."""

import logging
import re

import pytest
from mlflow_store import ship_all, tracked_run

from rl_training import run_layout
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.system.paths import embedded_tracking_uri
from rl_training.tracking import json_files
from rl_training.tracking.metric_log import MetricLog
from rl_training.tracking.shipping.figures import CURVE, HISTOGRAM, Figures, LearningCurve, draw_evaluation_histogram
from rl_training.tracking.shipping.shipment import Shipment

EVALUATION = EvaluationResult((1, 2, 3, 4, 5), (0.0, 10.0, 10.0, 10.0, 20.0), (1, 1, 1, 1, 1))


def test_the_histogram_shows_every_episode_the_mean_and_its_interval():
    (axes,) = draw_evaluation_histogram(EVALUATION.to_dict(), "a run").axes
    *bars, interval = axes.patches
    assert [bar.get_height() for bar in bars if bar.get_height()] == [1, 3, 1]
    assert (bars[0].get_x(), bars[-1].get_x() + bars[-1].get_width()) == (0.0, 20.0)
    (mean,) = axes.lines
    assert mean.get_xdata()[0] == 10.0
    assert interval.get_x() == EVALUATION.ci_low < 10.0
    assert axes.get_title() == "a run: held-out episodes"


def test_equal_returns_and_a_single_episode_have_a_histogram():
    for returns in ((500.0,) * 3, (7.0,)):
        evaluation = EvaluationResult(tuple(range(len(returns))), returns, (1,) * len(returns))
        (axes,) = draw_evaluation_histogram(evaluation.to_dict(), "a run").axes
        bar = axes.patches[0]
        assert (bar.get_x(), bar.get_width(), bar.get_height()) == (returns[0] - 0.5, 1.0, len(returns))


def test_a_picture_is_drawn_when_there_is_something_new(tmp_path):
    figures, artifacts = Figures(tmp_path, "a run"), tmp_path / "artifacts"
    figures.draw(now=True)
    assert not artifacts.exists()

    figures.curve.add(10, {"rollout/episode_return_mean": 1.0})
    figures.draw(now=False)
    json_files.write_json(artifacts / run_layout.HELD_OUT, EVALUATION.to_dict())
    figures.draw(now=False)
    first = {name: (artifacts / name).read_bytes() for name in (CURVE, HISTOGRAM)}
    assert all(picture.startswith(b"\x89PNG") for picture in first.values())

    for name in (CURVE, HISTOGRAM):
        (artifacts / name).unlink()
    figures.curve.add(20, {"rollout/episode_return_mean": 2.0})
    figures.draw(now=False)  # a minute has not passed
    assert [path.name for path in artifacts.iterdir()] == [run_layout.HELD_OUT]
    figures.draw(now=True)
    assert (artifacts / CURVE).read_bytes() != first[CURVE]
    assert not (artifacts / HISTOGRAM).exists()


def test_success_rates_have_a_panel_of_their_own():
    curve = LearningCurve()
    curve.add(10, {"rollout/episode_return_mean": 1.0})
    assert len(curve.draw("a run").axes) == 1
    curve.add(20, {"rollout/success_rate": 0.25})
    curve.add(30, {"eval/success_rate": 0.5, "eval/return_mean": 7.0})
    _, successes = sorted(curve.draw("a run").axes, key=lambda axes: axes.get_ylabel())
    assert successes.get_ylabel() == "success rate"
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in successes.lines] == [
        ([20], [0.25]),
        ([30], [0.5]),
    ]


def note_of(client, run_id):
    return client.get_run(run_id).data.tags["mlflow.note.content"]


def pictures_of(client, run_id):
    """Returns the pictures that the description on the run's page shows, each of which must be an artifact."""
    there = {entry.path for entry in client.list_artifacts(run_id)}
    shown = re.findall(rf"!\[(.*?)\]\(get-artifact\?path=(.*?)&run_uuid={run_id}\)", note_of(client, run_id))
    assert all(name == path and path in there for name, path in shown)
    return [name for name, _ in shown]


def test_the_description_shows_the_pictures_that_are_there(client):
    run_dir = tracked_run(seed=3)
    run_id = ship_all(run_dir).address.run_id
    first, *others = note_of(client, run_id).split("\n\n")
    assert first == "**ppo** on **CartPole-v1**, seed 3, 100,000 steps."
    assert any(f"in the run directory `{run_dir}`" in paragraph for paragraph in others)

    log = MetricLog(run_dir)
    log.log(10, {"eval/return_mean": 9.0}, "eval")
    log.close()
    ship_all(run_dir)
    assert pictures_of(client, run_id) == [CURVE]

    json_files.write_json(run_dir / "artifacts" / run_layout.HELD_OUT, EVALUATION.to_dict())
    json_files.write_bytes(run_dir / "artifacts" / run_layout.EPISODE, b"GIF89a")
    ship_all(run_dir)
    assert pictures_of(client, run_id) == [CURVE, HISTOGRAM, "evaluation_episode.gif"]
    paragraphs = note_of(client, run_id).split("\n\n")
    assert [paragraph for paragraph in paragraphs if not paragraph.startswith("![")] == [first, *others]

    ship_all(run_dir)  # as after a resume
    assert pictures_of(client, run_id) == [CURVE, HISTOGRAM, "evaluation_episode.gif"]


def test_a_description_that_somebody_has_rewritten_stays(client):
    run_dir = tracked_run()
    run_id = ship_all(run_dir).address.run_id
    client.set_tag(run_id, "mlflow.note.content", "The one with the odd reward.")
    json_files.write_json(run_dir / "artifacts" / run_layout.HELD_OUT, EVALUATION.to_dict())
    ship_all(run_dir)
    assert HISTOGRAM in {entry.path for entry in client.list_artifacts(run_id)}
    assert note_of(client, run_id) == "The one with the odd reward."


def test_an_artifact_store_that_is_away_keeps_neither_metrics_nor_the_description_from_being_sent(client, monkeypatch):
    run_dir = tracked_run()
    json_files.write_json(run_dir / "artifacts" / run_layout.HELD_OUT, EVALUATION.to_dict())
    run_id = ship_all(run_dir).address.run_id
    log = MetricLog(run_dir)
    log.log(10, {"eval/return_mean": 9.0}, "eval")
    log.close()
    shipment = Shipment(run_dir, embedded_tracking_uri())
    shipment.open()
    monkeypatch.setattr(type(client), "list_artifacts", lambda *args: 1 / 0)
    shipment.ship()
    shipment.ship()
    monkeypatch.undo()
    assert client.get_run(run_id).data.metrics == {"eval/return_mean": 9.0}
    assert pictures_of(client, run_id) == [HISTOGRAM]


def test_a_lost_message_leaves_no_picture_out(client, monkeypatch):
    run_dir = tracked_run()
    ship_all(run_dir)
    json_files.write_json(run_dir / "artifacts" / run_layout.HELD_OUT, EVALUATION.to_dict())
    with monkeypatch.context() as patch:
        patch.setattr("rl_training.tracking.shipping.shipment.refresh_page", lambda *args, **options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ship_all(run_dir)
    run_id = ship_all(run_dir).address.run_id
    assert pictures_of(client, run_id) == [HISTOGRAM]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ([".venv/bin/rl-training", "train", "--config", "ppo/cartpole"], "rl-training train"),
        (["rl-training", "flow", "train", "--json"], "rl-training flow train"),
        (["rl-training", "resume", "/runs/x", "--set", "seed=1"], "rl-training resume"),
        (["my/script.py"], "script.py"),
    ],
)
def test_the_source_is_the_program(command, shown, home, monkeypatch):
    monkeypatch.setattr("sys.argv", command)
    assert json_files.read_json(tracked_run() / run_layout.TRACKING)["tags"]["mlflow.source.name"] == shown


def test_a_deployment_is_named_in_place_of_the_command_of_its_worker(home):
    run_dir = tracked_run({"prefect.deployment": "train-flow/nightly"})
    description = json_files.read_json(run_dir / run_layout.TRACKING)
    assert description["tags"]["mlflow.source.name"] == "train-flow nightly"
    assert description["started_by"] == "train-flow/nightly"


def test_a_picture_that_cannot_be_drawn_keeps_nothing_from_being_sent(client, caplog):
    run_dir = tracked_run()
    json_files.write_bytes(run_dir / "artifacts" / run_layout.HELD_OUT, b'{"returns": []}')
    with caplog.at_level(logging.WARNING):
        run_id = ship_all(run_dir).address.run_id
    assert "a picture could not be drawn" in caplog.text
    assert {entry.path for entry in client.list_artifacts(run_id)} == {
        "config.yaml",
        "evaluation.json",
        "metadata.json",
    }
