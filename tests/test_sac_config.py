"""The settings of SAC."""

import pytest

from rl_training.config.algorithms.sac import SACConfig
from rl_training.errors import ConfigError
from rl_training.experiment.loading import config_from_text

HEAD = "algo: sac\nenv_id: Pendulum-v1\ntotal_timesteps: 3000\n"


def read(text: str) -> SACConfig:
    config = config_from_text(HEAD + text, source="my.yaml")
    assert isinstance(config, SACConfig)
    return config


@pytest.mark.parametrize(
    ("spelt", "value"), [("auto", "auto"), ('"auto"', "auto"), ("0.2", 0.2), ("1", 1.0), ("0", 0.0)]
)
def test_the_entropy_weight_is_learned_or_a_number(spelt: str, value: float | str) -> None:
    assert read(f"entropy_coef: {spelt}\n").entropy_coef == value


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("entropy_coef: fast", "entropy_coef: got fast, expected a number or auto"),
        ("entropy_coef: -1", "entropy_coef: got -1, expected auto or a number from 0"),
        ("target_entropy: [1]", "target_entropy: got a list, expected a number or auto"),
        ("tau: 0", "tau: got 0, expected greater than 0"),
        ("initial_entropy_coef: auto", "initial_entropy_coef: got auto, expected a number"),
        ("double: true", "double: unknown key; "),
    ],
)
def test_what_is_no_setting_is_refused_by_name(text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config_from_text(HEAD + text, source="my.yaml")
    assert str(refused.value).startswith(f"my.yaml:4: {fault}")


def test_defaults_are_one_update_a_step_and_a_learned_weight() -> None:
    config = read("")
    assert (config.train_freq, config.gradient_steps, config.batch_size) == (1, 1, 256)
    assert (config.entropy_coef, config.target_entropy, config.initial_entropy_coef) == ("auto", "auto", 1.0)
    assert config.updates_due(3_000) == 2_000
