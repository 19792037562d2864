"""The file of a sweep: how it is read, and every fault in it."""

import json
import os
from pathlib import Path

import pytest

from rl_training.config.shipped_configs import list_shipped_sweeps
from rl_training.errors import ConfigError
from rl_training.experiment.loading import config_from_mapping, load_config
from rl_training.sweeps.loading import load_sweep
from rl_training.sweeps.reading.reference import update_page
from rl_training.sweeps.running import make_seeds_sweep
from rl_training.sweeps.trial_settings import make_trial_config

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "sweeps.md"
BASE = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 512}
SPACE = {"learning_rate": {"log_range": [1e-4, 1e-2]}}
CARTPOLE = "config: ppo/cartpole\nspace:\n"


def write(folder: Path, text: str, name: str = "search.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def faults(source, overrides=()) -> list[str]:
    """The lines of the error, without the folder of a file."""
    with pytest.raises(ConfigError) as caught:
        load_sweep(source, overrides)
    folder = f"{source.parent}/" if isinstance(source, Path) else ""
    return str(caught.value).replace(folder, "").splitlines() if folder else str(caught.value).splitlines()


def test_every_fault_of_a_file_is_reported_at_once_with_its_line(tmp_path):
    text = """config: ppo/cartpole
pruning: {percentile: 0}
space:
  learning_rate: {log_range: [1e-2, 1e-4]}
  gama: {choice: [1, 2]}
  gamma: {choice: [0.9, 2]}
  network:
    hidden: {choice: [[64, 64], 64]}
    activation: {range: [0, 1]}
  epochs: {range: [1, 2.5]}
  clip_range: [0.1, 0.2]
  wrappers.0: {choice: [ClipReward]}
  gae_lambda: {chioce: [0.9]}
  value_clip: {range: [0.1, .inf]}
  entropy_coef: {choice: [0.1], range: [0, 1]}
  value_coef: {log_range: [0, 1]}
  max_grad_norm: {choice: []}
  batch_size: {range: [16, many]}
trials: many
metric: eval/return
"""
    assert faults(write(tmp_path, text), ["parallel=0"]) == [
        "search.yaml:2: pruning.percentile: got 0, expected greater than 0",
        "search.yaml:4: space.learning_rate.log_range: got a list, expected the lowest value and then a higher one "
        "(got 0.01 and 0.0001)",
        "search.yaml:5: space.gama: unknown key; did you mean gamma?",
        "search.yaml:6: space.gamma.choice.1: got 2, expected less than or equal to 1",
        "search.yaml:8: space.network.hidden.choice.1: got 64, expected a list, such as [a, b]",
        "search.yaml:9: space.network.activation: got a range of a setting without numbers, expected choice",
        "search.yaml:10: space.epochs.range.1: got 2.5, expected a whole number",
        "search.yaml:11: space.clip_range: got a list, expected a mapping with choice, range or log_range",
        "search.yaml:12: space.wrappers.0: unknown key; wrappers has no settings of its own; give values of wrappers",
        "search.yaml:13: space.gae_lambda.chioce: unknown key; did you mean choice?",
        "search.yaml:14: space.value_clip.range.1: got .inf, expected a finite number",
        "search.yaml:15: space.entropy_coef: got a mapping, expected one of choice, range and log_range "
        "(got choice and range)",
        "search.yaml:16: space.value_coef.log_range: got a list, expected a lowest value above zero (got 0)",
        "search.yaml:17: space.max_grad_norm.choice: got a list, expected at least 1 item",
        "search.yaml:18: space.batch_size.range.1: got many, expected a number",
        "search.yaml:19: trials: got many, expected a whole number",
        "search.yaml:20: metric: got eval/return, expected one of eval/return_mean, eval/return_std, eval/ci_low, "
        "eval/ci_high, eval/length_mean, eval/success_rate, eval/raw_return_mean and eval/info/KEY "
        "(did you mean eval/return_std?)",
        "--set parallel: got 0, expected greater than 0",
    ]


def test_faults_of_the_base_config_are_reported_beside_those_of_the_sweep(tmp_path):
    base = write(tmp_path, "algo: ppo\nenv_id: CartPole-v1\ntotal_timesteps: 512\ngamma: 2\n", "base.yaml")
    path = write(tmp_path, "config: base.yaml\ntrials: 0\nspace: {gamma: {choice: [0.9]}}\n")
    assert faults(path) == [
        f"{base.name}:4: gamma: got 2, expected less than or equal to 1",
        "search.yaml:2: trials: got 0, expected greater than 0",
    ]


def test_a_base_config_in_the_file_and_its_overrides_have_lines_too(tmp_path):
    path = write(tmp_path, "config:\n  algo: ppo\n  env_id: CartPole-v1\n  gama: 1\noverrides:\n  epochs: 0\n")
    assert faults(path) == [
        "search.yaml:1: total_timesteps: is required and missing",
        "search.yaml:4: gama: unknown key; did you mean gamma?",
        "search.yaml:6: epochs: got 0, expected greater than 0",
        "search.yaml:1: space: got no settings, expected those that tpe varies; for one point, set method: grid",
    ]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("learning_rate", "learning_rate"),
        ("train_freq", "train_freq"),  # of DQN, if not of the base config
        ("n_steps", "rollout_steps"),
    ],
)
def test_a_setting_of_the_trials_at_the_top_level_is_sent_to_overrides_or_space(key, meant):
    advice = f"it is a setting of the trials; write overrides.{meant} for all trials, or space.{meant} to vary it"
    assert faults({"config": BASE, "space": SPACE}, [f"{key}=1"]) == [f"--set {key}: unknown key; {advice}"]


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("seed", "the sweep sets it"),
        ("algo", "each algorithm has settings of its own"),
        ("env_id", "can't be compared"),
        ("total_timesteps", "the same number of steps"),
        ("evaluation.episodes", "a sweep does not vary evaluation: trials are compared by their evaluations"),
        ("run_dir", "no effect on what is learned"),
        ("checkpoint.every", "no effect on what is learned"),
        ("device", "belongs to the machine"),
    ],
)
def test_a_setting_that_trials_must_share_is_refused_with_the_reason(key, why):
    (line,) = faults({"config": BASE, "space": {key: {"choice": [1]}}})
    assert line.startswith(f"sweep: space.{key}: a sweep does not vary ")
    assert why in line


def test_a_secret_is_not_varied():
    space = {"env_kwargs.token": {"choice": ["abc"]}, "env_kwargs.url": {"choice": ["${env:URL}"]}}
    lines = faults({"config": BASE, "space": space})
    assert lines == [
        f"sweep: space.{key}: got a secret, which would be recorded with each trial; leave it out" for key in space
    ]


def test_a_setting_beside_the_section_that_contains_it_is_refused():
    space = {"network": {"choice": [{"hidden": [8]}]}, "network.activation": {"choice": ["relu"]}}
    assert faults({"config": BASE, "space": space}) == [
        "sweep: space.network.activation: got it beside network, which contains it; keep one"
    ]


def test_a_value_given_twice_is_refused_even_if_it_is_spelt_differently():
    space = {"value_clip": {"choice": [1, None, 1.0]}}
    assert faults({"config": BASE, "space": space}) == ["sweep: space.value_clip.choice.2: given twice; keep one"]


@pytest.mark.parametrize(
    ("when", "fault"),
    [
        ({"gama": 1}, "space.epochs.when.gama: unknown key; did you mean gamma?"),
        ({"gamma": "high"}, 'space.epochs.when.gamma: got the text "high", expected a number'),
        ({"gamma": [0.9, 0.7]}, None),
        ({"gamma": 0.7}, "space.epochs.when.gamma: never holds: the setting can't have this value"),
        ({"batch_size": 65}, "space.epochs.when.batch_size: never holds: the setting can't have this value"),
        ({"network": {"hidden": [8]}}, "space.epochs.when.network: expected a single setting"),
    ],
)
def test_a_condition_that_can_not_hold_is_refused(when, fault):
    source = {"config": BASE, "space": {"gamma": {"choice": [0.9, 0.95]}, "epochs": {"choice": [1, 2], "when": when}}}
    if fault is None:
        assert load_sweep(source).settings.space["epochs"].when == when
    else:
        (line,) = faults(source)
        assert fault in line


def test_conditions_in_a_circle_are_refused():
    space = {
        "gamma": {"choice": [0.9, 0.99], "when": {"epochs": 2}},
        "epochs": {"choice": [1, 2], "when": {"gamma": 0.99}},
        "value_coef": {"choice": [0.5, 1.0]},
    }
    assert faults({"config": BASE, "space": space}) == [
        "sweep: space: got conditions in a circle among gamma, epochs; leave one of them out"
    ]


def test_an_end_that_is_invalid_with_the_base_config_alone_is_refused():
    """CartPole's base config has rollouts of 8 * 128 = 1024 transitions."""
    (line,) = faults({"config": BASE, "space": {"batch_size": {"range": [64, 2048]}}})
    assert line.startswith(
        "sweep: space.batch_size.range.1: got 2048, expected at most num_envs * rollout_steps = 8 * 128"
    )


def test_an_end_that_another_parameter_can_make_valid_is_taken():
    space = {"batch_size": {"range": [64, 2048]}, "rollout_steps": {"choice": [128, 256]}}
    assert set(load_sweep({"config": BASE, "space": space}).settings.space) == set(space)


def test_a_grid_has_no_ranges_and_no_more_points_than_trials(tmp_path):
    path = write(tmp_path, f"{CARTPOLE}  gamma: {{range: [0.9, 0.99]}}\nmethod: grid\n")
    assert faults(path) == ["search.yaml:3: space.gamma: got a range, expected choice: a grid has no ranges"]
    path = write(
        tmp_path, f"{CARTPOLE}  gamma: {{choice: [0.9, 0.99]}}\n  epochs: {{choice: [1, 2]}}\nmethod: grid\ntrials: 3\n"
    )
    assert faults(path) == ["search.yaml:6: trials: got 3, expected 4 or more, the number of points of the grid"]
    hundred = [i / 1000 for i in range(1, 101)]
    space = {key: {"choice": hundred} for key in ("gamma", "learning_rate", "clip_range")}
    assert faults({"config": BASE, "method": "grid", "space": space}) == [
        "sweep: space: the grid has more than 10,000 points; leave values out, or set method: random"
    ]


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ([1], "got a list, expected a mapping or text"),
        (None, "got nothing (null), expected a mapping or text"),
        (5, "5: no such file, and no shipped configuration of this name"),
        ("sweeps", "sweeps: is a folder, expected a YAML file or a shipped name"),
    ],
)
def test_a_base_config_that_is_none_is_refused(config, fault, tmp_path, monkeypatch):
    (tmp_path / "sweeps").mkdir()
    monkeypatch.chdir(tmp_path)
    (line,) = faults({"config": config, "space": SPACE})
    assert line.startswith(f"sweep: config: {fault}")


@pytest.mark.parametrize("method", ["halving", "population"])
def test_methods_that_stop_trials_themselves_take_no_pruning(method):
    (line,) = faults({"config": BASE, "method": method, "pruning": {}, "space": SPACE})
    assert line == f"sweep: pruning: got it with method: {method}, which stops trials itself; leave pruning out"


def test_a_metric_of_the_environment_must_be_evaluated():
    source = {"config": BASE, "metric": "eval/info/speed", "space": SPACE}
    assert faults(source) == ["sweep: metric: got eval/info/speed, expected speed in metrics.info of the base config"]
    assert load_sweep(source, {"overrides": {"metrics.info": ["speed"]}}).settings.metric == "eval/info/speed"


def test_thousands_of_settings_and_values_are_refused(tmp_path):
    many = "".join(f"  env_kwargs.a{i}: {{choice: [1]}}\n" for i in range(5_000))
    (line,) = faults(write(tmp_path, CARTPOLE + many))
    assert line == "search.yaml:2: space: got a mapping, expected at most 100 items"
    (line,) = faults(write(tmp_path, f"{CARTPOLE}  gamma: {{choice: [{', '.join(['0.9'] * 101)}]}}\n"))
    assert line == "search.yaml:3: space.gamma.choice: got a list, expected at most 100 items"


@pytest.mark.parametrize("ends", [[-1.7e308, 1.7e308], [10**300, 10**301]])
def test_an_interval_without_a_finite_width_is_refused(ends):
    (line,) = faults({"config": BASE, "space": {"env_kwargs.a": {"range": ends}}})
    assert line == "sweep: space.env_kwargs.a.range: got a list, expected numbers between -1e+300 and 1e+300"


def test_whole_numbers_beyond_those_that_a_float_holds_are_refused():
    (line,) = faults({"config": BASE, "space": {"epochs": {"range": [1, 2**53 + 1]}}})
    assert line == "sweep: space.epochs.range.1: expected at most 9,007,199,254,740,992"


def test_nested_and_dotted_keys_are_the_same_space():
    nested = {"network": {"hidden": {"choice": [[8], [16]]}, "activation": {"choice": ["relu", "tanh"]}}}
    dotted = {f"network.{key}": value for key, value in nested["network"].items()}
    first, second = (load_sweep({"config": BASE, "space": space}) for space in (nested, dotted))
    assert first.settings == second.settings
    with pytest.raises(ConfigError, match=r"space.network.hidden: given twice; keep one"):
        load_sweep({"config": BASE, "space": {**nested, "network.hidden": {"choice": [[8], [16]]}}})


def test_overrides_replace_values_of_the_sweep(tmp_path):
    path = write(tmp_path, f"{CARTPOLE}  gamma: {{choice: [0.9, 0.99]}}\noverrides: {{evaluation.every: 5_000}}\n")
    given = ["trials=7", "method=random", "space.gamma.choice=[0.5]", "overrides.evaluation.episodes=3"]
    sweep = load_sweep(path, [*given, "space.network.hidden.choice=[[8],[16]]"])
    assert (sweep.settings.trials, sweep.settings.method.name) == (7, "random")
    assert sweep.settings.space["gamma"].choice == (0.5,)
    assert sweep.settings.space["network.hidden"].choice == ([8], [16])
    assert (sweep.base.evaluation.every, sweep.base.evaluation.episodes) == (5_000, 3)


def test_the_base_config_is_found_beside_the_sweep_first_and_then_among_the_shipped_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweeps").mkdir()
    path = write(tmp_path / "sweeps", "config: base.yaml\nspace: {gamma: {choice: [0.9]}}\n")
    assert faults(path)[0].startswith("search.yaml:1: config: base.yaml: no such file, and no shipped configuration")
    write(tmp_path / "sweeps", json.dumps({**BASE, "seed": 7}), "base.yaml")
    write(tmp_path, json.dumps({**BASE, "seed": 8}), "base.yaml")
    assert load_sweep(path).base.seed == 7
    assert load_sweep(path, ["config=base.yaml"]).base.seed == 8
    assert load_sweep(path, ["config=ppo/cartpole"]).base == load_config("ppo/cartpole")


def test_settings_that_belong_to_one_run_are_left_out_of_the_base(tmp_path):
    config = {**BASE, "run_dir": str(tmp_path), "run_name": "a", "job": "b", "experiment": "c"}
    base = load_sweep({"config": config, "space": SPACE}).base
    assert (base.run_dir, base.run_name, base.job, base.experiment) == (None, None, None, "c")


def test_a_trial_has_the_settings_of_the_base_config_and_of_its_point():
    sweep = load_sweep({"name": "first", "config": {**BASE, "experiment": "c"}, "space": SPACE})
    config = make_trial_config(sweep, {"learning_rate": 0.001, "network.hidden": [8]}, 3)
    assert (config.learning_rate, config.network.hidden, config.seed) == (0.001, (8,), 3)
    assert config.run_name == "first: learning_rate=0.001 network.hidden=[8] seed=3"
    same = {"learning_rate": sweep.base.learning_rate, "network.hidden": list(sweep.base.network.hidden)}
    assert config.replace(seed=0, run_name=None, **same) == sweep.base


@pytest.mark.parametrize("stem", ["search", " odd\tname ", "x" * 200])
def test_the_name_of_any_file_makes_valid_names_of_runs(tmp_path, stem):
    sweep = load_sweep(write(tmp_path, f"{CARTPOLE}  gamma: {{choice: [0.9]}}\n", f"{stem}.yaml"))
    assert make_trial_config(sweep, {"env_kwargs.text": "a\x1b\nb" * 100}, 1).run_name.startswith(sweep.name)


def test_the_digest_is_that_of_what_decides_the_result(tmp_path):
    source = {"config": BASE, "space": SPACE}
    digest = load_sweep(source).digest
    for same in (
        {**source, "engine": "ray"},
        {**source, "resources": {"memory_gb": 4}},
        {**source, "name": "another"},
        {**source, "config": {**BASE, "epochs": 10}},  # the default
        {**source, "config": {**BASE, "epochs": 5}, "overrides": {"epochs": 10}},
    ):
        assert load_sweep(same).digest == digest
    for other in (
        {**source, "seed": 1},
        {**source, "parallel": 3},
        {**source, "config": {**BASE, "epochs": 5}},
        {**source, "space": {"learning_rate": {"range": [1e-4, 1e-2]}}},
    ):
        assert load_sweep(other).digest != digest
    assert load_sweep(source).uid != load_sweep(source).uid


def test_the_digest_does_not_depend_on_a_secret():
    first, second = (
        load_sweep({"config": {**BASE, "env_kwargs": {"token": token}}, "space": SPACE}) for token in ("one", "two")
    )
    assert first.digest == second.digest
    assert first.base.env_kwargs == {"token": "one"}


def test_a_sweep_survives_json():
    """Flows receive the settings as JSON, in which a whole number and a number must stay apart."""
    source = {"config": BASE, "space": {"env_kwargs.a": {"range": [0, 1]}, "env_kwargs.b": {"range": [0.0, 1.0]}}}
    sweep = load_sweep(source)
    again = load_sweep(json.loads(json.dumps(sweep.settings.model_dump(mode="json"))))
    assert (again.settings, again.digest, again.space) == (sweep.settings, sweep.digest, sweep.space)
    assert [dimension.values.whole for dimension in again.space.dimensions] == [True, False]


def test_shipped_sweeps_are_valid():
    names = list_shipped_sweeps()
    assert {name.split("_")[0] for name in names} == {"ppo", "dqn", "sac"}
    for name in names:
        assert load_sweep(name).name == name
    with pytest.raises(ConfigError, match="no shipped sweep of this name \\(did you mean ppo_cartpole"):
        load_sweep("ppo_cartpol")


def test_numbers_that_no_machine_could_plan_are_refused():
    huge = {"method": {"name": "halving", "rungs": 10**6}, "confirmation": {"points": 1, "seeds": 10**9}}
    assert faults({"config": BASE, "space": SPACE, **huge}) == [
        "sweep: method.rungs: got 1000000, expected less than or equal to 100",
        "sweep: confirmation.seeds: got 1000000000, expected less than or equal to 1000",
    ]


def test_runs_of_several_ranks_need_as_many_cpus():
    settings = {"config": {**BASE, "ranks": 2, "num_envs": 4}, "space": SPACE}
    assert faults(settings) == [
        "sweep: resources.cpus: got 1, expected 2 or more, because each run trains in 2 processes (ranks)"
    ]
    assert load_sweep({**settings, "resources": {"cpus": 2}}).settings.resources.cpus == 2
    seeds = make_seeds_sweep(config_from_mapping({**settings["config"], "threads": 3}), 2)
    assert seeds.settings.resources.cpus == 6


def test_several_seeds_do_not_share_a_directory(tmp_path):
    config = config_from_mapping({**BASE, "run_dir": str(tmp_path)})
    with pytest.raises(ConfigError, match=f"^run_dir: got {tmp_path} with several seeds, expected none; each seed has"):
        make_seeds_sweep(config, 2)


def test_a_base_config_on_the_command_line_that_does_not_exist_is_named_once():
    line, *_ = faults({"config": BASE, "space": SPACE}, ["config=nowhere"])
    assert line.startswith("--set config: nowhere: no such file, and no shipped configuration of this name")


def test_a_file_that_can_not_be_read_is_named(tmp_path):
    (tmp_path / "folder.yaml").mkdir()
    (line,) = faults(tmp_path / "folder.yaml")
    assert "is a folder, expected a YAML file or a shipped name" in line
    path = tmp_path / "bytes.yaml"
    path.write_bytes(b"config: \xff")
    (line,) = faults(path)
    assert line.startswith("bytes.yaml:1:9: byte 0xff is not UTF-8")
    (line,) = faults(os.devnull)
    assert "empty config" in line


def test_the_reference_page_is_up_to_date():
    page = PAGE.read_text(encoding="utf-8")
    assert update_page(page) == page, "run: python -m rl_training.sweeps.reading.reference docs/reference/sweeps.md"
    assert "| `seeds` | a whole number above 0 to 1000 | `1` |" in page


def test_the_example_of_the_reference_page_works(tmp_path):
    example = PAGE.read_text(encoding="utf-8").split('```yaml title="search.yaml"\n')[1].split("```")[0]
    sweep = load_sweep(write(tmp_path, example))
    assert (sweep.name, sweep.settings.trials, sweep.base.total_timesteps) == ("search", 30, 50_000)
