"""The settings of DQN, including those of all off-policy algorithms: what is read, and what is refused."""

from typing import Any

import pytest

from rl_training.config.algorithms.dqn import DQNConfig
from rl_training.config.shipped_configs import list_shipped_configs
from rl_training.errors import ConfigError
from rl_training.experiment.loading import config_from_text, load_config

HEAD = "algo: dqn\nenv_id: CartPole-v1\ntotal_timesteps: 3000\n"


def read(text: str) -> DQNConfig:
    config = config_from_text(HEAD + text, source="my.yaml")
    assert isinstance(config, DQNConfig)
    return config


def faults(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config_from_text(HEAD + text, source="my.yaml")
    return str(caught.value).splitlines()


def test_numbers_are_read_however_they_are_spelt() -> None:
    text = "buffer_size: 2e3\nlearning_starts: 2.0e2\nlearning_rate: 1e-3\nexploration: {end: 5e-2, fraction: 0.5}\n"
    config = read(text)
    assert (config.buffer_size, config.learning_starts, config.learning_rate) == (2_000, 200, 0.001)
    assert [type(value) for value in (config.buffer_size, config.learning_starts)] == [int, int]
    assert (config.exploration.start, config.exploration.end, config.exploration.fraction) == (1.0, 0.05, 0.5)


def test_fractions_of_a_count_and_text_are_refused_by_name() -> None:
    assert faults('batch_size: 32.5\nlearning_starts: 200.0\ngamma: "0.99"\n') == [
        "my.yaml:4: batch_size: got 32.5, expected a whole number",
        'my.yaml:6: gamma: got the text "0.99", expected a number, without quotes',
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "batch_size: 256\nbuffer_size: 100\nlearning_starts: 50\n",
            "my.yaml:4: batch_size: got 256, expected at most buffer_size = 100; lower batch_size or raise buffer_size",
        ),
        (
            "num_envs: 3\nbuffer_size: 1_000\n",
            "my.yaml:5: buffer_size: got 1000, expected a multiple of num_envs = 3, such as 1002",
        ),
        (
            "num_envs: 5\nbuffer_size: 100\nbatch_size: 8\nn_step: 21\n",
            "my.yaml:7: n_step: got 21, expected at most buffer_size / num_envs = 20, the number of "
            "steps that are stored for each environment",
        ),
        (
            "learning_starts: 3000\nbatch_size: 32\n",
            "my.yaml:4: learning_starts: got 3000, and the run ends at total_timesteps = 3000 with 0 updates: the "
            "first one waits for learning_starts and for batch_size = 32 transitions, then for train_freq = 4 more; "
            "lower learning_starts or raise total_timesteps",
        ),
        (
            "hindsight: {}\nn_step: 2\n",
            "my.yaml:5: n_step: got 2 with hindsight, which computes the reward of a single step for another goal; "
            "set it to 1, or leave hindsight out",
        ),
        (
            "hindsight: {}\nframe_channels: 1\n",
            "my.yaml:5: frame_channels: got 1 with hindsight, whose observations are not images alone; leave it out",
        ),
        (
            "hindsight: {}\ncurriculum:\n  - attributes: {size: 1.0}\n",
            "my.yaml:6: curriculum.0.attributes: got size with hindsight, whose rewards come from an environment that "
            "callbacks and curricula do not change; use reset_options, or leave hindsight out",
        ),
        (
            "hindsight: {relabelled_fraction: 0}\n",
            "my.yaml:4: hindsight.relabelled_fraction: got 0, expected greater than 0",
        ),
        ("target_update: 10\n", "my.yaml:4: target_update: unknown key; did you mean target_update_every?"),
        ("exploration: {end: 1.5}\n", "my.yaml:4: exploration.end: got 1.5, expected less than or equal to 1"),
        ("gamma: 0\n", "my.yaml:4: gamma: got 0, expected greater than 0"),
    ],
)
def test_what_cannot_work_is_refused_with_the_numbers(text: str, fault: str) -> None:
    assert faults(text) == [fault]


def settings(**fields: Any) -> DQNConfig:
    base = {"env_id": "A-v0", "total_timesteps": 10_000, "learning_starts": 100, "train_freq": 4, "gradient_steps": 2}
    return DQNConfig.model_validate({**base, **fields})


def test_updates_due_are_a_function_of_the_step_alone() -> None:
    config = settings()
    assert [config.updates_due(step) for step in (0, 99, 100, 103, 104, 107, 108, 1_000)] == [0, 0, 0, 0, 2, 2, 4, 450]
    assert settings(learning_starts=0, batch_size=64).updates_due(68) == 2  # the first batch waits to be filled
    assert settings(learning_starts=0, batch_size=64).updates_due(64) == 0
    assert settings(num_envs=50).updates_due(150) == config.updates_due(150) == 24


def test_a_warm_up_is_refused_exactly_where_it_leaves_no_update() -> None:
    assert settings(learning_starts=9_999).updates_due(10_000) == 2
    assert settings(learning_starts=10_000, total_timesteps=10_004).updates_due(10_004) == 2
    for total in (10_000, 10_003):  # the block that ends at 10,000 is the warm-up's, and the next one is not complete
        with pytest.raises(ConfigError, match="with 0 updates"):
            settings(learning_starts=10_000, total_timesteps=total)
    assert settings(learning_starts=10_000, total_timesteps=10_003, num_envs=4).updates_due(10_004) == 2


@pytest.mark.parametrize("name", [name for name in list_shipped_configs() if not name.startswith("ppo/")])
def test_shipped_settings_are_valid_and_say_what_they_train(name: str) -> None:
    config = load_config(name)
    assert config.algo == name.split("/")[0]
    assert config.evaluation.final_episodes == config.promotion.episodes == 100
    assert config.promotion.model == config.experiment == name.split("/")[1]


def test_a_shipped_file_takes_overrides() -> None:
    config = load_config("dqn/cartpole", ["double=false", "exploration.end=0.1"])
    assert isinstance(config, DQNConfig)
    assert (config.double, config.exploration.end, config.exploration.fraction) == (False, 0.1, 0.16)
