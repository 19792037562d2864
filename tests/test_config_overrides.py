"""Overrides are checked and reported alike from a file, from --set, and from the mappings of flows and Python."""

import numpy as np
import pytest

from rl_training.config.parsing import merge, merge_overrides, read_overrides
from rl_training.errors import ConfigError
from rl_training.experiment.loading import config_from_mapping, config_from_text

BASE = """\
algo: ppo
env_id: CartPole-v1
total_timesteps: 2048
learning_rate: 0.001
evaluation: {every: 512, episodes: 20}
env_kwargs: {size: 3, inner: {a: 1, b: 2}}
tags: [baseline]
network: {hidden: [64, 64]}
"""


def read(overrides):
    return config_from_text(BASE, overrides, source="my.yaml")


def refusals(overrides) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(overrides)
    return str(caught.value).splitlines()


def test_overrides_merge_and_never_replace():
    for overrides in (
        ["evaluation.every=1e3", "env_kwargs.inner.b=5", "tags.team=x", "seed=3"],
        {"evaluation.every": 1000, "env_kwargs": {"inner": {"b": 5}}, "tags.team": "x", "seed": 3},
        {"evaluation": {"every": 1000}, "env_kwargs.inner": {"b": 5}, "tags": {"team": "x"}, "seed": 3},
        '{"evaluation": {"every": 1000}, "env_kwargs": {"inner": {"b": 5}}, "tags": {"team": "x"}, "seed": 3}',
    ):
        config = read(overrides)
        assert (config.evaluation.every, config.evaluation.episodes, config.seed) == (1000, 20, 3)
        assert config.env_kwargs == {"size": 3, "inner": {"a": 1, "b": 5}}
        assert config.tags == {"baseline": "", "team": "x"}
        assert config.learning_rate == 0.001


def test_overrides_laid_over_others_are_one_set_of_them():
    both = merge_overrides(
        {"evaluation": {"every": 500, "episodes": 3}, "seed": 1}, ["evaluation.every=1e3", "tags.team=x"]
    )
    config = read(both)
    assert (config.evaluation.every, config.evaluation.episodes, config.seed) == (1000, 3, 1)
    assert config.tags == {"baseline": "", "team": "x"}


def test_lists_are_replaced():
    assert read(["network.hidden=[32]"]).network.hidden == (32,)
    assert read({"network.hidden": [32]}).network.hidden == (32,)
    assert read({"tags": ["other"]}).tags == {"baseline": "", "other": ""}


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("learning_rate", "1e-4", 0.0001),
        ("total_timesteps", "3e3", 3000),
        ("normalize_advantage", "False", False),
        ("normalize_advantage", "off", False),
        ("run_name", "123", "123"),
        ("run_name", "007", "007"),
        ("run_name", "a # b: c", "a # b: c"),
        ("experiment", "'quoted'", "quoted"),
        ("env_id", "trialplug:trialplug/Walk-v0", "trialplug:trialplug/Walk-v0"),
        ("env_kwargs", '{"a": 1}', {"size": 3, "inner": {"a": 1, "b": 2}, "a": 1}),
        ("wrappers", "[FlattenObservation]", None),
        ("run_name", "", None),
        ("max_episode_steps", "null", None),
    ],
)
def test_values_of_the_command_line(key, text, value):
    got = getattr(read([f"{key}={text}"]), key)
    if key == "wrappers":
        assert [wrapper.name for wrapper in got] == ["FlattenObservation"]
    else:
        assert got == value
        assert type(got) is type(value)


@pytest.mark.parametrize(
    ("key", "given", "value"),
    [
        ("learning_rate", 1e-4, 0.0001),
        ("learning_rate", "1e-4", 0.0001),
        ("learning_rate", np.float32(0.5), 0.5),
        ("total_timesteps", 3e3, 3000),
        ("total_timesteps", "3e3", 3000),
        ("total_timesteps", np.int64(3000), 3000),
        ("normalize_advantage", False, False),
        ("normalize_advantage", "False", False),
        ("normalize_advantage", "off", False),
        ("run_name", 123, "123"),
        ("run_name", "007", "007"),
        ("run_name", None, None),
        ("env_kwargs", {"flag": "off", "level": "007"}, None),
        ("env_kwargs", '{"flag": "off", "level": "007"}', None),
    ],
)
def test_values_of_a_flows_parameters(key, given, value):
    got = getattr(read({key: given}), key)
    if key == "env_kwargs":
        assert (got["flag"], got["level"], got["size"]) == ("off", "007", 3)
    else:
        assert got == value
        assert type(got) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "python", "expected"),
    [
        ("learning_rate", "NaN", float("nan"), "expected a "),
        ("learning_rate", ".nan", "NaN", "expected a "),
        ("learning_rate", "true", True, "expected a number"),
        ("batch_size", "32.5", 32.5, "got 32.5, expected a whole number"),
        ("batch_size", "3000.5", "3000.5", "expected a whole number"),
        ("normalize_advantage", "1", 1, "got 1, expected true or false"),
        ("env_kwargs", "'text'", "{'a': 1}", 'expected a mapping, such as {name: value} (as JSON: {"name": value})'),
        ("evaluation", "3", 3, "got 3, expected a mapping"),
        ("seed", "-1", -1, "got -1, expected greater than or equal to 0"),
        ("learing_rate", "3", 3, "unknown key; did you mean learning_rate?"),
        ("lerning", "3", 3, "unknown key; "),
        ("evaluation.evry", "3", 3, "unknown key; did you mean every?"),
        ("episodes", "3", 3, "unknown key; it belongs in evaluation"),
        ("batch-size", "3", 3, "unknown key; did you mean batch_size?"),
        ("algo", "pppo", "pppo", "expected one of dqn, ppo, sac, td3, tqc (did you mean ppo?)"),
    ],
)
def test_the_same_answers_from_everywhere(key, text, python, expected):
    (of_set,) = refusals([f"{key}={text}"])
    assert of_set.startswith(f"--set {key}: ")
    (of_flow,) = refusals({key: python})
    assert of_flow.startswith(f"overrides: {key}: ")
    assert expected in of_set
    assert expected in of_flow


def test_faults_of_file_and_overrides_together_each_at_its_source():
    with pytest.raises(ConfigError) as caught:
        config_from_text(BASE + "sede: 1\nseed: x\n", ["gamma=2", "batch_size=4096", "seed=2"], source="my.yaml")
    assert str(caught.value).splitlines() == [
        "my.yaml:9: sede: unknown key; did you mean seed?",
        "--set gamma: got 2, expected less than or equal to 1",
        "--set batch_size: got 4096, expected at most num_envs * rollout_steps = 8 * 128 = 1024; "
        "lower batch_size or raise rollout_steps",
    ]


def test_a_combination_names_the_override_that_brought_it_about():
    (line,) = refusals(["rollout_steps=4"])
    assert line.startswith("--set rollout_steps: batch_size: got 64, expected at most num_envs * rollout_steps")


def test_a_key_given_twice_is_refused():
    assert refusals(["seed=1", "seed=2"]) == ["--set seed: seed: given twice; keep one"]
    assert refusals({"evaluation.every": 1, "evaluation": {"every": 2}}) == [
        "overrides: evaluation.every: given twice; keep one"
    ]
    assert refusals(["evaluation=3", "evaluation.every=2"]) == [
        "--set evaluation.every: evaluation: given twice; keep one"
    ]
    assert refusals(["env_kwargs={a: 1, a: 2}"]) == ["--set env_kwargs.a: given twice; keep one"]


@pytest.mark.parametrize("text", ["seed", "=3", ".seed=3", "a..b=3", "", "seed 3"])
def test_what_is_no_assignment(text):
    (line,) = refusals([text])
    assert line.endswith("expected key=value, such as --set evaluation.every=5000")


@pytest.mark.parametrize("value", ["[1, 2", "{a: 1", "'open", "{a: !!python/name:os.getpid }", "[1] 2"])
def test_broken_values_are_refused_in_one_line(value):
    (line,) = refusals([f"network.hidden={value}"])
    assert line.startswith("--set network.hidden")


def test_a_text_in_place_of_a_mapping_of_overrides():
    for text in ("seed=3", "[1]", "{'seed': 3}"):
        assert refusals(text) == ['overrides: got a text, expected a mapping such as {"learning_rate": 0.001}']


def test_python_values_that_no_file_can_hold_are_refused():
    assert refusals({"env_kwargs": {"a": [{"b": object()}]}}) == [
        "overrides: env_kwargs.a.0.b: got a value of type object, "
        "expected a mapping, list, text, number, truth value or None"
    ]
    assert refusals({"env_kwargs": {1: 2}}) == ["overrides: env_kwargs: got the key 1, expected text"]
    assert refusals({"env_kwargs": {"a": float("inf")}}) == [
        "overrides: env_kwargs.a: got inf, expected a finite number"
    ]
    with pytest.raises(ConfigError, match="config: got a value of type list, expected a mapping"):
        config_from_mapping([("algo", "ppo")])


def test_another_algorithm_by_override_is_checked_as_that_algorithm():
    assert refusals({"algo": "nope"})[0].startswith("overrides: algo: got the text")


def test_merge_is_associative_on_sections():
    first, second, third = (read_overrides(o) for o in (["a.x=1", "b=2"], ["a.y=3"], ["a.x=4", "c.z=5"]))
    assert merge(merge(first, second), third) == merge(first, merge(second, third))
