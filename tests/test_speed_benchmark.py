"""The speed benchmarks: their arithmetic, equal settings for all libraries, and the page with the results."""

import ast
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import LIMIT

from benchmarks.harness import RESULTS, Stopwatch
from benchmarks.speed.measure import choose_threads, rotate, summarize, takes_part
from benchmarks.speed.meter import Moment, compute_speed, find_child_stats, read_cpu_seconds
from benchmarks.speed.number_formats import format_number, format_spread
from benchmarks.speed.processes import CpuTimes, Places, add_runs, add_to_file, compute_usage
from benchmarks.speed.products import list_dqn_products, list_sac_products
from benchmarks.speed.report import PAGE, TABLES, read_results, update_page
from benchmarks.speed.runners.run_cleanrl import choose_script, make_flags, set_hidden_width
from benchmarks.speed.runners.run_ours import ALONE, make_speed_config
from benchmarks.speed.runners.run_rejax import translate as translate_to_rejax
from benchmarks.speed.runners.run_sb3 import translate
from benchmarks.speed.speed_tables import (
    describe_machine,
    format_compilation_table,
    format_contestants_table,
    format_floors_table,
    format_processors_table,
    format_ratio,
    format_speed_table,
)
from benchmarks.speed.tasks import IMPORTS, LABELS, OURS, PEERS, SPEED, SPLIT, TASKS, TRACKED
from benchmarks.speed.time_until_solved import summarize as summarize_solved
from rl_training.experiment.loading import load_config

ROOT = Path(__file__).resolve().parents[1]


def run(speed: float, **more: float) -> dict:
    return {
        "steps_per_second": speed,
        "steps_per_cpu_second": 2 * speed,
        "wall_seconds": 10.0,
        "startup_seconds": 3.0,
        "peak_memory_bytes": 300_000_000,
        "threads": 1,
        "other_cpus": 0.1,
        "stolen_cpus": 0.0,
        **more,
    }


def test_the_steady_speed_is_that_of_the_window():
    speed = compute_speed(Moment(4_096, 100.0, 7.0), Moment(24_576, 104.0, 9.0))
    assert speed["steps_per_second"] == 20_480 / 4
    assert speed["steps_per_cpu_second"] == 20_480 / 2
    with pytest.raises(ValueError, match="expected steps in between"):
        compute_speed(Moment(5, 1.0, 1.0), Moment(5, 2.0, 2.0))


def test_a_summary_has_median_lowest_and_highest():
    summary = summarize([run(speed, other_cpus=cpus) for speed, cpus in ((5.0, 0.1), (9.0, 0.4), (6.0, 0.0))])
    assert summary["steps_per_second"] == [6.0, 5.0, 9.0]
    assert summary["steps_per_cpu_second"] == [12.0, 10.0, 18.0]
    assert (summary["rounds"], summary["threads"], summary["most_other_cpus"]) == (3, 1, 0.4)


def test_the_better_thread_count_is_the_quicker_one_and_of_equals_the_lower():
    assert choose_threads({"1": 30.0, "2": 40.0}) == 2
    assert choose_threads({"2": 40.0, "1": 40.0}) == 1


def test_another_contestant_is_first_in_each_round():
    assert [name for name, _ in rotate({"ours": 1, "sb3": 2, "sbx": 1}, 0)] == ["ours", "sb3", "sbx"]
    assert list(rotate({"ours": 1, "sb3": 2, "sbx": 1}, 4)) == [("sb3", 2), ("sbx", 1), ("ours", 1)]


def test_a_library_takes_part_where_it_can_and_only_some_of_ours_are_split_or_tracked():
    everyone = (OURS, SPLIT, *PEERS, TRACKED)
    taking_part = {task.name: [name for name in everyone if takes_part(name, task)] for task in SPEED}
    assert taking_part["ppo-cartpole"] == list(everyone)
    assert taking_part["ppo-cartpole-1024"] == [OURS, "rejax"]
    assert taking_part["sac-pendulum"] == [OURS, "sb3", "sbx", "cleanrl", "rejax"]
    assert taking_part["dqn-cartpole-4-envs"] == [OURS, "sb3", "sbx", "rejax"]
    assert taking_part["ppo-halfcheetah"] == taking_part["ppo-pong"] == [OURS, "sb3", "sbx", "cleanrl"]
    assert taking_part["dqn-pong"] == [OURS, "sb3", "sbx"]


def test_what_others_used_is_the_machines_time_less_the_runs_own():
    before, after = CpuTimes(busy=100.0, stolen=1.0, children=20.0), CpuTimes(busy=118.0, stolen=3.0, children=32.0)
    assert compute_usage(before, after, 10.0) == {"cpu_seconds": 12.0, "other_cpus": 0.6, "stolen_cpus": 0.2}


def test_the_cpu_time_of_workers_is_that_of_the_processes_that_run():
    with subprocess.Popen(["sleep", "60"]) as process:
        assert Path(f"/proc/{process.pid}/stat") in find_child_stats()
        process.kill()
    assert Path(f"/proc/{process.pid}/stat") not in find_child_stats()
    assert read_cpu_seconds(Path("/proc/self/stat")) == pytest.approx(time.process_time(), abs=0.1)


def test_a_stopwatch_counts_nested_calls_once(monkeypatch):
    clock = iter([0.0, 1.0, 10.0, 10.5])
    monkeypatch.setattr("benchmarks.harness.time.perf_counter", lambda: next(clock, 2.0))

    class Saver:
        def end(self) -> None: ...

        def save(self) -> None:
            self.end()

    watch = Stopwatch()
    watch.watch(Saver, "end", "save")
    Saver().save()  # begins at 0, its `end` begins at 1 and is not counted, ends at 10
    assert watch.seconds == 10.0


def test_a_task_that_never_was_solved_counts_as_endless():
    runs = [
        run(1.0, solved_seconds=seconds, solved_step=step)
        for seconds, step in ((9.0, 500), (None, None), (7.0, 400), (None, None), (8.0, 300))
    ]
    summary = summarize_solved(runs)
    assert (summary["seeds"], summary["solved"]) == (5, 3)
    assert summary["seconds"] == [9.0, 7.0, None]
    assert summary["steps"] == [500, 300, None]
    assert summarize_solved(runs[1:4])["seconds"] == [None, 7.0, None]


@pytest.mark.parametrize("task", [task for task in SPEED if "sb3" in task.peers], ids=lambda task: task.name)
def test_all_train_with_the_same_settings(task):
    ours, sb3 = make_speed_config(task, threads=1, seed=3), translate(task.algo, task.settings)
    assert (ours.env_id, ours.total_timesteps, ours.seed) == (task.env_id, task.steps, 3)
    assert ours.evaluation.every == ALONE["evaluation"]["every"] > task.steps
    assert (sb3["gamma"], sb3["batch_size"], sb3["learning_rate"]) == (ours.gamma, ours.batch_size, ours.learning_rate)
    images = bool(ours.wrappers)
    if images:  # Stable-Baselines3's default for images has one layer of 512 units after the convolutions
        assert (sb3["policy_kwargs"], ours.network.hidden) == ({}, (512,))
    else:
        layers = sb3["policy_kwargs"]["net_arch"]
        assert (layers["pi"] if task.algo == "ppo" else layers) == list(ours.network.hidden)
    assert ours.network.activation == ("tanh" if task.algo == "ppo" and not images else "relu")  # as theirs
    if task.algo != "ppo":  # a step of Stable-Baselines3's vector environment is one of each environment
        assert sb3["train_freq"] * ours.num_envs == ours.train_freq
        assert sb3["gradient_steps"] == ours.gradient_steps


@pytest.mark.parametrize("task", [task for task in SPEED if "rejax" in task.peers], ids=lambda task: task.name)
def test_rejax_trains_with_the_same_settings(task):
    ours, words = make_speed_config(task, threads=1, seed=3), translate_to_rejax(task)
    assert (words["env"], words["gamma"], words["learning_rate"]) == (ours.env_id, ours.gamma, ours.learning_rate)
    assert words["num_envs"] == ours.num_envs
    if task.algo == "ppo":
        assert words["num_minibatches"] * ours.batch_size == ours.num_envs * ours.rollout_steps
        assert words["agent_kwargs"] == {"hidden_layer_sizes": ours.network.hidden, "activation": "tanh"}
    else:  # rejax takes `num_epochs` updates after each step of its environments
        assert words["num_epochs"] / words["num_envs"] == ours.gradient_steps / ours.train_freq
        assert (words["batch_size"], words["fill_buffer"]) == (ours.batch_size, ours.learning_starts)
        # rejax reads the widths of SAC at the top, and has only one width for DQN.
        assert words.get("hidden_layer_sizes", (64, 64)) == ours.network.hidden


def test_a_contestant_may_have_a_run_of_another_length():
    task = TASKS["sac-pendulum"]
    assert task.find_length("sb3") == task.find_length(OURS) == (1_050, 1_450)
    assert task.find_length("rejax") == (1_200, 1_600)
    for warm, steps in (task.lengths["rejax"] for task in SPEED if "rejax" in task.lengths):
        assert 0 <= warm < steps
    for task in SPEED:  # the warm-up of learning is over when the measurement begins
        assert all(task.settings.get("learning_starts", 0) <= task.find_length(name)[0] for name in (OURS, *task.peers))


def test_cleanrl_has_a_script_for_each_kind_of_task():
    scripts = {task.name: choose_script(task) for task in SPEED if "cleanrl" in task.peers}
    assert scripts == {
        "ppo-cartpole": "ppo.py",
        "dqn-cartpole": "dqn.py",
        "dqn-cartpole-f4": "dqn.py",
        "sac-pendulum": "sac_continuous_action.py",
        "ppo-halfcheetah": "ppo_continuous_action.py",
        "ppo-halfcheetah-8": "ppo_continuous_action.py",
        "sac-halfcheetah": "sac_continuous_action.py",
        "ppo-pong": "ppo_atari.py",
    }


def test_cleanrl_makes_as_many_minibatches_and_updates():
    words = make_flags(TASKS["ppo-cartpole"], seed=1)
    assert words[words.index("--num-minibatches") + 1] == "4"
    words = make_flags(TASKS["dqn-cartpole"], seed=1)
    assert words[words.index("--train-frequency") + 1] == "2"
    assert words[words.index("--target-network-frequency") + 1] == "256"


def test_an_update_of_sac_has_45_products_16_of_them_large():
    shapes = [(*left.shape, right.shape[1]) for left, right, _ in list_sac_products(256, 3, 1, (256, 256))]
    assert (len(shapes), shapes.count((256, 256, 256))) == (45, 16)
    # In units of 2 x 256 x 256: actor forward twice 2 x (3 + 2); targets, critics, critics again 3 x 2 x (4 + 1);
    # critics backward 2 x (1 + 4 + 1), to their inputs 2 x (1 + 4); actor backward 2 + 3 + 2.
    small = 10 + 30 + 12 + 10 + 7
    assert sum(2 * m * k * n for m, k, n in shapes) == 16 * 2 * 256**3 + small * 2 * 256 * 256


def test_an_update_of_dqn_has_11_products_4_of_them_large():
    shapes = [(*left.shape, right.shape[1]) for left, right, _ in list_dqn_products(64, 4, 2, (256, 256))]
    forward = [(64, 4, 256), (64, 256, 256), (64, 256, 2)]
    last, middle, first = [(256, 64, 2), (64, 2, 256)], [(256, 64, 256), (64, 256, 256)], [(4, 64, 256)]
    assert shapes == [*forward, *forward, *last, *middle, *first]


def test_another_script_than_the_one_that_is_meant_is_refused(tmp_path):
    (tmp_path / "dqn.py").write_text("nn.Linear(4, 120)\n")
    with pytest.raises(RuntimeError, match="has 1 widths of hidden layers, expected 4"):
        set_hidden_width(tmp_path / "dqn.py", tmp_path, 256)


def test_a_schedule_falls_to_zero():
    words = translate("ppo", TASKS["solved-cartpole"].settings)
    assert words["learning_rate"](0.25) == 0.25 * load_config(ROOT / "configs/ppo/cartpole.yaml").learning_rate
    assert words["clip_range"](0.0) == 0.0


def test_who_is_not_there_is_left_out_with_a_reason(tmp_path):
    places = Places(tmp_path, None)
    assert places.find_missing(OURS) is None
    assert "there is no" in (places.find_missing("sb3") or "")
    python = places.find_python("cleanrl")
    python.parent.mkdir(parents=True)
    python.touch()
    assert places.find_missing("cleanrl") == "CLEANRL is not the path of a checkout"


def test_a_ratio_below_its_aim_is_bold():
    assert format_ratio(600.0, 100.0, 5) == ["6.00", "5"]
    assert format_ratio(400.0, 100.0, 5) == ["**4.00**", "5"]
    assert format_ratio(None, 100.0, 5) == ["", "5"]
    assert format_ratio(400.0, 100.0, None) == ["4.00", ""]


def test_numbers_have_three_digits():
    assert [format_number(value) for value in (12345.6, 7.0, 1.2345, 0.0369, None)] == [
        "12,346",
        "7",
        "1.23",
        "0.0369",
        "never",
    ]
    assert format_spread([73.25, 70.1, 80.0], " %") == "73.2 % (70.1 to 80)"


def test_a_row_has_ours_beside_the_peers():
    summary = {"ours": summarize([run(120.0)]), "sb3": summarize([run(20.0)]), "cleanrl": summarize([run(40.0)])}
    native = {"ours": summarize([run(300.0)])}
    native["rejax"] = summarize([run(60.0)])
    lines = list(format_speed_table({"ppo-cartpole": {"summary": summary}, "ppo-cartpole-1024": {"summary": native}}))
    assert lines[2].endswith("| 120 | 20 | 6.00 | 5 | CleanRL 40 | **3.00** | 4 | not measured |  |")
    assert lines[3].endswith("| 300 | 20, with 8 environments | **15.00** | 20 |  |  |  | 60 | 5.00 |")


def test_a_library_with_compiled_environments_is_not_the_fastest_peer():
    summary = {"ours": summarize([run(120.0)]), "sb3": summarize([run(20.0)]), "rejax": summarize([run(480.0)])}
    line = list(format_speed_table({"ppo-cartpole": {"summary": summary}}))[2]
    assert line.endswith("| 120 | 20 | 6.00 | 5 | Stable-Baselines3 20 | 6.00 | 4 | 480 | 0.25 |")


def test_a_row_has_the_quicker_of_ours_and_says_which():
    summary = {"ours": summarize([run(120.0)]), "sb3": summarize([run(20.0)]), "ours-split": summarize([run(160.0)])}
    line = list(format_speed_table({"ppo-cartpole": {"summary": summary}}))[2]
    assert line.endswith("| 160, split | 20 | 8.00 | 5 | Stable-Baselines3 20 | 8.00 | 4 | not measured |  |")
    slower = summary | {"ours-split": summarize([run(110.0)])}
    assert "| 120 | 20 | 6.00 |" in list(format_speed_table({"ppo-cartpole": {"summary": slower}}))[2]


def test_a_library_that_was_not_measured_is_named():
    alone = {"summary": {"ours": summarize([run(120.0)]), "sb3": summarize([])}}
    lines = list(format_speed_table({"ppo-cartpole": alone, "ppo-cartpole-1024": alone}))
    assert lines[2].endswith("| 120 | not measured |  | 5 | not measured |  | 4 | not measured |  |")
    assert lines[3].endswith("| 120 | not measured |  | 20 |  |  |  | not measured |  |")
    peer_alone = {"summary": {"sb3": summarize([run(20.0)])}}
    assert list(format_speed_table({"sac-pendulum": peer_alone}))[2].split(" | ")[1:4] == ["not measured", "20", ""]


def test_the_memory_of_bare_imports_is_below_that_of_the_contestants():
    part = {"summary": {"ours": summarize([run(120.0)])}}
    bare = [{"wall_seconds": seconds, "peak_memory_bytes": 200_000_000} for seconds in (1.5, 1.1, 1.3)]
    *_, line = format_contestants_table({"ppo-cartpole": part | {"imports": [*bare, {"broke": "no memory"}]}})
    assert line == f"| ppo-cartpole | {LABELS[IMPORTS]} |  |  | 1 | 1.3 |  | 200 |  |"
    *_, line = format_contestants_table({"ppo-cartpole": part})
    assert "| rl_training |" in line


def test_the_speed_with_compilation_stands_beside_the_speed_without():
    compiled = summarize([run(60.0, compile_seconds=9.0, with_compilation=20.0)])
    parts = {"ppo-cartpole": {"summary": {"ours": summarize([run(120.0)]), "rejax": compiled}}}
    assert list(format_compilation_table(parts))[2:] == ["| ppo-cartpole | rejax | 60 | 9 | 20 | 262,144 | 120 |"]


def test_the_share_of_dqns_products_has_a_target():
    floor = dict.fromkeys(("environment", "numpy_ms", "torch_ms", "numpy_hot_ms", "torch_hot_ms", "update_ms"), 1.0)
    floor |= {"update_over_products": 1.5, "products_share": 0.5}
    lines = list(format_floors_table({"dqn-cartpole": {"summary": {}, "floors": [floor]}}))
    share = "| dqn-cartpole | training, relative to its matrix products alone | 50 % (50 to 50) | 75 % |"
    assert lines[-1] == share


def test_the_page_names_the_processor_of_each_task():
    old = {"platform": "Linux", "cpu": "AMD EPYC", "cpus": 2}
    new = old | {"family": 25, "model": 17, "stepping": 1, "generation": "EPYC, Zen 4", "vector_bits": 512}
    new |= {"products": {"numpy": "openblas 0.3.30 Zen", "torch": "MKL, oneDNN, AVX512"}}
    unknown = "| 2 | not recorded | not recorded | not recorded |"
    assert list(format_processors_table({name: {"machine": old} for name in ("one", "two")}))[2:] == [
        f"| one, two | AMD EPYC {unknown}"
    ]
    assert describe_machine(new) == (
        "AMD EPYC: EPYC, Zen 4 (family 25, model 17, stepping 1)",
        "2",
        "512 bits",
        "openblas 0.3.30 Zen",
        "MKL, oneDNN, AVX512",
    )


@pytest.mark.parametrize("script", ["measure", "time_until_solved"])
def test_with_no_contestant_left_nothing_is_written(script, tmp_path):
    words = ["--peers", str(tmp_path / "none"), "--results", str(tmp_path / "results"), "--contestants", "sb3"]
    ended = subprocess.run(
        [sys.executable, "-m", f"benchmarks.speed.{script}", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert ended.returncode == 2
    assert "Stable-Baselines3 is left out: there is no " in ended.stdout
    assert re.fullmatch(r"no contestant is left for .+: nothing was measured, nothing is written\n", ended.stderr)
    assert not (tmp_path / "results").exists()


def test_a_task_of_which_no_run_ended_leaves_what_the_file_had(tmp_path):
    assert add_runs("speed", "one", {"runs": [{"n": 1}], "broken": {}}, tmp_path)
    assert not add_runs("speed", "one", {"runs": [], "broken": {"sb3": "no memory"}}, tmp_path)
    assert not add_runs("speed", "two", {"runs": [{"n": 2}], "broken": {"sb3": "no memory"}}, tmp_path)
    parts = json.loads((tmp_path / "speed.json").read_text())["parts"]
    assert {name: part["runs"] for name, part in parts.items()} == {"one": [{"n": 1}], "two": [{"n": 2}]}


def test_every_option_of_the_benchmarks_is_described():
    scripts = sorted((ROOT / "benchmarks").rglob("*.py"))
    calls = [
        (script.name, node)
        for script in scripts
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
    ]
    assert len(calls) > 40
    bare = [
        f"{name}: {ast.unparse(call.args[0])}"
        for name, call in calls
        if not any(word.arg == "help" for word in call.keywords)
    ]
    assert bare == []


def test_a_part_measured_again_takes_the_place_of_the_older_one(tmp_path):
    add_to_file("speed", "one", {"n": 1}, tmp_path)
    add_to_file("speed", "two", {"n": 2}, tmp_path)
    add_to_file("speed", "one", {"n": 3}, tmp_path)
    assert json.loads((tmp_path / "speed.json").read_text())["parts"] == {"one": {"n": 3}, "two": {"n": 2}}


def test_the_page_shows_what_was_measured():
    page = PAGE.read_text(encoding="utf-8")
    assert update_page(page, read_results(RESULTS)) == page, "run: python -m benchmarks.speed.report"
    assert all(page.count(f"<!-- {name} -->") == page.count(f"<!-- /{name} -->") == 1 for name in TABLES)
