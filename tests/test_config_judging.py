"""Settings of curricula, evaluation's own environment, callbacks and sinks: what is read, and what is refused."""

import pytest

from rl_training import PPOConfig
from rl_training.config.resume_rules import Rule, find_differences
from rl_training.config.serialization import config_hash, dump_config
from rl_training.envs.contract.contract_guard import find_secrets
from rl_training.errors import ConfigError
from rl_training.experiment.loading import config_from_text

HEAD = "algo: ppo\nenv_id: CartPole-v1\ntotal_timesteps: 2048\n"


def read(text: str) -> PPOConfig:
    config = config_from_text(HEAD + text, source="my.yaml")
    assert isinstance(config, PPOConfig)
    return config


def faults(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return str(caught.value).splitlines()


def test_a_curriculum_is_read_with_its_conditions():
    config = read(
        "curriculum:\n  - attributes: {gravity: 5}\n  - {success_rate: 0.8, episodes: 20, attributes: {gravity: 8}}\n"
        "  - {from_step: 1e3, reset_options: {low: -0.1}}\n"
    )
    assert [stage.from_step for stage in config.curriculum] == [None, None, 1_000]
    assert config.curriculum[1].success_rate == 0.8


@pytest.mark.parametrize(
    ("stages", "lines"),
    [
        (
            "[{attributes: {a: 1}}, {attributes: {a: 2}}]",
            ["curriculum.1: got no condition, expected from_step or success_rate; only stage 0 has none"],
        ),
        (
            "[{from_step: 5, success_rate: 0.5, attributes: {a: 1}}]",
            ["curriculum.0.success_rate: got from_step too, expected one of the two"],
        ),
        (
            "[{from_step: 500, attributes: {a: 1}}, {success_rate: 0.5, attributes: {a: 2}}, "
            "{from_step: 500, attributes: {a: 3}}]",
            ["curriculum.2.from_step: got 500, expected more than 500, where an earlier stage begins"],
        ),
        (
            "[{from_step: 5}]",
            ["curriculum.0: got a stage that changes nothing, expected attributes or reset_options"],
        ),
        ("[{from_step: 5, atributes: {a: 1}}]", ["curriculum.0.atributes: unknown key; did you mean attributes?"]),
        (
            "[{attributes: {__dict__: {}, 'a b': 1}}]",
            [
                "curriculum.0.attributes.__dict__: expected the name of a public attribute",
                "curriculum.0.attributes.a b: expected the name of a public attribute",
            ],
        ),
        (
            "[{success_rate: 80, attributes: {a: 1}}]",
            ["curriculum.0.success_rate: got 80, expected less than or equal to 1"],
        ),
        (
            "[{success_rate: 0.8, episodes: 1e9, attributes: {a: 1}}]",
            ["curriculum.0.episodes: got 1e9, expected less than or equal to 100000"],
        ),
    ],
)
def test_a_stage_that_can_not_work_is_named_with_its_place(stages, lines):
    assert faults(f"curriculum: {stages}\n") == [f"my.yaml:4: {line}" for line in lines]


@pytest.mark.parametrize("key", ["wrappers", "training_wrappers"])
def test_native_environments_are_not_wrapped_in_training(key):
    (line,) = faults(f"vectorization: native\n{key}: [TimeAwareObservation]\n")
    assert line.startswith(f"my.yaml:5: {key}: got TimeAwareObservation with vectorization: native")
    assert read("vectorization: native\nevaluation: {wrappers: [TimeAwareObservation]}\n").evaluation.wrappers


@pytest.mark.parametrize(("key", "value"), [("reset_options", "{start: 1}"), ("curriculum", "[{attributes: {a: 1}}]")])
def test_compiled_environments_take_no_options_and_no_curriculum(key, value):
    (line,) = faults(f"vectorization: envpool\n{key}: {value}\n")
    assert line.startswith(f"my.yaml:5: {key}: got it with vectorization: envpool, whose compiled environments take no")
    assert getattr(read(f"vectorization: native\n{key}: {value}\n"), key)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("reset_options: {start: '${env:START}'}", "reset_options.start"),
        ("reset_options: {api_token: abc}", "reset_options.api_token"),
        ("evaluation: {reset_options: {start: '${env:START}'}}", "evaluation.reset_options.start"),
        ("curriculum: [{attributes: {password: x}}]", "curriculum.0.attributes.password"),
        ("curriculum: [{reset_options: {a: {b: '${env:B}'}}}]", "curriculum.0.reset_options.a"),
    ],
)
def test_a_secret_is_refused_where_a_replay_would_need_it(text, key):
    assert faults(text) == [
        f"my.yaml:4: {key}: got a secret (a reference, or a name that says so), which can't be recorded as a resume "
        f"needs it; pass secrets in env_kwargs"
    ]


def test_settings_of_judging_that_nothing_satisfies_are_refused():
    assert faults("evaluation: {stop_after: 3}") == [
        "my.yaml:4: evaluation.stop_after: got 3 without evaluation.stop_at_return; set both, or leave it at 2"
    ]
    assert read("evaluation: {stop_after: 3, stop_at_return: 475}").evaluation.stop_after == 3
    # 20 successes of 20: 0.05 ** (1 / 20) = 0.86089.
    (line,) = faults("promotion: {success_floor: 0.9, episodes: 20}")
    assert line.startswith(
        "my.yaml:4: promotion.success_floor: got 0.9, expected at most 0.8609: the lower bound of 20"
    )
    assert read("promotion: {success_floor: 0.86, episodes: 20}").promotion.success_floor == 0.86


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("eval_env", "did you mean env_id in evaluation?"),
        ("callback", "did you mean callbacks?"),
        ("info_keywords", "did you mean info in metrics?"),
        ("tensorboard_log", "did you mean sinks in tracking?"),
        ("reward_threshold", "did you mean stop_at_return in evaluation?"),
        ("success_floor", "it belongs in promotion"),
        ("options", "did you mean reset_options?"),
    ],
)
def test_names_of_other_tools_lead_to_the_new_settings(key, advice):
    assert faults(f"{key}: 1\n") == [f"my.yaml:4: {key}: unknown key; {advice}"]


def test_info_keys_are_names_of_metrics():
    assert read("metrics: {info: [collisions, arm/force]}").metrics.info == ("collisions", "arm/force")
    for name in ("a%b", "a//b", "../x", "''"):
        (line,) = faults(f"metrics: {{info: [{name}]}}")
        assert "metrics.info.0: got" in line
        assert "as MLflow needs for a metric's name" in line


def test_the_stages_of_a_curriculum_are_bounded():
    stages = ", ".join(f"{{from_step: {i}, attributes: {{a: 1}}}}" for i in range(1_001))
    (line,) = faults(f"curriculum: [{stages}]")
    assert "curriculum: got a list, expected " in line
    assert "1000" in line


def test_received_settings_can_not_ask_for_many_numbers_of_each_environment():
    names = ", ".join(f"n{i}" for i in range(101))
    (line,) = faults(f"metrics: {{info: [{names}]}}")
    assert "metrics.info: got a list, expected " in line
    assert "100" in line


def test_secrets_of_all_environments_and_callbacks_are_hidden_and_references_kept():
    config = read(
        "training_wrappers: [{name: 'a:B', kwargs: {token: one-secret}}]\n"
        "callbacks: [{name: 'a:C', kwargs: {api_key: 'two-secret', webhook: '${env:HOOK}'}}]\n"
        "evaluation:\n  env_kwargs: {password: three-secret}\n"
        "  wrappers: [{name: 'a:B', kwargs: {token: four-secret}}]\n"
    )
    text = dump_config(config)
    assert "-secret" not in text
    assert "-secret" not in repr(config)
    assert "${env:HOOK}" in text
    assert {"one-secret", "three-secret", "four-secret"} <= find_secrets(config)
    renewed = config_from_text(text, ["callbacks=[{name: 'a:C', kwargs: {api_key: x, webhook: y}}]"], source="c.yaml")
    assert config_hash(config) == config_hash(renewed)


def test_what_new_settings_may_do_on_resume():
    before = read("")
    after = read(
        "curriculum: [{attributes: {gravity: 5}}]\nreset_options: {low: 0}\ntraining_wrappers: ['a:B']\n"
        "callbacks: ['a:C']\nmetrics: {info: [x]}\ntracking: {sinks: [tensorboard]}\n"
        "evaluation: {env_id: A-v0, stop_at_return: 5}\npromotion: {success_floor: 0.5, allow_cut: true}\n"
    )
    rules = {difference.key.split(".")[0]: difference.rule for difference in find_differences(before, after)}
    assert rules == {
        "curriculum": Rule.MUST_EQUAL,
        "reset_options": Rule.MUST_EQUAL,
        "training_wrappers": Rule.MUST_EQUAL,
        "callbacks": Rule.INEXACT,
        "metrics": Rule.MAY_CHANGE,
        "tracking": Rule.MAY_CHANGE,
        "evaluation": Rule.MAY_CHANGE,
        "promotion": Rule.MAY_CHANGE,
    }
