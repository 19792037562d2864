"""What validation finds in environments that pass Gymnasium's checker, and how it reports the findings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from case_envs import processes

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.envs.validation import step_speed
from rl_training.envs.validation.validate import Finding, ValidationReport, validate_env
from rl_training.errors import EnvironmentFault
from rl_training.experiment.registry import get_algorithm


@pytest.fixture(autouse=True)
def _timed_only_where_speed_is_tested(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "speed" not in request.node.name:
        monkeypatch.setattr(step_speed, "TIMED_SECONDS", 1e-9)


def settings(env_id: str, **fields: Any) -> PPOConfig:
    fields = {"normalization": {"reward": False}, **fields}
    return PPOConfig(env_id=env_id, total_timesteps=1, num_envs=2, rollout_steps=128, **fields)


def validate(name: str, **fields: Any) -> ValidationReport:
    return validate_env(settings(name if ":" in name else f"case_envs:{name}-v0", **fields))


def fault_of_a_run(name: str) -> str:
    """Returns the error of a run that validation did not stop."""
    envs = TrainingEnvs(settings(f"case_envs:{name}-v0"), gamma=None)
    envs.start()
    try:
        for _ in range(200):
            envs.step(np.zeros(2, np.int64))
    except EnvironmentFault as fault:
        return str(fault)
    raise AssertionError(f"{name} had no fault")


def only(report: ValidationReport, code: str) -> Finding:
    """The one finding of a report, which is of this kind."""
    assert [finding.code for finding in report.findings] == [code]
    return report.findings[0]


@pytest.mark.parametrize(
    "name",
    [
        *("Plain", "Float64Obs", "BigImage", "DictObs", "DiscreteObs", "MultiDiscAct", "MultiBinaryAct", "OffsetAct"),
        *("AsymAct", "CutAtTen", "BothFlags", "OneStep", "SeedEcho", "Coin", "ShortOrLong", "OddInfo"),
    ],
)
def test_sound_environments_have_no_finding(name: str) -> None:
    report = validate(name)
    assert report.findings == ()
    assert report.ok
    assert report.episodes_played == 2


def test_two_complete_episodes_are_played_by_default_and_timed() -> None:
    report = validate("Plain")
    assert (report.episodes_played, report.steps_played) == (2, 20)
    assert report.steps_per_second is not None
    assert report.lines()[0].endswith(f"2 episodes, 20 steps, {report.steps_per_second:,.0f} steps/s")
    assert 1_000 < report.steps_per_second < 10_000_000
    assert report.observation_space == "Box(-1.0, 1.0, (4,), float32)"
    assert report.action_space == "Discrete(2)"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that the sleep of the environments alone moves on, however busy the machine is."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    told = SimpleNamespace(sleep=sleep, perf_counter=lambda: now[0], monotonic=lambda: now[0])
    for module in (processes, step_speed):
        monkeypatch.setattr(module, "time", told)


@pytest.mark.usefixtures("clock")
def test_the_speed_is_the_envs_own() -> None:
    report = validate_env(settings("case_envs:SlowStep-v0"), episodes=1, max_steps=3)
    assert report.steps_per_second == pytest.approx(5.0)


@pytest.mark.usefixtures("clock")
def test_the_speed_of_a_quick_env_is_timed_in_more_episodes_without_what_is_between_its_steps() -> None:
    # A step takes 4 ms; with the 20 ms of the reset of each 10 steps it would be 167 a second.
    report = validate("SlowReset")
    assert report.steps_played == 20
    assert report.steps_per_second == pytest.approx(250)


@pytest.mark.usefixtures("clock")
def test_a_speed_that_would_take_long_to_time_is_left_out() -> None:
    report = validate("SlowReset", env_kwargs={"reset_seconds": 0.3, "step_seconds": 0.0001})
    assert report.steps_per_second is None
    assert report.lines()[0].endswith("2 episodes, 20 steps")


@pytest.mark.usefixtures("clock")  # which stands still, so that all steps up to the failing one are played
def test_what_fails_only_in_the_episodes_played_for_the_speed_is_a_warning_with_its_step() -> None:
    finding = only(validate("RaisesLate"), "raised")
    assert (finding.severity, finding.step) == ("warning", 700)
    assert finding.message == ("a later episode, played for its speed, raised RuntimeError: sensor 3 returned no frame")


def test_depth_is_a_setting_and_an_argument() -> None:
    assert validate("Plain", validation={"episodes": 3, "max_steps": 4}).steps_played == 12
    assert validate_env(settings("case_envs:Plain-v0"), episodes=5, max_steps=100).steps_played == 50


FATAL = [
    ("NanEarly", "not-finite", 3, "1", "nan", "step: observation feature 1 is nan; it must be finite"),
    ("InfiniteReward", "reward-not-finite", 5, None, "inf", "step: reward is inf; it must be finite"),
    (
        "HugeReward",
        "reward-not-finite",
        5,
        None,
        "-1e+39",
        "step: reward is -1e+39; it must be finite in float32 (up to 3.4e+38)",
    ),
    ("NoneReward", "reward-type", 1, None, "None", "step: reward is None; it must be one number"),
    (
        "NoSeedReset",
        "reset-signature",
        None,
        None,
        None,
        "reset takes no `seed` and no `options`; it must be reset(*, ",
    ),
    (
        "BadDict",
        "structure",
        1,
        None,
        None,
        "step: observation has the keys ['a']; the space declares the keys ['a', 'b']",
    ),
    ("FlagsAsText", "flag-type", 1, None, "'no'", "step: terminated is a str; it must be True or False"),
    (
        "FloatForPixels",
        "dtype",
        0,
        None,
        None,
        "reset: observation is an array of shape (12, 16, 3) and dtype float64; ",
    ),
    ("RaggedObs", "dtype", 0, None, None, "reset: observation is a list; the space declares float32 numbers"),
]


@pytest.mark.parametrize(("name", "code", "step", "feature", "value", "message"), FATAL, ids=[row[0] for row in FATAL])
def test_fatal_findings_name_step_feature_and_value(
    name: str, code: str, step: int | None, feature: str | None, value: str | None, message: str
) -> None:
    report = validate(name)
    finding = report.fatal[0]
    assert {other.code for other in report.findings} == {code}
    assert not report.ok
    assert (finding.step, finding.feature, finding.value) == (step, feature, value)
    assert finding.message.startswith(message)


WARNINGS = [
    ("OutOfBounds", "outside", 4, "2", "1.5", "step: observation feature 2 is 1.5; the space declares -1.0 to 1.0"),
    (
        "ArrayReward",
        "reward-type",
        1,
        None,
        "array([1.])",
        "step: reward is an array of shape (1,) and dtype float64; ",
    ),
    ("MutatesAction", "action-changed", 1, None, None, "step: changed the action [1. 1.] in place; it gets a copy"),
    ("UnboundedAct", "unbounded-action", None, None, None, "action space Box(-inf, inf, (1,), float32) has no bounds"),
]


@pytest.mark.parametrize(
    ("name", "code", "step", "feature", "value", "message"), WARNINGS, ids=[row[0] for row in WARNINGS]
)
def test_warnings_name_step_feature_and_value(
    name: str, code: str, step: int | None, feature: str | None, value: str | None, message: str
) -> None:
    report = validate(name)
    finding = only(report, code)
    assert report.ok
    assert finding.severity == "warning"
    assert (finding.step, finding.feature, finding.value) == (step, feature, value)
    assert finding.message.startswith(message)


def test_a_wrong_dtype_is_reported_for_reset_and_for_step() -> None:
    report = validate("DtypeLie")
    assert report.ok
    assert [(f.code, f.step, f.message, f.count) for f in report.findings] == [
        (
            "dtype",
            0,
            "reset: observation is an array of shape (4,) and dtype float64; the space declares float32 (it is cast)",
            2,
        ),
        ("dtype", 1, "step: observation is a list; the space declares float32 (it is cast)", 20),
    ]


def test_the_old_signatures_are_both_named() -> None:
    report = validate("OldApi")
    assert [f.message for f in report.fatal] == [
        "reset returned an array of shape (4,) and dtype float32; it must return (observation, info dict)",
        "step returned 4 values (the signature of gym before 0.26); it must return (observation, reward, terminated, "
        "truncated, info dict)",
    ]


def test_the_old_signatures_are_named_below_a_time_limit_too() -> None:
    assert [f.code for f in validate("OldApi", max_episode_steps=5).fatal] == ["reset-result", "step-result"]


def test_spaces_as_classes_are_both_named() -> None:
    report = validate("SpacesAsClasses")
    assert [f.message.split(";")[0] for f in report.fatal] == [
        "observation_space is the class Box itself",
        "action_space is the class Discrete itself",
    ]


def test_a_reused_array_is_a_warning_since_it_is_copied() -> None:
    report = validate("SharedArray")
    assert report.ok
    assert {f.code for f in report.findings} == {"array-reused"}
    assert "changed it in place; it is copied" in report.findings[0].message


@pytest.mark.parametrize("positions", [False, True])
def test_nested_actions_and_nan_rewards_are_compared_part_by_part(positions: bool) -> None:
    fields = {"env_kwargs": {"positions": positions}}
    report = validate("NestedAct", **fields)
    assert [(f.code, f.count) for f in report.findings] == [("action-space", 1), ("reward-not-finite", 20)]
    changed = validate("MutatesNestedAction", **fields).warnings
    assert [(f.code, f.count) for f in changed] == [("action-changed", 20)]


def test_an_env_that_is_not_deterministic_is_a_warning_with_the_first_difference() -> None:
    report = validate("NotDeterministic")
    finding = only(report, "not-deterministic")
    assert report.ok
    assert (finding.step, finding.feature) == (0, "3")
    assert "with the same seed and actions, a second environment gave another reset: observation feature 3" in (
        finding.message
    )


def test_what_differs_only_in_later_episodes_is_found_by_the_twin() -> None:
    finding = only(validate("GlobalCount"), "not-deterministic")
    assert finding.step == 1
    assert "another step: observation feature 3 was" in finding.message


def test_an_action_that_the_env_rejects_is_fatal_with_its_text() -> None:
    report = validate_env(settings("case_envs:NarrowAct-v0"))
    finding = only(report, "raised")
    # The first actions are the bounds, which clipped actions reach.
    assert (finding.severity, finding.step) == ("fatal", 1)
    assert finding.message == "step raised ValueError: torque 2.0 is too much on the action [2.]"


def test_an_env_that_exits_is_fatal() -> None:
    finding = only(validate("ExitsLate", env_kwargs={"at": 3}), "raised")
    assert finding.message.startswith("step called sys.exit(0) on the action")
    assert finding.step == 3


def test_an_episode_without_end_is_a_warning_unless_a_time_limit_ends_it() -> None:
    report = validate_env(settings("case_envs:Endless-v0"), max_steps=50)
    finding = only(report, "no-end")
    assert report.ok
    assert (report.episodes_played, report.steps_played, finding.step) == (0, 100, 50)
    assert "did not end within 50 steps and there is no time limit; if this is not intended, set max_episode_steps" in (
        finding.message
    )
    assert validate_env(settings("case_envs:Endless-v0", max_episode_steps=200), max_steps=50).findings == ()


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [("SpaceChangesLater", "(4,)", "(5,)"), ("ActionSpaceChangesLater", "Discrete(2)", "Discrete(3)")],
)
def test_a_space_that_changes_is_found_by_a_deeper_look_in_the_words_of_the_run(
    name: str, before: str, after: str
) -> None:
    assert validate(name).ok
    report = validate_env(settings(f"case_envs:{name}-v0"), episodes=5)
    changed = next(finding for finding in report.fatal if finding.code == "space-changed")
    assert fault_of_a_run(name).endswith(changed.message)
    assert before in changed.message
    assert after in changed.message


@pytest.mark.parametrize("name", ["NanObs", "WrongShape"])
def test_what_shows_late_ends_the_run_in_the_words_of_validation(name: str) -> None:
    report = validate_env(settings(f"case_envs:{name}-v0"), episodes=14)
    finding, fault = report.fatal[0], fault_of_a_run(name)
    assert finding.step == 137
    assert "at its step 137: " in fault
    assert fault.endswith(finding.message.removeprefix("step: "))


def no_head(observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> Sequence[str]:
    return [f"it has no head for {action_space}; ppo has", "and another thing"]


def test_what_an_algorithm_cannot_train_on_is_fatal_with_algorithm_and_space() -> None:
    report = validate_env(settings("case_envs:MultiDiscAct-v0"), check_spaces=no_head)
    assert [finding.code for finding in report.fatal] == ["algorithm", "algorithm"]
    assert report.fatal[0].message == "ppo can't train on it: it has no head for MultiDiscrete([3 4]); ppo has"
    assert report.steps_played == 0


def test_spaces_that_an_algorithm_refuses_are_not_played() -> None:
    report = validate_env(settings("case_envs:NestedAct-v0"), check_spaces=get_algorithm("ppo").check_spaces)
    assert only(report, "algorithm").message.startswith("ppo can't train on it: action space Dict(")
    assert report.steps_played == 0


def test_an_algorithm_is_named_once_where_it_cannot_train() -> None:
    finding = validate_env(settings("case_envs:TextObs-v0"), check_spaces=get_algorithm("ppo").check_spaces).fatal[0]
    assert finding.message.startswith("ppo can't train on it: observation space Text")
    assert re.findall(r"\bppo\b", finding.message) == ["ppo"]


@pytest.mark.parametrize(
    ("name", "fields", "code", "words"),
    [
        ("TextObs", {}, "observation-space", "Text"),
        ("DictAct", {}, "action-space", "action space Dict"),
        ("SmallImage", {"normalization": {"observation": True}}, "observation-space", "nothing to normalise"),
    ],
)
def test_spaces_without_an_array_form_are_fatal(name: str, fields: dict[str, Any], code: str, words: str) -> None:
    finding = only(validate(name, **fields), code)
    assert finding.severity == "fatal"
    assert words in finding.message


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("no_such_mod:X-v0", "no module named 'no_such_mod'"),
        ("case_envs:Nothing-v0", "unknown id 'Nothing-v0'"),
        ("case_envs:NeedsToken-v0", "could not be made: ValueError: api_token is required"),
    ],
)
def test_what_cannot_be_made_is_a_fatal_finding(env_id: str, words: str) -> None:
    report = validate_env(settings(env_id))
    assert words in only(report, "not-made").message
    assert (report.steps_played, report.steps_per_second) == (0, None)


def test_an_id_that_only_this_process_knows_is_a_warning() -> None:
    import trialplug  # noqa: F401 - registers it here

    finding = only(validate_env(settings("PlugWalk-v0")), "no-module")
    assert finding.severity == "warning"
    assert "write trialplug:PlugWalk-v0" in finding.message
    assert validate_env(settings("trialplug:PlugWalk-v0")).findings == ()


def test_an_env_that_fails_on_closing_is_a_warning() -> None:
    report = validate("CountsFailedCloses")
    assert {finding.message for finding in report.findings} == {"close raised OSError: the simulator is gone"}


def test_every_instance_is_closed() -> None:
    from case_envs.processes import CountsFailedCloses

    CountsFailedCloses.closed = 0
    validate("CountsFailedCloses")
    assert CountsFailedCloses.closed == 3


def test_nothing_leaks_to_the_console(capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder) -> None:
    for name in ("DtypeLie", "NanEarly", "OutOfBounds", "OldApi", "SharedArray", "NoneReward"):
        validate(name)
    assert capfd.readouterr() == ("", "")
    assert [str(warning.message) for warning in recwarn] == []
