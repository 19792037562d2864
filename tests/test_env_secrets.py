"""A secret that an environment was given, as text or by reference, does not appear in the errors that repeat it."""

from __future__ import annotations

import traceback
import warnings
from typing import Any

import numpy as np
import pytest

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs.factory import make_env
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.envs.validation.validate import validate_env
from rl_training.errors import EnvironmentFault, EnvironmentRefused
from rl_training.security import secrets

ENV = "case_envs:TellsItsToken-v0"
GIVEN = pytest.mark.parametrize("api_token", ["CASE-SECRET-7", "${env:CASE_TOKEN}", "${prefect:case}"])


def settings(**fields: Any) -> PPOConfig:
    return PPOConfig(
        env_id=ENV, total_timesteps=1, num_envs=2, batch_size=2, **{"normalization": {"reward": False}, **fields}
    )


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def fault(config: PPOConfig) -> EnvironmentFault:
    """Returns the fault of the first reset or step."""
    envs = TrainingEnvs(config, gamma=None)
    try:
        envs.start()
        envs.step(np.ones((2, *envs.codec.shape), envs.codec.dtype))
    except EnvironmentFault as error:
        return error
    finally:
        envs.close()
    raise AssertionError("there was no fault")


@GIVEN
@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(("at", "life_step"), [("reset", 0), ("step", 1)])
def test_a_fault(at: str, life_step: int, vectorization: str, api_token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASE_TOKEN", "CASE-SECRET-8")
    monkeypatch.setitem(secrets._lookups, "prefect", {"case": "CASE-SECRET-9"}.__getitem__)
    error = fault(settings(vectorization=vectorization, env_kwargs={"api_token": api_token, "at": at}))
    where = f"environment {ENV} (index 0) at its step {life_step}"
    assert str(error) == f"{where}: {at} raised ConnectionError: http://sim/?key=***: refused"
    assert "CASE-SECRET" not in shown(error)
    assert "no session for ***" in shown(error)  # where it was raised is still to be seen
    assert "in _fail" in shown(error)


def test_the_last_words_of_a_worker() -> None:
    config = settings(vectorization="async", env_kwargs={"api_token": "CASE-SECRET-7", "at": "exit"})
    assert str(fault(config)).endswith("ended with exit code 3; its last output: bye, ***")


def test_a_refusal_and_a_finding() -> None:
    config = settings(env_kwargs={"api_token": "CASE-SECRET-7", "at": "making"})
    words = f"environment {ENV!r} could not be made: ConnectionError: http://sim/?key=***: refused"
    with pytest.raises(EnvironmentRefused) as refused:
        make_env(config, 0)
    assert str(refused.value) == words
    assert "CASE-SECRET" not in shown(refused.value)
    (finding,) = validate_env(config).findings
    assert finding.message == words
    (finding,) = validate_env(settings(env_kwargs={"api_token": "CASE-SECRET-7", "at": "reset"})).findings
    assert finding.message == "the first reset raised ConnectionError: http://sim/?key=***: refused"


def test_the_warning_of_a_close_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    envs = TrainingEnvs(settings(env_kwargs={"api_token": "CASE-SECRET-7", "at": "close"}), gamma=None)
    envs.close()
    (record,) = caplog.records
    assert record.getMessage().endswith("close raised ConnectionError: http://sim/?key=***: refused (and 1 more)")


def test_a_wrapper() -> None:
    wrapper = {"name": "case_envs.interface:RefusesItsToken", "kwargs": {"api_token": "CASE-SECRET-7"}}
    with pytest.raises(EnvironmentRefused, match=r"PermissionError: \*\*\* is not valid any more") as refused:
        make_env(PPOConfig(env_id="CartPole-v1", total_timesteps=1, wrappers=[wrapper]), 0)
    assert "CASE-SECRET" not in shown(refused.value)


def test_a_warning_while_the_environment_is_made_hides_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gymnasium warns of a render mode that it does not know, with the value."""
    monkeypatch.setenv("PLANTED", "CASE-SECRET-9")
    config = PPOConfig(env_id="CartPole-v1", env_kwargs={"render_mode": "${env:PLANTED}"}, total_timesteps=100)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_env(config, 0).close()
    texts = [str(warning.message) for warning in caught]
    assert any("***" in text for text in texts)
    assert "CASE-SECRET" not in "".join(texts)
    with pytest.raises(EnvironmentRefused) as refused:  # where warnings are errors
        make_env(config, 0)
    assert "CASE-SECRET" not in shown(refused.value)


def test_a_warning_of_a_step_hides_it() -> None:
    env = make_env(settings(env_kwargs={"api_token": "CASE-SECRET-7", "at": "warning"}), 0)
    env.reset(seed=0)
    with pytest.warns(UserWarning, match=r"^\*\*\* runs out soon$"):
        env.step(env.action_space.sample())


@GIVEN
@pytest.mark.parametrize("at", ["reset", "step"])
def test_validation_of_evaluations_own_environment(at: str, api_token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASE_TOKEN", "CASE-SECRET-8")
    monkeypatch.setitem(secrets._lookups, "prefect", {"case": "CASE-SECRET-9"}.__getitem__)
    own = {"env_id": ENV, "env_kwargs": {"api_token": api_token, "at": at}}
    report = validate_env(PPOConfig(env_id="case_envs:Plain-v0", total_timesteps=1, evaluation=own))
    assert not report.ok
    assert "CASE-SECRET" not in "\n".join(report.lines())
    assert f"in evaluation's environment {ENV}: the first {at} raised" in report.fatal[0].message
    assert "***" in report.fatal[0].message
