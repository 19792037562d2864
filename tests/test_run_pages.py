"""The names, tags and descriptions of runs in MLflow: what a reader on any machine learns, and can do next."""

import json
import shutil

import pytest
from mlflow_store import NETWORK, ship_all, tracked_run, write_policy
from tiny_tasks import PLAIN

import rl_training
from rl_training import run_layout
from rl_training.experiment.loading import config_from_mapping, config_of_checkpoint
from rl_training.promotion.promote import promote
from rl_training.runs.evaluation_result import EvaluationResult
from rl_training.runs.health_warnings import HealthWarning
from rl_training.runtime.run_utils import create_training_run, update_metadata
from rl_training.tracking import json_files
from rl_training.tracking.attempts import get_attempts
from rl_training.tracking.metric_log import MetricLog
from rl_training.tracking.run_description import describe_run

NIGHTLY = {"prefect.flow_run_id": "11-a", "prefect.flow": "train-flow", "prefect.deployment": "train-flow/nightly"}
BY_HAND = {"prefect.flow_run_id": "22-b", "prefect.flow": "resume-flow", "prefect.deployment": "resume-flow/default"}
PAGE = "https://prefect.example/runs/flow-run/"


def page_of(client, run_id):
    return client.get_run(run_id).data.tags["mlflow.note.content"]


def begin(run_dir, config, tags, from_step=0, later=0):
    """Writes the description of an attempt, as tracking does when it starts."""
    description = describe_run(run_dir, config, tags, from_step)
    description["process"]["created"] += later
    json_files.write_json(run_dir / run_layout.TRACKING, description)


def make_run(forked_from=None, **settings):
    config = config_from_mapping(
        {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 100_000, "num_envs": 8, **settings}
    )
    return create_training_run(config, forked_from=forked_from), config


def test_who_began_a_run_stays_and_every_attempt_is_listed_with_its_flow_run(client):
    run, config = make_run()
    begin(run.run_dir, config, {**NIGHTLY, "prefect.flow_run_url": f"{PAGE}11-a"})
    run_id = ship_all(run.run_dir).address.run_id
    assert "Started by `train-flow/nightly`" in page_of(client, run_id)
    assert "attempt 2" not in page_of(client, run_id)

    begin(run.run_dir, config, {**BY_HAND, "prefect.flow_run_url": f"{PAGE}22-b"}, from_step=500, later=5)
    assert ship_all(run.run_dir).address.run_id == run_id
    tags = client.get_run(run_id).data.tags
    assert tags["mlflow.source.name"] == "train-flow nightly"
    assert (tags["prefect.flow"], tags["prefect.deployment"]) == ("train-flow", "train-flow/nightly")
    assert (tags["prefect.flow_run.11-a"], tags["prefect.flow_run.22-b"]) == ("attempt 1", "attempt 2")
    assert [(attempt.flow_run, attempt.started_by) for attempt in get_attempts(client.get_run(run_id))] == [
        ("11-a", "train-flow/nightly"),
        ("22-b", "resume-flow/default"),
    ]
    page = page_of(client, run_id)
    assert f"Started by `train-flow/nightly` ([flow run 11-a]({PAGE}11-a)), in the run directory" in page
    assert "- attempt 2: from step 500, on " in page
    assert f"by `resume-flow/default` ([flow run 22-b]({PAGE}22-b))" in page


def test_a_run_that_a_flow_resumes_was_still_begun_by_the_command(client, monkeypatch):
    monkeypatch.setattr("sys.argv", ["rl-training", "train", "--config", "ppo/cartpole"])
    run, config = make_run()
    begin(run.run_dir, config, {})
    run_id = ship_all(run.run_dir).address.run_id
    begin(run.run_dir, config, BY_HAND, from_step=500, later=5)
    ship_all(run.run_dir)
    tags = client.get_run(run_id).data.tags
    assert tags["mlflow.source.name"] == "rl-training train"
    assert "prefect.deployment" not in tags
    assert "Started by `rl-training train --config ppo/cartpole`, in" in page_of(client, run_id)
    assert "(flow run `22-b`: `rl-training ui --prefect 22-b`)" in page_of(client, run_id)


def test_a_retraining_that_is_resumed_is_still_a_retraining(client):
    run, config = make_run()
    begin(run.run_dir, config, {"retrain.start": "scratch"})
    run_id = ship_all(run.run_dir).address.run_id
    begin(run.run_dir, config, {}, from_step=500, later=5)
    ship_all(run.run_dir)
    retrained = client.get_run(run_id)
    assert retrained.data.tags["rl_training.kind"] == "retraining"
    assert "-retrained-" in retrained.info.run_name


def test_a_promotion_goes_well_if_the_page_of_its_run_cannot_be_written(client, monkeypatch, caplog):
    from mlflow.exceptions import MlflowException

    def refuse(*args, **options):
        raise MlflowException("away")

    run_dir = tracked_run(network=NETWORK)
    checkpoint = write_policy(run_dir, 100, (1.0, 0.5))
    run_id = ship_all(run_dir).address.run_id
    monkeypatch.setattr("rl_training.tracking.shipping.run_page.refresh_page", refuse)
    settings = config_of_checkpoint(checkpoint, {"promotion.episodes": 20})
    assert promote(checkpoint, settings, run_id=run_id).version == "1"
    assert f"the description of run {run_id} can't be written: away" in caplog.text


def test_attempts_of_an_earlier_version_are_read(client):
    run_dir = tracked_run()
    run_id = ship_all(run_dir).address.run_id
    (attempt,) = json.loads(client.get_run(run_id).data.tags["attempts"])
    old = {name: attempt[name] for name in ("from_step", "host", "pid", "created")}
    client.set_tag(run_id, "attempts", json.dumps([old]))
    assert get_attempts(client.get_run(run_id))[0].started_by == ""
    ship_all(run_dir)
    assert "It is in the run directory" in page_of(client, run_id)


ORIGIN = {"run_uid": "f" * 32, "num_timesteps": 1_000, "policy_sha256": "0", "differences": []}
TUNED = {"carried": ["a"], "fresh": [], "statistics": "none"}


@pytest.mark.parametrize(
    ("origin", "settings", "tags", "name", "kind"),
    [
        (None, {}, {}, "CartPole-v1-ppo-seed3", "training"),
        (None, {"run_name": "mine"}, {}, "mine", "training"),
        (ORIGIN, {}, {}, "CartPole-v1-ppo-seed3-fork-UID", "fork"),
        (ORIGIN, {"run_name": "mine"}, {}, "mine-fork-UID", "fork"),
        ({**ORIGIN, "renamed": True}, {"run_name": "other"}, {}, "other", "fork"),
        ({**ORIGIN, "fine_tuning": TUNED}, {}, {}, "CartPole-v1-ppo-seed3-tuned-UID", "fine-tuning"),
        (None, {}, {"retrain.start": "scratch"}, "CartPole-v1-ppo-retrained-TIME", "retraining"),
        ({**ORIGIN, "fine_tuning": TUNED}, {}, {"retrain.start": "models:/m/1"}, "CartPole-v1-ppo-retrained-TIME",
         "retraining"),
    ],
)  # fmt: skip
def test_names_tell_forks_and_retrainings_from_the_run_that_they_come_from(home, origin, settings, tags, name, kind):
    run, config = make_run(origin, seed=3, **settings)
    description = describe_run(run.run_dir, config, tags)
    metadata = json_files.read_json(run.run_dir / run_layout.METADATA)
    date, _, time = metadata["started"][:16].partition("T")
    name = name.replace("UID", run.run_uid[:6]).replace("TIME", f"{date}-{time}".replace("-", "", 2).replace(":", ""))
    assert (description["run_name"], description["tags"]["rl_training.kind"]) == (name, kind)


def test_a_real_fork_has_a_name_of_its_own_unless_it_is_given_one(home):
    config = config_from_mapping({"algo": "ppo", **PLAIN, "total_timesteps": 200})
    first = rl_training.train(config, offline=True)
    names = []
    for given in ({}, {"run_name": "mine"}):
        fork = rl_training.resume(first.run_dir, total_timesteps=300, **given, offline=True)
        names.append(json_files.read_json(fork.run_dir / run_layout.TRACKING)["run_name"])
    assert names[0].startswith("case_envs:Plain-v0-ppo-seed0-fork-")
    assert names[1] == "mine"


@pytest.mark.parametrize(
    ("status", "reason", "error", "words"),
    [
        ("FINISHED", "completed", None, ["**Finished.**", "rl-training evaluate ID`", "rl-training promote ID`",
                                         "rl-training resume ID --set total_timesteps=STEPS`"]),
        ("FINISHED", "return_reached", None, ["**Finished** early", "evaluation.stop_at_return",
                                              "rl-training resume ID`"]),
        ("FINISHED", "callback", None, ["**Finished** early", "a callback ended it", "rl-training resume ID`"]),
        ("KILLED", "signal", None, ["**Stopped** by a signal", "rl-training resume ID`"]),
        ("KILLED", "killed", "it was killed", ["**Killed**: `it was killed`", "rl-training resume ID`"]),
        ("FAILED", None, "NaN in `loss`", ["**Failed**: `NaN in 'loss'`", "rl-training resume ID`"]),
    ],
)  # fmt: skip
def test_the_next_step_is_right_for_the_state(client, status, reason, error, words):
    run_dir = tracked_run()
    run_id = ship_all(run_dir).address.run_id
    assert "**Running** on" in page_of(client, run_id)
    ended = {"status": status, "stop_reason": reason, "error": error, "time": 1.0}
    ship_all(run_dir, lambda: ended)
    page = page_of(client, run_id)
    assert [word for word in words if word.replace("ID", run_id) not in page] == []
    assert "rl-training resume /" not in page  # a path is of use on one machine alone
    assert "Not all of it is in MLflow yet" not in page
    assert client.get_run(run_id).info.status == status


def test_a_page_whose_run_is_not_sent_completely_says_how_to_send_the_rest(client, monkeypatch):
    run_dir = tracked_run(network=NETWORK)
    run_id = ship_all(run_dir).address.run_id
    write_policy(run_dir, 100, (1.0, 0.5))
    with monkeypatch.context() as patch:
        patch.setattr("rl_training.tracking.shipping.shipment.send_checkpoint", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ship_all(run_dir, lambda: {"status": "FINISHED", "stop_reason": "completed", "time": 1.0})
    assert f"Not all of it is in MLflow yet. If this stays so, run `rl-training sync {run_dir}`" in page_of(
        client, run_id
    )
    ship_all(run_dir, lambda: {"status": "FINISHED", "stop_reason": "completed", "time": 1.0})
    assert "Not all of it" not in page_of(client, run_id)


def test_the_page_shows_what_the_episodes_say_besides_the_return(client):
    run_dir = tracked_run()
    numbers = {"is_success": (1.0, 0.0, 0.0, 0.0), "raw_return": (1.0, 2.0, 3.0, 6.0), "info/fuel": (0.5,) * 4}
    result = EvaluationResult((1, 2, 3, 4), (10.0, 10.0, 20.0, 20.0), (5,) * 4, 2, numbers)
    log = MetricLog(run_dir)
    log.log(100, result.metrics("heldout"), "heldout")
    log.close()
    page = page_of(client, ship_all(run_dir, lambda: {"status": "FINISHED", "time": 1.0}).address.run_id)
    assert "Over 4 held-out episodes: mean return 15.00 (95 % interval " in page
    assert "success rate 25.0 %, mean raw return 3.00, mean info/fuel 0.5, **2 episodes cut** at" in page


def test_metrics_and_tags_of_a_users_own_keep_nothing_from_being_sent(client, caplog):
    run_dir = tracked_run()
    log = MetricLog(run_dir)
    log.log(100, {"heldout/return_mean": 7.0}, "heldout")
    log.close()
    run_id = ship_all(run_dir, lambda: {"status": "FINISHED", "time": 1.0}).address.run_id
    assert "Held out: mean return 7.00." in page_of(client, run_id)
    client.set_tag(run_id, "attempt", "the first")
    write_policy(run_dir, 100, (1.0, 0.5))
    client.set_tag(run_id, "forked_from.run_uid", "x")
    shipment = ship_all(run_dir, lambda: {"status": "FAILED", "time": 1.0})
    assert shipment.describe_unsent() == ""
    assert f"the description of run {run_id} can't be written" in caplog.text
    assert client.get_run(run_id).info.status == "FAILED"


def test_warnings_of_validation_are_on_the_page_from_the_start(client):
    run, config = make_run()
    begin(run.run_dir, config, {})
    run_id = ship_all(run.run_dir).address.run_id
    assert "validation.warnings" not in client.get_run(run_id).data.tags  # nobody has validated
    for messages, shown in ((["not deterministic: x", "mask unused"], True), ([], False)):
        record = {"warnings": [{"code": "c", "message": message} for message in messages]}
        update_metadata(run, {"validation": record})
        begin(run.run_dir, config, {})
        ship_all(run.run_dir)
        tags = client.get_run(run_id).data.tags
        assert tags["validation.warnings"] == ("\n".join(messages) or "none")
        assert ("Validation warned:\n\n- not deterministic: x\n- mask unused" in tags["mlflow.note.content"]) is shown


def test_inexact_resumes_and_a_lost_best_checkpoint_are_on_the_page(client):
    run, config = make_run()
    begin(run.run_dir, config, {})
    resume = {"num_timesteps": 500, "fresh_episodes": [], "changed": ["threads 1 -> 2"]}
    lost = {"return_mean": 9.0, "num_timesteps": 500, "reason": "gone"}
    update_metadata(run, {"inexact": [resume], "lost_best": [lost]})
    page = page_of(client, ship_all(run.run_dir).address.run_id)
    assert "- not exact: resumed at step 500: sums may differ from here on (threads 1 -> 2)" in page
    assert "A best checkpoint was missing when the run was resumed" in page


def test_warnings_about_training_are_on_the_page_until_they_are_withdrawn(client):
    run, config = make_run()
    begin(run.run_dir, config, {})
    run_id = ship_all(run.run_dir).address.run_id
    assert "health" not in client.get_run(run_id).data.tags  # a healthy run
    warning = HealthWarning("q_values_diverged", 300, 500, "Q-values have grown from 1 to 900", "a lower tau")
    text = f"q_values_diverged: {warning}"
    for warnings, tag in (([warning.to_dict()], text), ([], "none")):
        update_metadata(run, {"health": warnings})
        ship_all(run.run_dir)
        assert client.get_run(run_id).data.tags["health"] == tag
        assert (f"Training has gone bad:\n\n- {text}" in page_of(client, run_id)) is bool(warnings)


def test_runs_forks_and_versions_link_each_other(client):
    parent = tracked_run(network=NETWORK)
    checkpoint = write_policy(parent, 100, (1.0, 0.5))
    address = ship_all(parent).address
    run, config = make_run({**ORIGIN, "run_uid": checkpoint.run_uid})
    begin(run.run_dir, config, {})
    fork = ship_all(run.run_dir).address.run_id
    link = (
        f"[{address.run_id}](#/experiments/{address.experiment_id}/runs/{address.run_id}?workflowType=machine_learning)"
    )
    assert f"Forked from run {link} at step 1,000." in page_of(client, fork)

    settings = config_of_checkpoint(checkpoint, {"promotion.episodes": 20})
    promote(checkpoint, settings, run_id=address.run_id)
    assert "Registered as [CartPole-v1, version 1](#/models/CartPole-v1/versions/1)." in page_of(client, address.run_id)
    assert (
        "`rl-training evaluate models:/CartPole-v1@champion`" in client.get_registered_model("CartPole-v1").description
    )
    experiment = client.get_experiment(address.experiment_id)
    assert "eval/return_mean" in experiment.tags["mlflow.note.content"]


def test_a_page_needs_nothing_of_the_machine_that_trained(client):
    """The orphan of a lost machine is ended by another; its page is made from MLflow alone."""
    from rl_training.tracking.shipping.run_page import refresh_page

    run_dir = tracked_run()
    run_id = ship_all(run_dir).address.run_id
    shutil.rmtree(run_dir)
    client.set_terminated(run_id, "KILLED")
    refresh_page(client, run_id)
    assert f"`rl-training resume {run_id}`" in page_of(client, run_id)
