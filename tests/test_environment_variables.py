"""Environment variables that are set for some time."""

import os

import pytest

from rl_training.system.environment_variables import set_environment


def test_variables_are_as_before_after_the_block_also_after_an_error(monkeypatch):
    monkeypatch.setenv("KEPT", "before")
    monkeypatch.delenv("ABSENT", raising=False)
    with pytest.raises(ValueError, match="stop"), set_environment({"KEPT": "within", "ABSENT": "within"}):
        assert (os.environ["KEPT"], os.environ["ABSENT"]) == ("within", "within")
        raise ValueError("stop")
    assert os.environ["KEPT"] == "before"
    assert "ABSENT" not in os.environ
