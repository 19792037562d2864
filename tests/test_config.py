"""Config files: how values are read, what is refused, and that all faults are reported at once."""

import subprocess
import sys
from pathlib import Path

import pytest

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.errors import ConfigError
from rl_training.experiment.loading import config_from_mapping, config_from_text, load_config

ROOT = Path(__file__).resolve().parents[1]
HEAD = "algo: ppo\nenv_id: CartPole-v1\ntotal_timesteps: 2048\n"


def read(text: str, overrides=()) -> PPOConfig:
    config = config_from_text(HEAD + text, overrides, source="my.yaml")
    assert isinstance(config, PPOConfig)
    return config


def faults(text: str, overrides=(), head: str = HEAD) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config_from_text(head + text, overrides, source="my.yaml")
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("spelt", "value"),
    [
        ("1e-4", 0.0001),
        ("1E-4", 0.0001),
        ("1.0e-4", 0.0001),
        ("5e+4", 50000.0),
        (".5", 0.5),
        ("3", 3.0),
        ("1_0.5", 10.5),
        ("+2e-1", 0.2),
    ],
)
def test_every_spelling_of_a_number_is_a_float(spelt, value):
    config = read(f"learning_rate: {spelt}\n")
    assert config.learning_rate == value
    assert type(config.learning_rate) is float


@pytest.mark.parametrize(
    ("spelt", "value"),
    [("3e3", 3000), ("3.0e+3", 3000), ("2.0e2", 200), ("2_000", 2000), ("200.0", 200), ("1e6", 1000000), ("0x10", 16)],
)
def test_floats_without_a_fraction_are_whole_numbers(spelt, value):
    config = config_from_text(f"algo: ppo\nenv_id: A-v0\ntotal_timesteps: {spelt}\n", source="x")
    assert config.total_timesteps == value
    assert type(config.total_timesteps) is int


@pytest.mark.parametrize("spelt", ["32.5", "1:30", "1e400", "9.1e15", "true", "ten", "'32'", "[32]", "{a: 1}", "", "~"])
def test_what_is_no_whole_number_is_refused_by_name(spelt):
    (line,) = faults(f"batch_size: {spelt}\n")
    assert line.startswith("my.yaml:4: batch_size: got ")
    assert "expected a" in line


def test_messages_say_what_was_got_and_what_is_expected():
    assert faults('batch_size: 32.5\ngamma: "0.99"\nlearning_rate: fast\nnum_envs: 0\nseed: -1\ndevice: gpu\n') == [
        "my.yaml:4: batch_size: got 32.5, expected a whole number",
        'my.yaml:5: gamma: got the text "0.99", expected a number, without quotes',
        "my.yaml:6: learning_rate: got fast, expected a number",
        "my.yaml:7: num_envs: got 0, expected greater than 0",
        "my.yaml:8: seed: got -1, expected greater than or equal to 0",
        "my.yaml:9: device: got gpu, expected auto, cpu, cuda or cuda:N",
    ]


@pytest.mark.parametrize("spelt", [".nan", ".inf", "-.Inf", "NaN", "inf", "1e999", "-1e999"])
def test_numbers_that_are_not_finite_are_refused(spelt):
    (line,) = faults(f"promotion: {{floor: {spelt}}}\n")
    assert line.startswith(f"my.yaml:4: promotion.floor: got {spelt}, expected a")


@pytest.mark.parametrize(
    ("spelt", "value"),
    [(word, True) for word in ("true", "True", "yes", "on", "ON")]
    + [(word, False) for word in ("false", "FALSE", "no", "off", "Off")],
)
def test_every_spelling_of_a_truth_value_is_read(spelt, value):
    assert read(f"normalization: {{observation: {spelt}}}\n").normalization.observation is value


@pytest.mark.parametrize("spelt", ["1", "0", "'off'", '"true"', "maybe", "n", ""])
def test_what_is_no_truth_value_is_refused(spelt):
    (line,) = faults(f"normalize_advantage: {spelt}\n")
    assert line.endswith("expected true or false")


@pytest.mark.parametrize(
    "spelt", ["007", "123", "1e5", "1.50", "true", "off", "no", "1:30", "2026-01-02", "0x1F", ".5", "a b", "NaN"]
)
def test_text_keeps_its_spelling(spelt):
    assert read(f"run_name: {spelt}\n").run_name == spelt
    assert read(f"run_name: '{spelt}'\n").run_name == spelt
    assert read(f"tags: {{k: {spelt}}}\n").tags == {"k": spelt}


def test_country_codes_are_text_as_keys_and_values():
    assert read("tags: {no: no, on: yes}\n").tags == {"no": "no", "on": "yes"}


def test_nothing_is_nothing_only_where_it_may_be():
    assert read("run_name: null\npromotion: {floor: ~}\nmax_episode_steps:\n").run_name is None
    assert faults("experiment:\n") == ["my.yaml:4: experiment: got nothing (null), expected text"]
    assert faults("evaluation:\n") == [
        "my.yaml:4: evaluation: got nothing (null), expected a mapping; leave the key out for defaults"
    ]


def test_free_values_are_read_as_they_look():
    text = (
        "env_kwargs: {a: 1e-3, b: 3, c: true, d: text, e: null, f: '007', g: [1, {h: 2.5}], i: 2026-01-02, j: 1:30}\n"
    )
    assert read(text).env_kwargs == {
        **{"a": 0.001, "b": 3, "c": True, "d": "text", "e": None, "f": "007", "g": [1, {"h": 2.5}]},
        **{"i": "2026-01-02", "j": "1:30"},
    }


@pytest.mark.parametrize(
    ("spelt", "advice"),
    [
        ("off", 'expected false for a truth value, or "off" in quotes for text'),
        ("Yes", 'expected true for a truth value, or "Yes" in quotes for text'),
        ("007", 'expected a number without a leading zero, or "007" in quotes for text'),
        (".nan", "expected a finite number"),
    ],
)
def test_free_values_of_two_meanings_are_refused(spelt, advice):
    assert faults(f"env_kwargs:\n  level: [{spelt}]\n") == [f"my.yaml:5: env_kwargs.level.0: got {spelt}, {advice}"]


def test_misspelt_and_misplaced_keys_are_all_named_with_their_level():
    text = (
        "learing_rate: 0.1\nbatch-size: 16\nepisodes: 50\nevaluation:\n  evry: 512\npromotion:\n  flor: 9.0\n"
        "checkpointEvery: 3\nevaluation.seed: 1\n"
    )
    assert faults(text) == [
        "my.yaml:4: learing_rate: unknown key; did you mean learning_rate?",
        "my.yaml:5: batch-size: unknown key; did you mean batch_size?",
        "my.yaml:6: episodes: unknown key; it belongs in evaluation or in promotion or in validation",
        "my.yaml:8: evaluation.evry: unknown key; did you mean every?",
        "my.yaml:10: promotion.flor: unknown key; did you mean floor?",
        "my.yaml:11: checkpointEvery: unknown key; did you mean every in checkpoint?",
        "my.yaml:12: evaluation.seed: unknown key; write seed under evaluation, not with a dot",
    ]


def test_sections_under_other_tools_names_are_looked_into():
    text = "eval: {evry: 512}\nsuccess: {min_mean_retrun: 9.0}\nlr: 0.1\nlogging: {learning_rate: 3}\n"
    assert faults(text) == [
        "my.yaml:4: eval: unknown key; did you mean evaluation?",
        "my.yaml:4: eval.evry: unknown key; did you mean every?",
        "my.yaml:5: success: unknown key; did you mean promotion?",
        "my.yaml:5: success.min_mean_retrun: unknown key; did you mean floor in promotion?",
        "my.yaml:6: lr: unknown key; did you mean learning_rate?",
        "my.yaml:7: logging.learning_rate: unknown key; it belongs at the top level",
    ]


def test_a_key_like_no_other_gets_the_list_where_it_is_short():
    assert faults("network: {zzz: 1}\nzzz: 2\n") == [
        "my.yaml:4: network.zzz: unknown key; known keys: hidden, activation, body, initial_log_std, "
        "recurrent, recurrent_size",
        "my.yaml:5: zzz: unknown key; no setting of ppo has a similar name; see docs/configuration.md",
    ]


def test_unknown_keys_types_ranges_and_combinations_in_one_pass():
    text = "sede: 1\ngamma: 1.5\nbatch_size: 4096\nepochs: x\nnetwork: {activation: tahn, hidden: [64, 0, y]}\n"
    assert faults(text) == [
        "my.yaml:4: sede: unknown key; did you mean seed?",
        "my.yaml:5: gamma: got 1.5, expected less than or equal to 1",
        "my.yaml:6: batch_size: got 4096, expected at most num_envs * rollout_steps = 8 * 128 = 1024; "
        "lower batch_size or raise rollout_steps",
        "my.yaml:7: epochs: got x, expected a whole number",
        "my.yaml:8: network.activation: got tahn, expected tanh or relu (did you mean tanh?)",
        "my.yaml:8: network.hidden.2: got y, expected a whole number",
        "my.yaml:8: network.hidden.1: got 0, expected greater than 0",
    ]


def test_a_combination_is_not_judged_by_the_default_of_a_faulty_key():
    assert faults("rollout_steps: x\nnum_envs: 1\n") == ["my.yaml:4: rollout_steps: got x, expected a whole number"]


def test_a_combination_is_shown_at_the_key_that_was_written():
    (line,) = faults("rollout_steps: 4\n")
    assert line == (
        "my.yaml:4: batch_size: got 64, expected at most num_envs * rollout_steps = 8 * 4 = 32; "
        "lower batch_size or raise rollout_steps"
    )
    (line,) = faults("batch_size: 1\n")
    assert line.startswith("my.yaml:4: batch_size: got 1, expected at least 2, because normalize_advantage")
    assert read("batch_size: 1\nnormalize_advantage: no\n").batch_size == 1


def test_a_budget_below_one_rollout_is_allowed():
    assert config_from_text("algo: ppo\nenv_id: A-v0\ntotal_timesteps: 10\n", source="x").total_timesteps == 10


def test_required_keys():
    assert faults("algo: ppo\nwrappers: [{kwargs: {}}]\n", head="") == [
        "my.yaml:1: env_id: is required and missing",
        "my.yaml:1: total_timesteps: is required and missing",
        "my.yaml:2: wrappers.0.name: is required and missing",
    ]


def test_an_unknown_algorithm_and_the_faults_that_do_not_depend_on_it():
    text = "algo: pppo\nenv_id: A-v0\ntotal_timesteps: x\nbuffer_size: 3\n"
    assert faults(text, head="") == [
        "my.yaml:1: algo: got pppo, expected one of dqn, ppo, sac, td3, tqc (did you mean ppo?)",
        "my.yaml:3: total_timesteps: got x, expected a whole number",
    ]
    assert faults("seed: 1\nenv_id: A-v0\ntotal_timesteps: 1\n", head="") == [
        "my.yaml:1: algo: is required and missing; expected one of dqn, ppo, sac, td3, tqc"
    ]
    assert faults("algo: [ppo]\nenv_id: A-v0\ntotal_timesteps: 1\n", head="") == [
        "my.yaml:1: algo: got a list, expected text"
    ]


def test_wrappers_may_be_bare_names():
    wrappers = read("wrappers: [TimeAwareObservation, {name: 'my.mod:Clip', kwargs: {low: -1}}]\n").wrappers
    assert [(w.name, w.kwargs) for w in wrappers] == [("TimeAwareObservation", {}), ("my.mod:Clip", {"low": -1})]
    assert PPOConfig(env_id="A-v0", total_timesteps=1, wrappers=["A"]).wrappers[0].name == "A"
    assert faults("wrappers: TimeAwareObservation\n")[0].endswith("expected a list, such as [a, b]")
    (line,) = faults("wrappers: ['no such name']\n")
    assert line == (
        'my.yaml:4: wrappers.0: got the text "no such name", expected a class of gymnasium.wrappers, or module:Class'
    )


def test_tags_may_be_a_list_of_words():
    assert read("tags: [baseline, 2026]\n").tags == {"baseline": "", "2026": ""}
    assert PPOConfig(env_id="A-v0", total_timesteps=1, tags=["a"]).tags == {"a": ""}
    (line,) = faults("tags: [{a: b}]\n")
    assert line.startswith("my.yaml:4: tags: got a list, expected a mapping")


@pytest.mark.parametrize("env_id", ["CartPole-v1", "ALE/Pong-v5", "trialplug:trialplug/Walk-v0", "my.pkg.envs:E-v0"])
def test_env_ids(env_id):
    assert read("", {"env_id": env_id}).env_id == env_id


@pytest.mark.parametrize("env_id", ["''", "a b", "a:b:c", "9mod:A-v0", "a//b", ":A-v0", "mod:", "123/"])
def test_bad_env_ids(env_id):
    (line,) = faults("", [f"env_id={env_id}"])
    assert line.startswith("--set env_id: got ")
    assert line.endswith("expected an id such as CartPole-v1, namespace/Env-v0 or module:Env-v0")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("promotion: {model: a/b}", "promotion.model"),
        ("promotion: {model: 'a:b'}", "promotion.model"),
        ("promotion: {model: ''}", "promotion.model"),
        ("promotion: {model: .hidden}", "promotion.model"),
        ("promotion: {model: modèle}", "promotion.model"),
        (f"promotion: {{model: {'m' * 201}}}", "promotion.model"),
        ("promotion: {model: promotion-lock.CartPole-v1.1}", "promotion.model"),
        ("experiment: ' a'", "experiment"),
        ("experiment: ''", "experiment"),
        ('run_name: "two\\nlines"', "run_name"),
        ("tags: {'a#b': c}", "tags.a#b"),
        ("tags: {../up: c}", "tags.../up"),
    ],
)
def test_names_that_mlflow_would_refuse_are_refused_before_training(text, key):
    (line,) = faults(text + "\n")
    assert line.startswith(f"my.yaml:4: {key}: ")


def test_names_that_mlflow_takes():
    config = read("promotion: {model: Cart-Pole_1.2}\ntags: {team/owner: me, a.b: c}\nexperiment: cases/a b\n")
    assert config.promotion.model == "Cart-Pole_1.2"


@pytest.mark.parametrize("promotion", ["{episodes: 3}", "{confidence: 1.0}", "{confidence: 0.5}", "{margin: -1}"])
def test_promotion_by_too_little_evidence_is_refused(promotion):
    (line,) = faults(f"promotion: {promotion}\n")
    assert line.startswith("my.yaml:4: promotion.")


def test_run_dir_is_absolute_and_knows_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read("run_dir: ~/runs/a\n").run_dir == tmp_path / "runs" / "a"
    assert read("run_dir: here\n").run_dir == Path.cwd() / "here"
    assert faults("run_dir: ''\n") == ['my.yaml:4: run_dir: got the text "", expected a path']


def test_settings_are_strict_and_frozen_from_python_too():
    for wrong in ({"seed": True}, {"gamma": "0.99"}, {"num_envs": 2.5}, {"gama": 0.9}, {"env_kwargs": {"a": object()}}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            PPOConfig(env_id="A-v0", total_timesteps=1, **wrong)
    with pytest.raises(ConfigError, match="batch_size: got 2000, expected at most"):
        PPOConfig(env_id="A-v0", total_timesteps=1, batch_size=2000)
    config = PPOConfig(env_id="A-v0", total_timesteps=1, env_kwargs={"size": (3, 4)}, network={"hidden": [8]})
    assert config.env_kwargs == {"size": [3, 4]}
    assert config.network.hidden == (8,)
    with pytest.raises(ConfigError, match="seed: settings can't be changed"):
        config.seed = 1


def test_shipped_cartpole_holds_the_published_values(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_config("ppo/cartpole")
    assert isinstance(config, PPOConfig)
    assert (config.num_envs, config.rollout_steps, config.batch_size, config.epochs) == (8, 32, 256, 20)
    assert (config.gamma, config.gae_lambda, config.entropy_coef) == (0.98, 0.8, 0.0)
    assert (config.learning_rate, config.learning_rate_schedule) == (0.001, "linear")
    assert (config.clip_range, config.clip_range_schedule) == (0.2, "linear")
    assert (config.total_timesteps, config.evaluation.every, config.promotion.floor) == (100_000, 10_000, 475.0)
    assert load_config(ROOT / "configs" / "ppo" / "cartpole.yaml") == config


def test_every_shipped_file_is_valid():
    names = [path.relative_to(ROOT / "configs").with_suffix("").as_posix() for path in ROOT.glob("configs/*/*.yaml")]
    assert "ppo/cartpole" in names
    for name in names:
        assert load_config(name).algo == name.split("/")[0]


def test_names_that_are_neither_files_nor_shipped(tmp_path):
    with pytest.raises(ConfigError, match=r"no such file.*did you mean ppo/cartpole"):
        load_config("ppo/cartpol")
    with pytest.raises(ConfigError, match="is a folder, expected a YAML file"):
        load_config(tmp_path)


def test_paths_that_are_none(tmp_path):
    for path in ("x" * 5000, "a\0b", "~nobody-of-this-name/x"):
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        assert "\n" not in str(caught.value)


def test_settings_encoded_twice_are_taken_as_json_alone():
    assert load_config('{"algo": "ppo", "env_id": "A-v0", "total_timesteps": 3e3}', {"seed": 1}).total_timesteps == 3000
    with pytest.raises(ConfigError, match=r"^config: got text that begins with { and is not JSON"):
        load_config("{'algo': 'ppo'}")


def test_bytes_of_a_command_line_that_are_no_utf_8_are_refused():
    """Python hands them on as lone surrogates, which no file can hold."""
    for key in ("run_name", "env_kwargs.name"):
        (line,) = faults("", [f"{key}=caf\udce9"])
        assert line == f"--set {key}: got caf\\\\udce9, expected text in UTF-8"
    assert faults('run_name: "\\ud800"\n')[0].endswith("expected text in UTF-8")


def test_a_mapping_gets_the_same_checks_as_a_file():
    config = config_from_mapping({"algo": "ppo", "env_id": "A-v0", "total_timesteps": 3e3, "tags": ["a"]})
    assert (config.total_timesteps, config.tags) == (3000, {"a": ""})
    with pytest.raises(ConfigError) as caught:
        config_from_mapping({"algo": "ppo", "env_id": "A-v0", "total_timesteps": 1, "batch_size": 32.5, "sede": 1})
    assert str(caught.value).splitlines() == [
        "config: batch_size: got 32.5, expected a whole number",
        "config: sede: unknown key; did you mean seed?",
    ]
    with pytest.raises(ConfigError, match="config: empty config"):
        config_from_mapping({})


def test_loading_imports_nothing_heavy():
    code = (
        "import sys, rl_training.experiment.loading as loading; loading.load_config('ppo/cartpole'); "
        "print(sorted({'torch', 'gymnasium', 'mlflow', 'prefect', 'scipy', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
