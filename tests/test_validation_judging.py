"""What validation finds about reset options, curricula, evaluation's environment, infos, masks and large spaces."""

from __future__ import annotations

from typing import Any

import pytest

from rl_training.config.algorithms.dqn import DQNConfig
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs.validation import step_speed
from rl_training.envs.validation.validate import Finding, ValidationReport, require_valid, validate_env
from rl_training.errors import EnvironmentRefused
from rl_training.experiment.registry import get_algorithm

TOLD = "judged_envs:Told-v0"
NEEDS = "judged_envs:NeedsStart-v0"


@pytest.fixture(autouse=True)
def _untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_speed, "TIMED_SECONDS", 1e-9)


def validate(env_id: str, **fields: Any) -> ValidationReport:
    return validate_env(PPOConfig(env_id=env_id, total_timesteps=1_000, num_envs=2, **fields))


def only(report: ValidationReport, code: str) -> Finding:
    assert [finding.code for finding in report.findings] == [code]
    return report.findings[0]


def test_an_environment_that_needs_options_is_played_with_those_of_the_settings():
    report = validate(NEEDS, reset_options={"start": 1.0})
    assert report.findings == ()
    assert report.episodes_played == 2


def test_without_its_options_the_refusal_names_the_setting():
    with pytest.raises(EnvironmentRefused, match=r"options\['start'\] is missing; reset got no options: give them in "
                                                 r"reset_options"):  # fmt: skip
        require_valid(validate(NEEDS))


def test_options_of_a_first_stage_count_from_the_first_reset_on():
    stages = [{"reset_options": {"start": 1.0}}, {"from_step": 100, "reset_options": {"start": 2.0}}]
    assert validate(NEEDS, curriculum=stages).findings == ()


def test_attributes_of_a_curriculum_must_exist():
    assert validate(TOLD, curriculum=[{"attributes": {"drift": 0.5}}]).findings == ()
    stages = [{"attributes": {"drift": 0.5}}, {"from_step": 100, "attributes": {"drfit": 1.0}}]
    finding = only(validate(TOLD, curriculum=stages), "curriculum")
    assert finding.severity == "fatal"
    assert finding.message == (
        "curriculum.1.attributes.drfit: environment 'judged_envs:Told-v0' has no attribute 'drfit'; did you mean drift?"
    )


def test_an_attribute_that_no_resume_can_set_again_is_a_warning():
    finding = only(validate(TOLD, curriculum=[{"attributes": {"tool": 1.0}}]), "curriculum")
    assert finding.severity == "warning"
    assert finding.message.startswith("curriculum.0.attributes.tool: it is private or no plain data")


def test_native_environments_are_taken_through_the_stages_too():
    native = {"vectorization": "native", "env_id": TOLD}
    stages = [{"attributes": {"drift": 0.5}}, {"from_step": 9, "reset_options": {"start": 1.0}}]
    assert validate(**native, curriculum=stages).findings == ()
    # The single environment has `goal`, the native one has not.
    finding = only(validate(**native, curriculum=[{"attributes": {"goal": 1.0}}]), "curriculum")
    assert finding.message.startswith("stage 0 of the curriculum: environment 'judged_envs:Told-v0' has no attribute")


def test_options_of_a_curriculum_must_be_accepted():
    stages = [{"reset_options": {"start": 1.0}}, {"from_step": 100, "reset_options": {"start": "far"}}]
    finding = only(validate(NEEDS, curriculum=stages), "raised")
    assert finding.message.startswith("the reset in stage 1 of the curriculum raised ValueError")


def test_numbers_that_the_settings_ask_for_and_no_info_has_are_warnings():
    assert validate(TOLD, metrics={"info": ["collisions", "ratio"]}, promotion={"success_floor": 0.5}).findings == ()
    finding = only(validate(TOLD, metrics={"info": ["colisions"]}), "no-info")
    assert finding.severity == "warning"
    assert finding.message == (
        "metrics.info needs info['colisions'] in the last step of an episode, and none of 2 episodes gave it (keys "
        "there: collisions, is_success, note, ratio)"
    )
    assert "is a str" in only(validate(TOLD, metrics={"info": ["note"]}), "info-type").message


def test_a_success_rate_without_successes_is_a_warning():
    stages = [{"attributes": {"length": 5}}, {"success_rate": 0.8, "attributes": {"length": 9}}]
    finding = only(validate("case_envs:Plain-v0", curriculum=stages, promotion={"success_floor": 0.5}), "no-info")
    assert finding.message.startswith("curriculum.1.success_rate, promotion.success_floor needs info['is_success']")


@pytest.mark.parametrize("algorithm", [PPOConfig, DQNConfig])
def test_an_action_mask_that_nothing_applies_is_a_warning(algorithm):
    name = algorithm(env_id="A-v0", total_timesteps=5_000).algo
    for env_id, where in (("Masked-v0", "its infos"), ("MaskedView-v0", "its observation")):
        report = validate_env(algorithm(env_id=f"case_envs:{env_id}", total_timesteps=5_000))
        assert report.ok
        (finding,) = [finding for finding in report.warnings if finding.code == "action-mask"]
        assert f"it gives an action_mask in {where}" in finding.message
        assert f"{name} does not apply it" in finding.message


def test_evaluations_own_environment_is_played_too():
    own = {"env_id": "case_envs:NanEarly-v0"}
    finding = only(validate("case_envs:Plain-v0", evaluation=own), "not-finite")
    assert finding.message.startswith("in evaluation's environment case_envs:NanEarly-v0: ")
    assert finding.severity == "fatal"
    assert validate("case_envs:Plain-v0", evaluation={"env_id": "case_envs:CutAtTen-v0"}).findings == ()


def test_evaluations_spaces_must_equal_those_of_training():
    finding = only(validate("case_envs:Plain-v0", evaluation={"env_id": "CartPole-v1"}), "space-changed")
    assert "one policy acts in both, so they must be equal" in finding.message
    shaped = [{"name": "judged_envs:Shaped", "kwargs": {"bonus": 1.0}}]
    assert validate(TOLD, training_wrappers=shaped).findings == ()
    finding = only(
        validate(TOLD, training_wrappers=[{"name": "FrameStackObservation", "kwargs": {"stack_size": 2}}]),
        "space-changed",
    )
    assert finding.message.endswith("name wrappers that change a space under wrappers")


def test_evaluations_options_are_its_own():
    report = validate(NEEDS, reset_options={"start": 1.0}, evaluation={"reset_options": {"begin": 2.0}})
    assert "options['start'] is missing" in only(report, "raised").message
    ok = validate(NEEDS, reset_options={"start": 1.0}, evaluation={"reset_options": {"start": 2.0}})
    assert ok.findings == ()


@pytest.mark.parametrize("algorithm", [PPOConfig, DQNConfig])
def test_too_many_choices_are_refused_with_the_arithmetic(algorithm):
    many = {"env_id": "case_envs:Many-v0", "total_timesteps": 5_000}
    config = algorithm(**many)
    finding = only(validate_env(config, get_algorithm(config.algo).check_spaces), "observation-space")
    assert finding.severity == "fatal"
    assert "5,000,000 * 4 bytes = 20 MB, in each step; expected at most 1,000,000" in finding.message
    allowed = algorithm(env_id="case_envs:Many-v0", env_kwargs={"count": 1_000_000}, total_timesteps=5_000)
    assert validate_env(allowed).findings == ()


def test_fewer_episodes_than_the_confidence_needs_are_a_warning():
    finding = only(validate(TOLD, promotion={"episodes": 58}), "few-episodes")
    assert finding.severity == "warning"
    assert "set promotion.episodes to at least 59" in finding.message
    for fine in ({"episodes": 59}, {"episodes": 45, "confidence": 0.9}, {"episodes": 20, "enabled": False}):
        assert validate(TOLD, promotion=fine).findings == ()
