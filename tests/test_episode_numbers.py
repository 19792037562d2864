"""An episode's numbers beside its return: the raw return, the success, and numbers of the last info."""

from __future__ import annotations

import json
import logging
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import VectorEnv
from hypothesis import given
from hypothesis import strategies as st

from rl_training.api.train_and_resume import resume
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs import factory
from rl_training.envs.episodes import episode_numbers
from rl_training.envs.episodes.episode_numbers import EpisodeNumbers
from rl_training.envs.episodes.vector_infos import take_final_row, take_row
from rl_training.envs.factory import make_env
from rl_training.envs.training_envs import Episode, TrainingEnvs
from rl_training.errors import CheckpointError
from rl_training.runs.progress import Progress
from rl_training.runtime.trainers.ppo_trainer import train_ppo
from rl_training.state_checks import validate

KINDS: dict[str, dict[str, Any]] = {
    "sync": {},
    "async": {"vectorization": "async"},
    "split": {"vectorization": "split"},
    "native": {"vectorization": "native"},
    "same-step": {"vectorization": "native", "env_kwargs": {"mode": "SAME_STEP"}},
}
ACTIONS = np.array([[1, 0], [1, 1], [1, 0], [0, 0]])
"""Of the two environments, the first gets action 1 three times and the second once."""


@pytest.fixture(autouse=True)
def two_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "usable_cpus", lambda: 2)
    monkeypatch.setenv("RL_TRAINING_HOME", str(tmp_path / "home"))


@pytest.fixture(autouse=True)
def nothing_was_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_numbers, "_warned", set())


def settings(**fields: Any) -> PPOConfig:
    fields = {
        "env_id": "judged_envs:Told-v0",
        "num_envs": 2,
        "rollout_steps": 256,
        "normalization": {"reward": False},
        **fields,
    }
    return PPOConfig(total_timesteps=1, **fields)


def play(config: PPOConfig) -> list[Episode]:
    """The first episode of each environment, with `ACTIONS`."""
    with closing(TrainingEnvs(config, gamma=None)) as envs:
        envs.start()
        steps = [envs.step(actions) for actions in ACTIONS]
    assert [step.episodes for step in steps[:-1]] == [[]] * 3
    return steps[-1].episodes


@pytest.mark.parametrize("kind", KINDS)
def test_successes_and_numbers_of_the_last_info_come_with_each_episode(kind: str) -> None:
    config = settings(**KINDS[kind], metrics={"info": ["collisions", "ratio", "absent", "t"]})
    first, second = play(config)
    assert first == (0, 3.0, 4, {"is_success": 1.0, "info/collisions": 1.0, "info/ratio": 0.75})
    assert second == (1, 1.0, 4, {"is_success": 0.0, "info/collisions": 3.0, "info/ratio": 0.25})


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_number_is_left_out_with_one_warning(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    last = {"is_success": "yes", "collisions": "nan", "note": [1, 2], "empty": None, "size": 7}
    kwargs = {**KINDS[kind].get("env_kwargs", {}), "last": last}
    fields = {**KINDS[kind], "env_kwargs": kwargs, "metrics": {"info": ["collisions", "note", "empty", "size"]}}
    with caplog.at_level(logging.WARNING, "rl_training"):
        episodes = play(settings(**fields))
        play(settings(**fields, seed=1))
        for _ in range(2):  # each environment of an evaluation has its own reader
            EpisodeNumbers(settings(**fields)).collect(last, None)
    assert [episode.numbers for episode in episodes] == [{"info/size": 7.0}] * 2
    said = sorted(record.getMessage() for record in caplog.records if "left out" in record.getMessage())
    begin = "environment judged_envs:Told-v0: info["
    assert [line.removeprefix(begin).partition("]")[0] for line in said] == ["'collisions'", "'is_success'", "'note'"]
    assert said[1] == (
        f"{begin}'is_success'] of an episode's last step is a str; expected True or False, so it is left out"
    )


@pytest.mark.parametrize("kind", ["sync", "async", "split"])
@pytest.mark.parametrize("field", ["wrappers", "training_wrappers"])
def test_the_raw_return_stands_beside_a_shaped_one(kind: str, field: str) -> None:
    config = settings(**KINDS[kind], **{field: ["judged_envs:Shaped"]})
    first, second = play(config)
    assert first[:3] == (0, 43.0, 4)
    assert second[:3] == (1, 41.0, 4)
    assert (first.numbers["raw_return"], second.numbers["raw_return"]) == (3.0, 1.0)


def test_training_wrappers_are_outside_the_others_and_not_in_evaluation() -> None:
    half = {"name": "judged_envs:Shaped", "kwargs": {"bonus": 0.5}}
    config = settings(wrappers=["judged_envs:Shaped"], training_wrappers=[half])
    with closing(make_env(config, 0)) as env:
        env.reset(seed=1)
        assert env.step(1)[1] == 11.5
        assert env.get_wrapper_attr("bonus") == 0.5
        assert env.raw_return == 1.0
    with closing(make_env(config.for_evaluation(), 0)) as env:
        env.reset(seed=1)
        assert env.step(1)[1] == 11.0
    with closing(make_env(settings(training_wrappers=[half]).for_evaluation(), 0)) as env:
        assert env.raw_return is None


def test_the_raw_return_is_exact_after_a_restore_in_mid_episode() -> None:
    config = settings(training_wrappers=["judged_envs:Shaped"])
    with closing(TrainingEnvs(config, gamma=None)) as envs, closing(TrainingEnvs(config, gamma=None)) as again:
        envs.start()
        for actions in ACTIONS[:2]:
            envs.step(actions)
        assert again.load_state_dict(envs.state_dict()) == []
        for actions in ACTIONS[2:]:
            one, other = envs.step(actions), again.step(actions)
        assert one.episodes == other.episodes
        assert other.episodes[0].numbers["raw_return"] == 3.0


def test_the_raw_return_of_a_life_is_that_of_this_life_alone() -> None:
    lives = {"wrappers": ["FireReset"], "training_wrappers": ["EpisodicLife"]}
    config = settings(env_id="game_envs:Lives-v0", num_envs=1, **lives)
    right = np.array([2])
    with closing(TrainingEnvs(config, gamma=None)) as envs, closing(TrainingEnvs(config, gamma=None)) as again:
        envs.start()
        played = [episode for _ in range(40) for episode in envs.step(right).episodes]
        assert again.load_state_dict(envs.state_dict()) == []
        rest = [envs.step(right).episodes for _ in range(20)]
        assert rest == [again.step(right).episodes for _ in range(20)]
    assert len(played) >= 6  # two games of three lives
    for episode in [*played, *(episode for ended in rest for episode in ended)]:
        assert 3.0 <= episode.return_ == episode.numbers["raw_return"] <= 6.0


def test_progress_keeps_the_latest_hundred_of_each_number() -> None:
    progress = Progress()
    progress.count([Episode(0, 1.0, 4, {"is_success": 1.0, "raw_return": 900.0})])
    for k in range(100):
        progress.count([Episode(0, 1.0, 4, {"raw_return": float(k), **({"is_success": 0.0} if k % 2 else {})})])
    metrics = progress.rollout_metrics()
    assert metrics["rollout/raw_return_mean"] == 49.5
    assert metrics["rollout/success_rate"] == 1 / 51
    assert "rollout/info/collisions" not in metrics
    assert validate("progress", progress.to_dict(), Progress) == progress


@pytest.mark.parametrize(
    "numbers",
    [{"x": [1.0]}, {"info/a\nb": [1.0]}, {"is_success": ["1"]}, {"is_success": []}, {"raw_return": 1.0}, [1]],
)
def test_numbers_of_a_received_checkpoint_are_checked(numbers: Any) -> None:
    with pytest.raises(CheckpointError, match=r"progress\.recent_numbers"):
        validate("progress", {"recent_numbers": numbers}, Progress)


def test_a_resumed_run_forgets_the_numbers_that_its_settings_no_longer_name(tmp_path: Path) -> None:
    fields = {"metrics": {"info": ["collisions"]}, "run_dir": tmp_path / "first", "rollout_steps": 16, "batch_size": 16}
    first = train_ppo(settings(**fields).replace(total_timesteps=64, **{"logging.every": 32}))
    again = resume(
        first.run_dir, track=False, **{"total_timesteps": 128, "metrics.info": [], "run_dir": tmp_path / "b"}
    )
    lines = [json.loads(line) for line in (again.run_dir / "metrics.jsonl").read_text().splitlines()]
    updates = [line["metrics"] for line in lines if line["event"] == "update"]
    assert updates
    assert all("rollout/success_rate" in metrics for metrics in updates)
    assert not any("rollout/info/collisions" in metrics for metrics in updates)


def test_without_numbers_progress_is_as_in_older_checkpoints() -> None:
    progress = Progress()
    progress.count([Episode(0, 1.0, 4)])
    assert sorted(progress.rollout_metrics()) == [
        "rollout/episode_length_mean",
        "rollout/episode_return_mean",
        "rollout/episodes",
    ]
    assert "recent_numbers" not in progress.to_dict()
    assert validate("progress", progress.to_dict(), Progress) == progress


NUMBERS = st.one_of(st.booleans(), st.integers(-(10**400), 10**400), st.floats(), st.text(max_size=3), st.none())


@given(NUMBERS, st.sampled_from([lambda x: x, np.asarray, lambda x: np.asarray([x])]))
def test_every_number_of_an_episode_is_finite(value: Any, form: Any) -> None:
    numbers = EpisodeNumbers(settings(metrics={"info": ["key"]}))
    found = numbers.collect({"key": form(value), "is_success": form(value)}, None)
    assert all(type(number) is float and math.isfinite(number) for number in found.values())
    if isinstance(value, bool):
        assert found == {"is_success": float(value), "info/key": float(value)}
    elif isinstance(value, float) and math.isfinite(value):
        assert found["info/key"] == value


INFOS = st.lists(
    st.fixed_dictionaries(
        {"always": st.integers(0, 9)},
        optional={
            "sometimes": st.floats(allow_nan=False),
            "text": st.text(max_size=3),
            "in": st.fixed_dictionaries({"x": st.booleans()}),
        },
    ),
    min_size=1,
    max_size=4,
)


@given(INFOS)
def test_a_row_of_gymnasiums_infos_is_the_info_of_its_environment(each: list[dict[str, Any]]) -> None:
    envs = VectorEnv()
    envs.num_envs = len(each)
    infos: dict[str, Any] = {}
    for i, info in enumerate(each):
        infos = envs._add_info(infos, info, i)
    assert [take_row(infos, i, len(each)) for i in range(len(each))] == each
    assert [take_final_row({"final_info": infos}, i, len(each)) for i in range(len(each))] == each
    assert [take_final_row({"final_info": np.array(each)}, i, len(each)) for i in range(len(each))] == each


ODD = st.one_of(st.none(), st.integers(), st.text(), st.lists(st.integers(), max_size=3), st.just(np.zeros(())))


@given(st.dictionaries(st.sampled_from(["a", "_a", "final_info", "_final_info", "b"]), ODD))
def test_infos_of_no_form_give_no_more_than_their_rows(infos: dict[str, Any]) -> None:
    for take in (take_row, take_final_row):
        assert set(take(infos, 1, 2)) <= infos.keys()
