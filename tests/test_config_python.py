"""Settings made in Python: the same help as for a file, and changed copies."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from rl_training import DQNConfig, PPOConfig, SACConfig, TD3Config, TQCConfig
from rl_training.config.algorithms.ppo import NetworkConfig
from rl_training.config.sections import CurriculumStage, EvaluationConfig, WrapperConfig
from rl_training.errors import ConfigError

NEEDED = {"env_id": "CartPole-v1", "total_timesteps": 2_048}


def faults(make) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        make()
    return str(caught.value).splitlines()


def test_all_faults_are_reported_at_once_with_the_nearest_key():
    lines = faults(
        lambda: PPOConfig(
            algo="ppo", env_id="A-v0", learning_rte=1e-3, total_timesteps=1e5, network={"hiden": [64]}, seed=-1
        )
    )
    assert lines == [
        "PPOConfig: learning_rte: unknown key; did you mean learning_rate?",
        "PPOConfig: network.hiden: unknown key; did you mean hidden?",
        "PPOConfig: seed: got -1, expected greater than or equal to 0",
    ]


@pytest.mark.parametrize("config_type", [PPOConfig, DQNConfig, SACConfig, TD3Config, TQCConfig])
def test_what_is_missing_is_named_and_the_algorithm_is_known(config_type):
    assert faults(config_type) == [
        f"{config_type.__name__}: env_id: is required and missing",
        f"{config_type.__name__}: total_timesteps: is required and missing",
    ]
    config = config_type(env_id="A-v0", total_timesteps=10_000)
    assert config_type.__name__ == f"{config.algo.upper()}Config"


def test_floats_without_a_fraction_are_counts_and_lists_are_tuples():
    config = PPOConfig(**{**NEEDED, "total_timesteps": 1e5}, network={"hidden": [64.0, 32]}, wrappers=["ClipReward"])
    assert (config.total_timesteps, type(config.total_timesteps)) == (100_000, int)
    assert config.network.hidden == (64, 32)
    assert config.wrappers == (WrapperConfig(name="ClipReward"),)


def test_numbers_of_numpy_and_paths_and_tags_are_read_as_in_a_file():
    config = PPOConfig(**NEEDED, seed=np.int64(3), learning_rate=np.float32(0.5), run_dir="x", tags=["a", "b"])
    assert (config.seed, config.learning_rate) == (3, 0.5)
    assert config.run_dir == Path("x").absolute()
    assert config.tags == {"a": "", "b": ""}


def test_sections_are_objects_or_mappings():
    config = PPOConfig(**NEEDED, network=NetworkConfig(hidden=(8,)), evaluation={"every": 1e3})
    assert config.network.hidden == (8,)
    assert config.evaluation == EvaluationConfig(every=1_000)
    staged = PPOConfig(**NEEDED, curriculum=[CurriculumStage(attributes={"wind": 0.1})])
    assert staged.curriculum[0].attributes == {"wind": 0.1}


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"total_timesteps": "1e5"}, 'total_timesteps: got the text "1e5", expected a number, without quotes'),
        ({"total_timesteps": 10.5}, "total_timesteps: got 10.5, expected a whole number"),
        ({"seed": True}, "seed: got true, expected a whole number"),
        ({"normalize_advantage": 1}, "normalize_advantage: got 1, expected true or false"),
        ({"learning_rate": float("nan")}, "learning_rate: got nan, expected a finite number"),
        ({"vectorization": "asinc"}, 'vectorization: got the text "asinc", expected auto or sync or async or split or '
                                     "ray or native or envpool (did you mean async?)"),
        ({"batch_size": 4_096}, "batch_size: got 4096, expected at most num_envs * rollout_steps = 8 * 128 = 1024; "
                                "lower batch_size or raise rollout_steps"),
        ({"env_kwargs": {"a": {"b": len}}}, "env_kwargs.a.b: got a value of type builtin_function_or_method, expected "
                                            "a mapping, list, text, number, truth value or None"),
    ],
)  # fmt: skip
def test_a_fault_is_one_line_without_any_text_of_pydantic(given, line):
    assert faults(lambda: PPOConfig(**{**NEEDED, **given})) == [f"PPOConfig: {line}"]


def test_objects_of_python_are_refused_with_what_to_give_instead():
    lines = faults(lambda: PPOConfig(env_id=dict, wrappers=[len], callbacks=[object()], total_timesteps=1_000))
    assert lines == [
        'PPOConfig: env_id: got a value of type type, expected an id: gymnasium.register("My-v0", entry_point=MyEnv), '
        'then "My-v0"',
        'PPOConfig: wrappers.0: got a value of type builtin_function_or_method, expected names such as "ClipReward", '
        'or "module:Class" of your own',
        'PPOConfig: callbacks.0: got a value of type object, expected names such as "module:Class"; pass objects to '
        "train(config, callbacks=[...])",
    ]


def test_sections_by_themselves_get_the_same_help():
    assert faults(lambda: NetworkConfig(hiden=[3])) == ["NetworkConfig: hiden: unknown key; did you mean hidden?"]


def test_secrets_are_hidden_in_faults():
    (line,) = faults(lambda: PPOConfig(**NEEDED, run_name="${env:TOKEN}"))
    assert "expected plain text; secrets are resolved in env_kwargs" in line
    lines = faults(lambda: PPOConfig(**NEEDED, tags={"api_token": 1.5}))
    assert lines == ["PPOConfig: tags.api_token: got a value (hidden), expected text"]


def test_replace_returns_checked_settings_from_nested_and_dotted_keys():
    config = PPOConfig(**NEEDED, env_kwargs={"mode": "off"}, evaluation={"episodes": 3})
    changed = config.replace(seed=1, evaluation={"every": 5e3}, **{"network.hidden": [8]})
    assert (changed.seed, changed.network.hidden) == (1, (8,))
    assert (changed.evaluation.every, changed.evaluation.episodes) == (5_000, 3)
    assert changed.env_kwargs == {"mode": "off"}
    assert config.seed == 0
    assert config.replace() == config


def test_replace_reports_every_fault_and_checks_combinations():
    config = PPOConfig(**NEEDED)
    assert faults(lambda: config.replace(sead=1, evaluation={"evry": 5})) == [
        "overrides: evaluation.evry: unknown key; did you mean every?",
        "overrides: sead: unknown key; did you mean seed?",
    ]
    (line,) = faults(lambda: config.replace(rollout_steps=4))
    assert line.endswith("expected at most num_envs * rollout_steps = 8 * 4 = 32; lower batch_size or raise "
                         "rollout_steps")  # fmt: skip


def test_setting_a_field_names_the_way_to_change_it():
    config = PPOConfig(**NEEDED)
    with pytest.raises(ConfigError, match=r"seed: settings can't be changed; make changed ones with replace\(seed="):
        config.seed = 1
    assert config.seed == 0


def test_settings_survive_pickle_and_dumps():
    config = PPOConfig(**NEEDED, wrappers=["ClipReward"], run_dir="x", tags={"a": "b"})
    assert pickle.loads(pickle.dumps(config)) == config
    assert PPOConfig(**config.model_dump()) == config
    assert PPOConfig.model_validate_json(config.model_dump_json()) == config
