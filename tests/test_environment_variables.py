"""Environment variables that are set for some time."""

import os

import pytest

from rl_training.system.environment_variables import set_environment


def fail_within_a_block(seen: dict[str, str]) -> None:
    with set_environment({"KEPT": "within", "ABSENT": "within"}):
        seen |= {name: os.environ[name] for name in ("KEPT", "ABSENT")}
        raise ValueError("stop")


def test_variables_are_as_before_after_the_block_also_after_an_error(monkeypatch):
    monkeypatch.setenv("KEPT", "before")
    monkeypatch.delenv("ABSENT", raising=False)
    seen: dict[str, str] = {}
    with pytest.raises(ValueError, match="stop"):
        fail_within_a_block(seen)
    assert seen == {"KEPT": "within", "ABSENT": "within"}
    assert os.environ["KEPT"] == "before"
    assert "ABSENT" not in os.environ
