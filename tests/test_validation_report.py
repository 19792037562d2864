"""The validation report: each finding once, counted, with its first step and value."""

from __future__ import annotations

from typing import Any

import pytest

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs.validation.validate import ValidationReport, require_valid, validate_env
from rl_training.errors import EnvironmentRefused


def validate(name: str, **bounds: Any) -> ValidationReport:
    config = PPOConfig(env_id=f"case_envs:{name}-v0", total_timesteps=1, num_envs=2, rollout_steps=128)
    return validate_env(config, **bounds)


def test_require_valid_lists_every_fatal_finding_on_a_line() -> None:
    require_valid(validate("DtypeLie"))
    with pytest.raises(EnvironmentRefused) as refused:
        require_valid(validate("OldApi"))
    lines = str(refused.value).splitlines()
    assert lines[0] == "environment case_envs:OldApi-v0 can't be trained on:"
    assert len(lines) == 3
    assert lines[1].startswith("fatal: reset-result at step 0: reset returned an array")


def test_lines_are_the_outcome_and_each_finding() -> None:
    report = validate("NanEarly")
    summary, line = report.lines()
    assert summary == ("environment case_envs:NanEarly-v0 is refused: 1 fatal, 0 warnings; 2 episodes, 20 steps")
    assert line == ("fatal: not-finite at step 3: step: observation feature 1 is nan; it must be finite (2 times)")


def test_of_both_spaces_that_change_each_is_named() -> None:
    report = validate("BothSpacesChange")
    found = [(f.code, f.step, f.count, f.message.split(";")[0]) for f in report.fatal]
    # Looked at after the last step of the first episode, and then after each reset and last step.
    assert found == [
        (
            "space-changed",
            10,
            3,
            "observation_space changed from Box(-1.0, 1.0, (4,), float32) to Box(-2.0, 2.0, (4,), float32)",
        ),
        ("space-changed", 10, 3, "action_space changed from Discrete(2) to Discrete(3)"),
    ]


def test_both_parts_of_an_observation_that_are_wrong_are_named() -> None:
    found = [(f.code, f.message.split(" is ")[0], f.count) for f in validate("TwoWrongParts").findings]
    assert found == [
        ("dtype", "reset: observation arm", 2),
        ("dtype", "reset: observation hand", 2),
        ("dtype", "step: observation arm", 20),
        ("dtype", "step: observation hand", 20),
    ]


def test_each_feature_at_fault_is_named_with_its_first_step_and_value_and_counted() -> None:
    report = validate("ThreeOutOfBounds")
    found = [(f.severity, f.code, f.step, f.feature, f.value, f.count) for f in report.findings]
    assert found == [
        ("fatal", "not-finite", 4, "1", "inf", 2),
        ("warning", "outside", 2, "0", "1.5", 18),
        ("warning", "outside", 4, "3", "-7.0", 2),
    ]


def test_a_count_of_one_is_in_the_singular() -> None:
    report = validate("OneStep", episodes=1)
    assert ": 0 fatal, 0 warnings; 1 episode, 1 step" in report.lines()[0]
    endless = validate("Endless", episodes=1, max_steps=1)
    assert endless.findings[0].message.startswith("episode 1 did not end within 1 step and there is")
    assert "1 warning; 0 episodes, 1 step" in endless.lines()[0]


def test_many_features_at_fault_are_named_up_to_a_bound_and_fatal_comes_first() -> None:
    report = validate("NoisyBounds")
    warnings = [finding for finding in report.findings if finding.severity == "warning"]
    # Each of the twenty steps of an episode has its own feature at fault.
    assert [(f.feature, f.step, f.count) for f in warnings] == [
        *((str(step), step, 2) for step in range(1, 9)),
        (None, 9, 24),
    ]
    assert warnings[-1].message == (
        "step: others too; the first: observation feature 9 is 2.0; the space declares 0.0 to 1.0"
    )
    assert [f.severity for f in report.findings] == sorted((f.severity for f in report.findings), key="fatal".__ne__)
    assert report.findings[0].code == "reward-type"
