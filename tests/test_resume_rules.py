"""Which settings may differ between a checkpoint and the run that resumes from it."""

import pytest

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.resume_rules import RULES, Rule, check_differences, find_differences
from rl_training.errors import CheckpointError

BEFORE = PPOConfig(env_id="CartPole-v1", total_timesteps=10_000, vectorization="sync")


def changed(**fields: object) -> PPOConfig:
    return PPOConfig.model_validate({**BEFORE.model_dump(), **fields})


def test_every_rule_names_a_real_field() -> None:
    assert set(RULES) <= set(PPOConfig.model_fields)


def test_equal_settings_have_no_difference() -> None:
    assert find_differences(BEFORE, changed()) == []


def test_a_nested_setting_is_named_by_its_path_with_both_values() -> None:
    (found,) = find_differences(BEFORE, changed(evaluation={"every": 500}))
    assert (found.key, found.before, found.after, found.rule) == ("evaluation.every", 10_000, 500, Rule.MAY_CHANGE)


def test_a_mapping_that_was_empty_differs_by_its_keys_alone() -> None:
    filled = changed(reset_options={"map": 3, "empty": {}})
    assert [str(d) for d in find_differences(BEFORE, filled, "fine_tune")] == [
        "reset_options.empty: None -> {} (may change)",
        "reset_options.map: None -> 3 (may change)",
    ]
    assert [str(d) for d in find_differences(filled, BEFORE, "fine_tune")] == [
        "reset_options.empty: {} -> None (may change)",
        "reset_options.map: 3 -> None (may change)",
    ]


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"checkpoint": {"every": 5}}, Rule.MAY_CHANGE),
        ({"device": "cuda"}, Rule.INEXACT),
        ({"threads": 2}, Rule.INEXACT),
        ({"total_timesteps": 20_000}, Rule.MAY_GROW),
        ({"vectorization": "split"}, Rule.MAY_CHANGE),
        ({"vectorization": "async"}, Rule.MAY_CHANGE),
    ],
)
def test_what_may_differ_passes(fields: dict[str, object], rule: Rule) -> None:
    found = find_differences(BEFORE, changed(**fields))
    assert [d.rule for d in found] == [rule]
    check_differences(found)


@pytest.mark.parametrize(
    "fields",
    [{"gamma": 0.5}, {"num_envs": 4}, {"seed": 1}, {"network": {"hidden": (8,)}}, {"vectorization": "native"}],
)
def test_what_must_be_equal_is_refused_with_both_values(fields: dict[str, object]) -> None:
    found = find_differences(BEFORE, changed(**fields))
    with pytest.raises(CheckpointError, match=found[0].key) as error:
        check_differences(found)
    assert repr(found[0].before) in str(error.value)
    assert repr(found[0].after) in str(error.value)


def test_the_total_may_not_shrink() -> None:
    with pytest.raises(CheckpointError, match="total_timesteps: 10000 -> 5000"):
        check_differences(find_differences(BEFORE, changed(total_timesteps=5_000)))
