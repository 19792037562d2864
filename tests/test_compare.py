"""Comparing runs: sources, groups, refusals and verdicts."""

import json
import math

import pytest
from finished_runs import STEPS, finished_run, group_of_runs, ship

import rl_training
from rl_training import run_layout
from rl_training.comparison.statistics import Estimate
from rl_training.comparison.verdicts import format_estimate, format_number
from rl_training.errors import UserError
from rl_training.runs.metadata import read_metadata
from rl_training.system.paths import embedded_tracking_uri
from rl_training.tracking import json_files
from rl_training.tracking.mlflow_names import COMPARISON, KIND, PHASE, SWEEP, SWEEP_UID, TRIAL
from rl_training.tracking.mlflow_run import RUN_UID
from rl_training.tracking.mlflow_store import connect

FAST, SLOW = {"learning_rate": 0.01}, {"learning_rate": 0.001}


def read_scores(comparison):
    return {each.group.name: each.scores[:, 0].tolist() for each in comparison.groups}


def test_the_order_in_which_the_runs_of_a_group_are_named_changes_nothing():
    runs = group_of_runs(1.0, 4.0, 2.0, **SLOW)
    first, again = (rl_training.compare(order) for order in (runs, runs[::-1]))
    assert read_scores(first) == read_scores(again) == {"A": [1.0, 4.0, 2.0]}
    assert [each.iqm for each in first.groups] == [each.iqm for each in again.groups]


def test_runs_that_differ_in_the_seed_alone_form_a_group():
    slow, fast = group_of_runs(1.0, 2.0, **SLOW), group_of_runs(3.0, 4.0, 5.0, first_seed=7, **FAST)
    found = rl_training.compare(slow, fast)
    assert read_scores(found) == {"A": [1.0, 2.0], "B": [3.0, 4.0, 5.0]}
    assert [each.group.differing for each in found.groups] == [SLOW, FAST]
    assert [each.group.label for each in found.groups] == ["learning_rate=0.001", "learning_rate=0.01"]
    assert [run.config.seed for run in found.groups[1].group.runs] == [7, 8, 9]


@pytest.mark.parametrize(
    "settings",
    [
        {"run_name": "other"},
        {"tags": ["x"]},
        {"experiment": "other"},
        {"logging": {"every": 7}},
        {"checkpoint": {"every": 7}},
        {"promotion": {"floor": 1.0}},
        {"evaluation": {"every": 7, "video": False, "num_envs": 2}},
    ],
    ids=str,
)
def test_settings_without_an_effect_on_the_score_do_not_divide_a_group(settings):
    found = rl_training.compare(finished_run(1.0), finished_run(2.0, seed=1, **settings))
    assert read_scores(found) == {"A": [1.0, 2.0]}
    assert found.verdicts == ()


def test_groups_of_several_algorithms_are_named_by_them():
    dqn = {"algo": "dqn", "num_envs": 1, "learning_starts": 100}
    ppo, plain, fast = finished_run(1.0), finished_run(2.0, **dqn), finished_run(3.0, gamma=0.5, **dqn)
    found = rl_training.compare(ppo, plain, fast)
    assert [each.group.label for each in found.groups] == ["ppo", "dqn, gamma=0.99", "dqn, gamma=0.5"]
    assert found.groups[0].group.differing["algo"] == "ppo"
    assert "buffer_size" not in found.groups[0].group.differing
    assert found.groups[1].group.differing["buffer_size"] > 0


def test_a_repeated_seed_is_no_further_run():
    first, again = finished_run(1.0, seed=3), finished_run(1.0, seed=3)
    found = rl_training.compare(first, again, finished_run(2.0, seed=4))
    assert read_scores(found) == {"A": [1.0, 2.0]}
    (left_out,) = found.left_out
    assert (left_out.run, left_out.reason) == (
        str(again),
        f"has the settings and the seed of {first}, so it is no further run",
    )


def test_a_run_that_is_named_twice_is_there_once():
    run_dir = finished_run(1.0)
    found = rl_training.compare(run_dir, str(run_dir), [run_dir])
    assert read_scores(found) == {"A": [1.0]}
    assert found.left_out == ()


NEXT = {"env_kwargs": {"sutton_barto_reward": True}}
WRAPPED = {"wrappers": ["TimeAwareObservation"]}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"env_id": "Acrobot-v1"}, 'env_id (another environment): "CartPole-v1" ({first}) and "Acrobot-v1" ({second})'),
        (NEXT, "env_kwargs.sutton_barto_reward (another environment): null ({first}) and true ({second})"),
        (WRAPPED, "wrappers (another environment): [] ({first}) and [{{"),
        ({"max_episode_steps": 50}, "max_episode_steps (another environment): null ({first}) and 50 ({second})"),
        ({"reset_options": {"low": 0}}, "reset_options.low (another environment): null"),
        ({"evaluation": {"env_id": "Acrobot-v1"}}, "env_id (another environment)"),
        ({"evaluation": {"episodes": 3}}, "evaluation.episodes (another evaluation): 10 ({first}) and 3 ({second})"),
        ({"evaluation": {"final_episodes": 3}}, "evaluation.final_episodes (another evaluation)"),
        ({"evaluation": {"seed": 3}}, "evaluation.seed (another evaluation)"),
        ({"evaluation": {"max_episode_steps": 3}}, "evaluation.max_episode_steps (another evaluation)"),
        ({"total_timesteps": 2_000}, "total_timesteps (another budget): 1000 ({first}) and 2000 ({second})"),
        ({"evaluation": {"stop_at_return": 9.0}}, "evaluation.stop_at_return (another budget): null"),
    ],
    ids=str,
)
def test_what_is_not_comparable_is_refused_by_the_name_of_the_setting(settings, said):
    first, second = finished_run(1.0), finished_run(2.0, **settings)
    with pytest.raises(UserError) as refused:
        rl_training.compare(first, second)
    assert said.format(first=first, second=second) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"training_wrappers": ["TimeAwareObservation"]},
        {"normalization": {"reward": False}},
        {"env_id": "Acrobot-v1", "evaluation": {"env_id": "CartPole-v1"}},
        {"device": "cpu"},
    ],
    ids=str,
)
def test_what_changes_training_alone_is_compared(settings):
    found = rl_training.compare(finished_run(1.0), finished_run(2.0, **settings))
    assert read_scores(found) == {"A": [1.0], "B": [2.0]}


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        ({"stop_reason": "signal"}, "was stopped at step 1,000 of 1,000, which is another budget"),
        ({"stop_reason": "callback"}, "was stopped at step 1,000 of 1,000, which is another budget"),
        ({"stop_reason": "pruned"}, "was stopped at step 1,000 of 1,000, which is another budget"),
        ({"status": "FAILED", "stop_reason": None}, "failed at step 1,000"),
        ({"status": "KILLED", "stop_reason": None}, "was killed at step 1,000 of 1,000"),
    ],
    ids=str,
)
def test_a_run_that_did_not_end_by_itself_is_refused_if_named_and_left_out_of_a_folder(tmp_path, run, reason):
    runs = [
        finished_run(1.0, run_dir=str(tmp_path / "a")),
        finished_run(2.0, seed=1, run_dir=str(tmp_path / "b"), **run),
    ]
    with pytest.raises(UserError) as refused:
        rl_training.compare(runs)
    said = f"{runs[1]} can't be compared, because it {reason}; leave it out, or train it to its end"
    assert str(refused.value) == said
    found = rl_training.compare(tmp_path)
    assert read_scores(found) == {"A": [1.0]}
    assert [(each.run, each.reason) for each in found.left_out] == [(str(runs[1]), reason)]


def test_a_run_without_the_metric_is_refused():
    run_dir = finished_run(None, curve={500: 1.0})
    with pytest.raises(UserError, match=r"because it has no heldout/return_mean"):
        rl_training.compare(run_dir)
    assert read_scores(rl_training.compare(run_dir, metric="eval")) == {"A": [1.0]}


def test_a_fork_is_refused_because_its_budget_is_not_its_own(tmp_path):
    run_dir = finished_run(1.0)
    metadata = json_files.read_json(run_dir / run_layout.METADATA)
    metadata["forked_from"] = {"run_uid": "7" * 32, "num_timesteps": 10, "differences": []}
    json_files.write_json(run_dir / run_layout.METADATA, metadata)
    with pytest.raises(UserError, match=f"because it continues run {'7' * 32}, whose steps are part of its budget"):
        rl_training.compare(run_dir)


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ([], "got no runs"),
        (["nothing-here"], "nothing-here: got neither a directory nor an experiment in MLflow"),
        (["5" * 32], "neither MLflow nor the home of rl_training has such a run or sweep"),
        (["models:/x@y"], "models:/x@y: got neither"),
        ([7], "got a int"),
    ],
)
def test_a_source_that_names_no_run_is_refused(sources, said):
    with pytest.raises(UserError, match=said):
        rl_training.compare(*sources)


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"holds no run: neither it nor a folder in it has metadata\.json"):
        rl_training.compare(tmp_path)


@pytest.mark.parametrize("confidence", [0.4, 1.0, math.nan])
def test_a_confidence_that_is_none_is_refused(confidence):
    with pytest.raises(UserError, match="confidence: got"):
        rl_training.compare("x", confidence=confidence)


def test_the_default_threshold_is_gymnasiums_or_that_of_the_settings():
    assert rl_training.compare(finished_run(1.0)).threshold == 475.0
    stopping = finished_run(1.0, evaluation={"stop_at_return": 30.0})
    assert rl_training.compare(stopping).threshold == 30.0
    assert rl_training.compare(stopping, threshold=7).threshold == 7
    other = finished_run(1.0, env_kwargs={"sutton_barto_reward": True})
    found = rl_training.compare(other)
    assert (found.threshold, found.groups[0].optimality_gap, found.groups[0].time_to_threshold) == (None, None, None)
    assert rl_training.compare(stopping, metric="heldout/success_rate").threshold is None


def test_the_statistics_of_a_group_are_those_of_its_runs():
    runs = [
        finished_run(8.0, seed=0, curve={400: 1.0, 800: 9.0}),
        finished_run(10.0, seed=1, curve={400: 5.0, 800: 7.0}),
        finished_run(12.0, seed=2, curve={400: 6.0, 800: 3.0}),
    ]
    (group,) = rl_training.compare(runs, threshold=9).groups
    assert (group.iqm.value, group.mean.value, group.median.value) == (10.0, 10.0, 10.0)
    assert group.optimality_gap.value == pytest.approx(1 / 3)
    assert (group.iqm.low, group.iqm.high) == (8.0, 12.0)  # all three draws are the same in 1 of 27
    assert group.time_to_threshold.to_dict() == {"reached": 1, "runs": 3, "median": None, "low": 800, "high": None}
    assert group.sample_efficiency.steps.tolist() == [400, 800]
    assert group.sample_efficiency.band.values.tolist() == [4.0, pytest.approx(19 / 3)]
    assert group.steps_per_second == 100.0


NOTHING = "nothing can be concluded about A and B, because "
LOW, HIGH = (1.0, 2.0, 3.0, 4.0, 5.0), (6.0, 7.0, 8.0, 9.0, 10.0)


@pytest.mark.parametrize(
    ("reference", "other", "finding", "text"),
    [
        (LOW, HIGH, "better", "B is better than A: probability of improvement 1.00 [1.00, 1.00], p = 0.008"),
        (HIGH, LOW, "worse", "B is worse than A: probability of improvement 0.00 [0.00, 0.00], p = 0.008"),
        ((1.0,), HIGH, "unclear", f"{NOTHING}A has a single seed: train at least 4 seeds each"),
        ((1.0,), (2.0,), "unclear", f"{NOTHING}A and B have a single seed: train at least 4 seeds each"),
        ((3.0, 3.0), (3.0, 3.0, 3.0), "unclear", "A and B are equal: every run scores 3.000"),
        (
            (1.0, 4.0, 4.5, 6.0),
            (2.0, 3.0, 5.0, 7.0),
            "unclear",
            "A and B can't be told apart: probability of improvement 0.56 [",
        ),
        (
            (1.0, 4.0),
            (2.0, 3.0),
            "unclear",
            "A and B can't be told apart: probability of improvement 0.50 [0.00, 1.00], p = 1.00; 2 and 2 seeds can't "
            "show a difference at this confidence, whatever their scores; they seem to be equally good, so no number "
            "of seeds would tell",
        ),
        (
            (1.0, 2.0, 3.0),
            (4.0, 5.0, 6.0),
            "unclear",
            "A and B can't be told apart: probability of improvement 1.00 [1.00, 1.00], p = 0.10; 3 and 3 seeds can't "
            "show a difference at this confidence, whatever their scores; about 6 seeds each would be needed if they "
            "differ as much as they seem to",
        ),
    ],
)  # fmt: skip
def test_the_verdict_says_what_the_scores_show(reference, other, finding, text):
    (verdict,) = rl_training.compare(group_of_runs(*reference, **SLOW), group_of_runs(*other, **FAST)).verdicts
    assert verdict.finding == finding
    assert verdict.text.startswith(text)


def test_a_group_that_wins_more_often_with_a_lower_mean_is_no_simple_winner():
    reference, other = [10.0] * 16, [11.0] * 11 + [-500.0] * 5  # the middle half has one of the five
    (verdict,) = rl_training.compare(group_of_runs(*reference, **SLOW), group_of_runs(*other, **FAST)).verdicts
    assert verdict.improvement.value == 11 / 16
    assert verdict.iqm_difference.value == (7 * 11.0 - 500.0) / 8 - 10.0
    assert verdict.finding == "unclear"
    (verdict,) = rl_training.compare(
        group_of_runs(*reference, **SLOW), group_of_runs(*other, **FAST), confidence=0.5
    ).verdicts
    assert verdict.finding == "better"
    assert verdict.text.endswith(", although its interquartile mean is lower")


def test_many_comparisons_are_corrected():
    groups = [group_of_runs(*LOW, **SLOW)]
    groups += [group_of_runs(*HIGH, gamma=gamma, **SLOW) for gamma in (0.9, 0.91, 0.92)]
    groups += [group_of_runs(*LOW, gamma=0.93, **SLOW)]
    found = rl_training.compare(groups)
    p = 2 / 252
    assert [verdict.p_value for verdict in found.verdicts] == pytest.approx([p, p, p, 1.0])
    assert [verdict.corrected_p_value for verdict in found.verdicts] == pytest.approx([4 * p, 4 * p, 4 * p, 1.0])
    assert found.verdicts[0].text.endswith("p = 0.032 after correction for 4 comparisons")


def test_seeds_that_the_correction_makes_too_few_are_said_to_be_too_few():
    groups = [group_of_runs(1.0, 2.0, 3.0, 4.0, **SLOW)]
    groups += [group_of_runs(5.0, 6.0, 7.0, 8.0, gamma=gamma, **SLOW) for gamma in (0.9, 0.91)]
    first, _ = rl_training.compare(groups).verdicts  # the least p-value of four and four is 2 / 70, and twice it 0.057
    assert first.finding == "unclear"
    assert "4 and 4 seeds can't show a difference at this confidence, whatever their scores" in first.text
    assert first.text.endswith("; about 7 seeds each would be needed if they differ as much as they seem to")


def test_three_seeds_that_do_not_overlap_differ_at_90_percent():
    slow, fast = group_of_runs(1.0, 2.0, 3.0, **SLOW), group_of_runs(4.0, 5.0, 6.0, **FAST)
    (verdict,) = rl_training.compare(slow, fast, confidence=0.9).verdicts
    assert verdict.p_value == 0.1  # 2 / C(6, 3)
    assert verdict.finding == "better"
    (verdict,) = rl_training.compare(slow[:2], fast[:2], confidence=0.9).verdicts
    assert verdict.text.endswith(
        "can't show a difference at this confidence, whatever their scores; about 5 seeds "
        "each would be needed if they differ as much as they seem to"
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metadata.json", {"started": "yesterday"}),
        ("metadata.json", {"started": "0001-01-01T00:00:00"}),
        ("metadata.json", {"started": "9999-12-31T23:59:59-12:00"}),
        ("status.json", None),
    ],
)
def test_a_run_with_a_damaged_record_is_refused_if_named_and_left_out_of_a_folder(tmp_path, name, content):
    good = finished_run(1.0, run_dir=tmp_path / "good")
    bad = finished_run(2.0, seed=1, run_dir=tmp_path / "bad")
    path = bad / name
    if content is None:
        path.unlink()
        path.mkdir()
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), **content}))
    with pytest.raises(UserError, match=f"^{bad} can't be read: "):
        rl_training.compare(bad)
    found = rl_training.compare(good.parent)
    assert read_scores(found) == {"A": [1.0]}
    assert [each.run for each in found.left_out] == [str(bad)]


def test_values_in_mlflow_that_are_no_numbers_have_no_part_in_a_comparison(tmp_path):
    curve = {500: 1.0, STEPS: 2.0}
    first, second = (ship(finished_run(1.0, curve=curve, seed=seed)) for seed in (1, 2))
    client = connect(embedded_tracking_uri())
    client.log_metric(first, "eval/return_mean", math.nan, step=500)
    client.log_metric(second, "eval/return_mean", math.inf, step=700)
    client.log_metric(second, "time/steps_per_second", math.nan, step=STEPS + 1)
    found = rl_training.compare(first, second, threshold=1.5)
    assert found.groups[0].sample_efficiency.steps.tolist() == [STEPS]
    assert found.groups[0].time_to_threshold.median == STEPS
    assert found.groups[0].steps_per_second == 100.0
    json.dumps(found.to_dict(), allow_nan=False)
    client.log_metric(first, "heldout/return_mean", math.inf, step=STEPS + 1)
    with pytest.raises(UserError, match="has a heldout/return_mean that is no number, or too large a one"):
        rl_training.compare(first, second)


def test_few_seeds_and_other_versions_are_noted():
    assert rl_training.compare(finished_run(1.0, curve={500: 1.0})).notes == ()
    (note,) = rl_training.compare(
        finished_run(1.0, curve={500: 1.0}), group_of_runs(1.0, 2.0, curve={500: 1.0}, **FAST)
    ).notes
    assert note.startswith("Intervals from fewer than 10 seeds are too narrow")
    (note,) = rl_training.compare(group_of_runs(1.0, 2.0, curve={500: 1.0})).notes
    assert note.startswith("Intervals from fewer than 10 seeds are too narrow")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (12345.6, "12,346"),
        (-123.456, "-123.5"),
        (0.0123, "0.01230"),
        (1e-7, "1e-07"),
        (2.5e12, "2.5e+12"),
    ],
)
def test_numbers_have_four_significant_digits(value, text):
    assert format_number(value) == text


def test_the_ends_of_an_interval_have_as_many_digits_as_the_largest_needs():
    assert format_estimate(Estimate(98.7654, 9.87654, 123.456)) == "98.8 [9.9, 123.5]"
    assert format_estimate(Estimate(0.5, None, None), 2) == "0.50"


def test_runs_in_mlflow_are_compared_like_their_directories(tmp_path):
    run_dirs = group_of_runs(1.0, 2.0, experiment="in-mlflow", curve={500: 3.0}, **SLOW)
    run_dirs += group_of_runs(4.0, 5.0, experiment="in-mlflow", curve={500: 6.0}, **FAST)
    run_ids = [ship(run_dir) for run_dir in run_dirs]
    here = rl_training.compare(run_dirs).to_dict()
    for sources in (run_ids, [f"runs:/{run_id}" for run_id in run_ids]):
        there = rl_training.compare(*sources).to_dict()
        assert [group.pop("runs") for group in there["groups"]] != []
        for group in here["groups"]:
            group.pop("runs", None)
        assert there == here
    scores = read_scores(rl_training.compare("in-mlflow")).values()  # in the order of their starts, to the second
    assert sorted(map(sorted, scores)) == [[1.0, 2.0], [4.0, 5.0]]


def test_a_run_uid_names_the_directory_in_the_home():
    run_dir = finished_run(3.0)
    found = rl_training.compare(read_metadata(run_dir)["run_uid"])
    assert found.groups[0].group.runs[0].run_dir == str(run_dir)


def test_a_misspelled_experiment_is_suggested():
    ship(finished_run(1.0, experiment="well-known"))
    with pytest.raises(UserError, match=r"did you mean the experiment well-known\?"):
        rl_training.compare("well-know")


def ship_trials(uid, experiment, *trials):
    """Sends the runs of a sweep, each given as phase, point and score; returns the sweep's MLflow run."""
    for i, (phase, point, score) in enumerate(trials):
        run_dir = finished_run(score, seed=i, experiment=experiment, gamma=1 - 0.1 * (point + 1))
        ship(run_dir, {SWEEP_UID: uid, TRIAL: f"t{point:04d}-s{i}", PHASE: phase})
    client = connect(embedded_tracking_uri())
    experiment_id = client.get_experiment_by_name(experiment).experiment_id
    return client.create_run(experiment_id, tags={KIND: SWEEP, RUN_UID: uid}).info.run_id


def test_of_a_sweep_the_confirmed_points_are_compared():
    trials = ("search", 0, 9.0), ("search", 1, 8.0), ("confirmation", 2, 1.0), ("confirmation", 2, 2.0)
    run_id = ship_trials("c" * 32, "searched", *trials)
    for source in ("c" * 32, run_id, "searched"):
        found = rl_training.compare(source)
        assert read_scores(found) == {"A": [1.0, 2.0]}
        assert found.sweep == (None if source == "searched" else run_id)
        (left_out,) = found.left_out
        assert left_out.run.startswith("2 runs of ")
        assert left_out.reason == "belong to the search of a sweep, whose scores have chosen its settings"
    assert rl_training.compare(run_id).log() == run_id


def test_a_sweep_over_seeds_alone_has_chosen_nothing():
    run_id = ship_trials("e" * 32, "only-seeds", ("search", 0, 1.0), ("search", 0, 2.0))
    for source in (run_id, "only-seeds"):
        assert read_scores(rl_training.compare(source)) == {"A": [1.0, 2.0]}


def test_the_runs_of_searches_are_left_out_of_a_folder(tmp_path):
    for i, phase in enumerate(("search", "search", "confirmation")):
        run_dir = finished_run(float(i), seed=i, run_dir=str(tmp_path / str(i)), experiment="in-a-folder")
        ship(run_dir, {SWEEP_UID: "f" * 32, TRIAL: f"t{i:04d}-s{i}", PHASE: phase})
    assert read_scores(rl_training.compare(tmp_path)) == {"A": [2.0]}


def test_a_sweep_that_has_confirmed_nothing_is_refused():
    ship_trials("d" * 32, "begun", ("search", 0, 1.0), ("search", 1, 2.0))
    with pytest.raises(UserError, match=f"sweep {'d' * 32} has confirmed no settings yet"):
        rl_training.compare("d" * 32)
    with pytest.raises(UserError, match="no run is left to compare: 2 runs of begun belong to the search of a sweep"):
        rl_training.compare("begun")


def test_a_comparison_is_logged_to_a_run_of_its_own_kind():
    run_dirs = group_of_runs(*LOW, experiment="logged", **SLOW) + group_of_runs(*HIGH, experiment="logged", **FAST)
    for run_dir in run_dirs[:1]:
        ship(run_dir)
    found = rl_training.compare(run_dirs)
    client, run_id = connect(embedded_tracking_uri()), found.log()
    run = client.get_run(run_id)
    assert run.data.tags[KIND] == COMPARISON
    assert run.info.status == "FINISHED"
    assert found.verdicts[0].text in run.data.tags["mlflow.note.content"]
    assert client.get_experiment(run.info.experiment_id).name == "logged"
    assert sorted(entry.path for entry in client.list_artifacts(run_id)) == ["comparison.html", "comparison.json"]
    assert read_scores(rl_training.compare("logged")) == {"A": [1.0]}
    with pytest.raises(UserError, match="is a comparison run; expected a training run"):
        rl_training.compare(run_id)
