"""The infos of each step, on every kind of vector environment, if somebody asks for them."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from test_episode_numbers import ACTIONS, KINDS, settings

from rl_training.envs import factory
from rl_training.envs.training_envs import TrainingEnvs


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "usable_cpus", lambda: 2)


@pytest.mark.parametrize("kind", KINDS)
def test_each_step_has_the_info_of_each_environment(kind: str) -> None:
    with closing(TrainingEnvs(settings(**KINDS[kind]), gamma=None)) as envs:
        envs.collect_infos = True
        envs.start()
        seen = [envs.step(actions).infos for actions in ACTIONS]
        again = envs.step(ACTIONS[0]).infos
    assert [[info["t"] for info in infos] for infos in seen[:3]] == [[1, 1], [2, 2], [3, 3]]
    assert [(info["is_success"], info["collisions"], info["note"], info["ratio"]) for info in seen[3]] == [
        (True, 1, "over", 0.75),
        (False, 3, "over", 0.25),
    ]
    assert "t" not in seen[3][0]
    assert [info["t"] for info in again] == [1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_no_infos_are_collected_unless_they_are_asked_for(kind: str) -> None:
    with closing(TrainingEnvs(settings(**KINDS[kind]), gamma=None)) as envs:
        envs.start()
        assert envs.step(ACTIONS[0]).infos == ()
        envs.collect_infos = True
        assert len(envs.step(ACTIONS[0]).infos) == 2
        envs.collect_infos = False
        assert envs.step(ACTIONS[0]).infos == ()


@pytest.mark.parametrize("kind", KINDS)
def test_asking_for_infos_changes_nothing_else(kind: str) -> None:
    def play(collect: bool) -> list[Any]:
        with closing(TrainingEnvs(settings(**KINDS[kind]), gamma=None)) as envs:
            envs.collect_infos = collect
            envs.start()
            steps = [envs.step(ACTIONS[t % 4]) for t in range(9)]
        return [(step.next_observation.tobytes(), step.reward.tolist(), step.episodes) for step in steps]

    assert play(True) == play(False)


class Tells(gym.Wrapper[Any, Any, Any, Any]):
    """Adds things that can't be sent, and arrays, to infos, in a dict that it keeps and changes."""

    info: dict[str, Any]

    def reset(self, **kwargs: Any) -> Any:
        self.info = {"begun": True}
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        *rest, info = self.env.step(action)
        self.info.update(info, map=np.eye(2), tool=object(), parts={"all": [lambda: 1]}, pair=(np.int64(1), [True]))
        return (*rest, self.info)


@pytest.mark.parametrize("kind", ["async", "split"])
def test_what_is_no_data_is_left_out_with_one_warning(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    config = settings(**KINDS[kind], wrappers=["test_step_infos:Tells"])
    with closing(TrainingEnvs(config, gamma=None)) as envs, caplog.at_level(logging.WARNING, "rl_training"):
        envs.collect_infos = True
        envs.start()
        for actions in ACTIONS:
            infos = envs.step(actions).infos
    for info in infos:
        assert sorted(info) == ["begun", "collisions", "is_success", "map", "note", "pair", "ratio", "t"]
        assert info["map"].tolist() == [[1.0, 0.0], [0.0, 1.0]]
        assert info["pair"] == (1, [True])
    assert sorted(record.getMessage() for record in caplog.records) == [
        f"environment judged_envs:Told-v0: info[{key!r}] holds a {kind}, which is not sent between processes, so it is "
        f"left out"
        for key, kind in (("parts", "dict"), ("tool", "object"))
    ]


def test_infos_of_this_process_are_as_the_environment_gave_them() -> None:
    with closing(TrainingEnvs(settings(wrappers=["test_step_infos:Tells"]), gamma=None)) as envs:
        envs.collect_infos = True
        envs.start()
        seen = [envs.step(actions).infos for actions in ACTIONS]
        envs.step(ACTIONS[0])
    assert seen[3][0]["parts"]["all"][0]() == 1
    assert "note" not in seen[2][0]  # although the environment has added it to the same dict since
