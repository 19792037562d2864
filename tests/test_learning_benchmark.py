"""The learning benchmark: its tasks, its statistics of returns, what it stores, and the page with its results."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from bad_runs import PPO, make
from waiting import LIMIT, wait_for

from benchmarks.harness import RESULTS, write_json
from benchmarks.learning.config_rows import summarize
from benchmarks.learning.report import PAGE, draw, make_curves, read_peer_results, read_results, update_page
from benchmarks.learning.runs import make_seed, read_warnings, strip_code, thin
from benchmarks.learning.tables import format_results, format_warnings
from benchmarks.learning.tasks import TASKS
from rl_training.experiment.loading import load_config
from rl_training.tracking.metric_log import MetricLog

ROOT = Path(__file__).resolve().parents[1]
ACROBOT = next(task for task in TASKS if task.name == "dqn-acrobot")


def result(means: list[float], evaluations: list[list[list[float]]]) -> dict:
    seeds = [
        {"seed": i, "return_mean": mean, "num_timesteps": 100_000, "evaluation_returns": points}
        for i, (mean, points) in enumerate(zip(means, evaluations, strict=True))
    ]
    return {"summary": summarize(np.array(means)), "seeds": seeds}


def test_every_shipped_config_has_a_row():
    assert {task.config for task in TASKS} == {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").glob("*/*.yaml")
    }


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_tasks_config_is_what_it_says(task):
    config = load_config(ROOT / task.config, task.overrides)
    assert (config.algo.upper(), config.env_id) == (task.algo, task.env_id)
    assert config.total_timesteps <= task.steps


def test_the_aggregate_leaves_out_the_best_and_the_worst_of_five():
    summary = summarize(np.array([1.0, 2.0, 3.0, 4.0, 1000.0]))
    assert (summary["iqm"], summary["lowest"], summary["mean"], summary["seeds"]) == (3.0, 1.0, 202.0, 5)
    assert 1.0 <= summary["iqm_low"] <= 3.0 <= summary["iqm_high"] <= 1000.0


def test_of_three_it_is_the_mean_and_of_two_there_is_no_interval():
    assert summarize(np.array([1.0, 2.0, 6.0]))["iqm"] == 3.0
    assert summarize(np.array([7.0, 7.0, 7.0])).items() >= {"iqm_low": 7.0, "iqm_high": 7.0}.items()
    assert "iqm_low" not in summarize(np.array([1.0, 2.0]))


def test_a_row_has_our_numbers_beside_the_published_ones():
    missed = result([-90.0] * 5, [[[100_000, -90.0]]] * 5)
    assert format_results({ACROBOT: missed}).splitlines()[2] == (
        "| DQN Acrobot-v1 | 100,000 | -90.0 [-90.0, -90.0] | -90.0 | 5 | -80 | **no** | -76.6 ± 11.8 | 100,000 "
        "| not recorded |"
    )
    assert "| 2 | -80 | yes |" in format_results({ACROBOT: result([-80.0, -80.0], [[[1, -80.0]]] * 2)})


def warned(*warnings: tuple[str, int | None]) -> dict:
    return {"health": [{"kind": kind, "step": 10, "withdrawn": end, "text": None} for kind, end in warnings]}


FELL, SAME = "evaluation_fell", "returns_never_differ"


@pytest.mark.parametrize(
    ("runs", "text"),
    [
        ([{}, {}], "not recorded"),
        ([warned(), warned()], "silent"),
        ([warned(), {}], "silent, 1 not recorded"),
        ([warned((FELL, None)), warned(), warned((SAME, None))], f"`{FELL}` 1 of 3, `{SAME}` 1 of 3"),
        ([warned((FELL, 20)), warned((FELL, None)), {}], f"`{FELL}` 2 of 2 (1 withdrawn), 1 not recorded"),
        ([warned((FELL, 20), (FELL, None))], f"`{FELL}` 1 of 1"),  # withdrawn, and raised again
        ([warned((FELL, 20), (FELL, 40))], f"`{FELL}` 1 of 1 (1 withdrawn)"),
    ],
)
def test_a_row_says_how_many_seeds_raised_which_warning(runs, text):
    assert format_warnings(runs) == text


def test_a_seed_keeps_the_warnings_that_its_run_raised(tmp_path, monkeypatch):
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path))
    trainer = make(PPO, env_id="bad_runs:Barren-v0", total_timesteps=1_000)
    trainer.callbacks.append(MetricLog(trainer.run.run_dir))
    (warning,) = read_warnings(trainer.train().run_dir)
    # Points are 100 steps apart, so the first two that are a third of 1,000 steps apart are those at 100 and 500.
    assert (warning["kind"], warning["step"], warning["withdrawn"]) == (SAME, 500, None)
    assert warning["text"].startswith("the returns of all ")
    assert warning["text"].endswith("a reward on the way to the goal (training_wrappers)")


def test_a_seed_keeps_withdrawn_warnings_without_their_text(tmp_path):
    lines = [(100, f"health/{FELL}", 1.0), (200, f"health/{SAME}", 1.0), (300, f"health/{FELL}", 0.0)]
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": step, "metrics": {name: value}}) + "\n" for step, name, value in lines)
    )
    held = {"kind": SAME, "since": 50, "step": 200, "seen": "equal", "advice": "explore"}
    run = {"run_uid": "u", "started": "s", "command": [], "versions": {}, "git": None, "health": [held]}
    (tmp_path / "metadata.json").write_text(json.dumps(run))
    assert read_warnings(tmp_path) == [
        {"kind": FELL, "step": 100, "withdrawn": 300, "text": None},
        {"kind": SAME, "step": 200, "withdrawn": None, "text": "equal, since step 50; what usually helps: explore"},
    ]


def test_the_middle_curve_is_the_aggregate_where_all_seeds_were_evaluated():
    values = [1.0, 2.0, 3.0, 4.0, 1000.0]
    shown = make_curves(result(values, [[[10, value], [20, 2 * value]] for value in values[:4]] + [[[10, 1000.0]]]))
    assert shown.middle == [(10, 3.0)]
    assert shown.seeds[3] == [(10, 4.0), (20, 8.0)]


def test_the_picture_is_drawn_of_results_alone(tmp_path):
    draw({ACROBOT: result([-80.0, -70.0], [[[10, -500.0], [20, -75.0]]] * 2)}, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_shows_what_the_results_say():
    page = PAGE.read_text(encoding="utf-8")
    shown = update_page(page, read_results(RESULTS), read_peer_results(RESULTS))
    assert shown == page, "run: python -m benchmarks.learning.report"


def test_a_long_curve_is_thinned_and_keeps_its_end():
    curve = [[float(step), 0.0] for step in range(1, 1001)]
    assert len(thin(curve)) == 200
    assert thin(curve)[-1] == [1000.0, 0.0]
    assert thin(curve[:150]) == curve[:150]


def test_comments_and_docstrings_are_not_code():
    assert strip_code('"""A."""\nX = 1\n"""B."""\n') == strip_code("X = 1  # C\n")
    assert strip_code("X = 1") != strip_code("X = 2")


def test_a_seed_is_known_by_all_that_decides_it():
    def key(number: int = 0, overrides: tuple[str, ...] = (), code: str = "a") -> str:
        return make_seed("ppo-cartpole", ROOT / "configs/ppo/cartpole.yaml", number, overrides, code).key()

    assert key() == key(overrides=("job=another", "gamma=0.98"))  # the file's own gamma; a job decides nothing
    assert len({key(), key(1), key(overrides=("gamma=0.9",)), key(code="b")}) == 4


@pytest.mark.parametrize(("algo", "kind"), [("ppo", "native"), ("dqn", "sync")])
def test_a_seed_has_the_vectorization_that_its_run_chooses(algo, kind):
    seed = make_seed(f"{algo}-cartpole", ROOT / f"configs/{algo}/cartpole.yaml", 0, (), "a")
    assert seed.settings.vectorization == kind


def test_lists_of_numbers_are_written_on_one_line(tmp_path):
    value = {"a": [[1, 2.5], [3, 4.0]], "b": [{"c": []}], "d": {}}
    text = write_json("x", value, tmp_path).read_text(encoding="utf-8")
    assert json.loads(text) == value
    assert '  "a": [[1, 2.5], [3, 4.0]],' in text.splitlines()


@pytest.mark.slow
def test_a_finished_seed_is_kept_and_a_missed_bar_is_an_exit_status(tmp_path):
    words = ["--config", "ppo/cartpole", "--seeds", "1", "--set", "total_timesteps=256"]
    folders = ["--results", str(tmp_path / "results"), "--work", str(tmp_path / "work")]
    command = [sys.executable, "-m", "benchmarks.learning.measure", *words, *folders]
    first, second = (subprocess.run(command, cwd=ROOT, capture_output=True, text=True) for _ in range(2))
    assert first.stdout.startswith("0 trainings are finished, 2 to run"), first.stderr
    assert second.stdout.startswith("2 trainings are finished, 0 to run"), second.stderr
    assert (first.returncode, second.returncode) == (1, 1)
    assert second.stderr.startswith("learning-ppo-cartpole: missed its score of 490: IQM ")
    written = json.loads((tmp_path / "results" / "learning-ppo-cartpole.json").read_text(encoding="utf-8"))
    (run,) = written["seeds"]
    assert len(run["returns"]) == run["episodes"] == 100
    assert (run["num_timesteps"], written["settings"]["total_timesteps"]) == (256, 256)
    assert written["summary"]["iqm"] == run["return_mean"] == np.mean(run["returns"])
    assert run["promoted"]["return_mean"] == written["summary"]["promoted"]["iqm"]
    assert run["health"] == []
    assert 15 < written["summary"]["random"] < 30  # a random policy keeps the pole up for 22 steps


@pytest.mark.slow
def test_a_benchmark_that_is_stopped_continues(tmp_path):
    words = ["--config", "ppo/cartpole", "--seeds", "3", "--set", "total_timesteps=256"]
    folders = ["--results", str(tmp_path / "results"), "--work", str(tmp_path / "work")]
    command = [sys.executable, "-m", "benchmarks.learning.measure", *words, *folders]
    started = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: started.poll() is not None or list((tmp_path / "work").glob("ppo-cartpole-seed-*.json")))
        started.terminate()
        _, errors = started.communicate(timeout=LIMIT)
    finally:
        started.kill()
    assert started.returncode == 130, errors
    kept = {path: path.read_bytes() for path in (tmp_path / "work").glob("*.json")}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.startswith(f"{len(kept)} trainings are finished, {4 - len(kept)} to run"), done.stderr
    assert {path: path.read_bytes() for path in kept} == kept
    written = json.loads((tmp_path / "results" / "learning-ppo-cartpole.json").read_text(encoding="utf-8"))
    assert [run["seed"] for run in written["seeds"]] == [0, 1, 2]
