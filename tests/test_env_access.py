"""What callbacks do to training environments, and reset options, on every kind of vector environment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.envs import factory
from rl_training.envs.factory import make_env
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.errors import CheckpointError, EnvironmentFault, EnvironmentRefused, UserError
from rl_training.runtime.checkpoint.plain_state import from_plain, to_plain

SINGLE = ["sync", "async", "split"]
BOTH_NATIVE = [{"vectorization": "native"}, {"vectorization": "native", "env_kwargs": {"mode": "SAME_STEP"}}]


@pytest.fixture(autouse=True)
def two_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "usable_cpus", lambda: 2)


def settings(env_id: str = "judged_envs:Told-v0", **fields: Any) -> PPOConfig:
    return PPOConfig(
        env_id=env_id,
        total_timesteps=1,
        **{"num_envs": 3, "rollout_steps": 256, "normalization": {"reward": False}, **fields},
    )


@pytest.fixture
def opened() -> Iterator[list[TrainingEnvs]]:
    envs: list[TrainingEnvs] = []
    yield envs
    for each in envs:
        each.close()


def start(opened: list[TrainingEnvs], config: PPOConfig) -> TrainingEnvs:
    envs = TrainingEnvs(config, gamma=None)
    opened.append(envs)
    envs.start()
    return envs


def step(envs: TrainingEnvs, t: int) -> tuple[bytes, bytes, Any]:
    """Steps with actions that depend on `t` alone; returns all that the trainer would see."""
    taken = envs.step(np.arange(t, t + envs.num_envs) % 2)
    return taken.next_observation.tobytes(), envs.observation.tobytes(), taken.episodes


def resumed(opened: list[TrainingEnvs], envs: TrainingEnvs, config: PPOConfig) -> tuple[TrainingEnvs, list[int]]:
    """Environments of another process that continue from a checkpoint, and those that began a fresh episode."""
    again = TrainingEnvs(config, gamma=None)
    opened.append(again)
    return again, again.load_state_dict(from_plain(to_plain(envs.state_dict(), copy=True)))


@pytest.mark.parametrize("vectorization", SINGLE)
def test_attributes_are_read_set_and_methods_called_in_each_environment(
    vectorization: str, opened: list[TrainingEnvs]
) -> None:
    envs = start(opened, settings(vectorization=vectorization))
    assert envs.get_attr("drift") == (0.0, 0.0, 0.0)
    envs.set_attr("drift", 2.0)
    assert envs.get_attr("drift") == (2.0, 2.0, 2.0)
    envs.set_attr("drift", [1.0, np.float32(2.5), 3])
    assert envs.get_attr("drift") == (1.0, 2.5, 3)
    assert envs.inexact_changes() == []
    assert envs.call("steer", 7.0) == (1.0, 2.5, 3)
    assert envs.call("steer", drift=0.5) == (7.0, 7.0, 7.0)
    assert envs.inexact_changes() == ["call: steer"]


@pytest.mark.parametrize("fields", BOTH_NATIVE, ids=["disabled", "same-step"])
def test_native_environments_share_their_attributes(fields: dict[str, Any], opened: list[TrainingEnvs]) -> None:
    config = settings(**fields)
    envs = start(opened, config)
    envs.set_attr("drift", 100.0)
    assert envs.get_attr("drift") == (100.0, 100.0, 100.0)
    with pytest.raises(EnvironmentRefused, match="got different values of 'drift'; native environments share"):
        envs.set_attr("drift", [1.0, 2.0, 3.0])
    assert envs.inexact_changes() == []
    again, fresh = resumed(opened, envs, config)
    assert fresh == [0, 1, 2]
    assert again.get_attr("drift") == (100.0, 100.0, 100.0)
    assert (again.observation[:, 0] > 99).all()
    assert again.call("steer", 0.0) == (100.0, 100.0, 100.0)


@pytest.mark.parametrize("vectorization", [*SINGLE, "native"])
def test_a_wrong_name_or_number_of_values_is_named(vectorization: str, opened: list[TrainingEnvs]) -> None:
    envs = start(opened, settings(vectorization=vectorization))
    for act in (lambda: envs.set_attr("drif", 1.0), lambda: envs.get_attr("drif"), lambda: envs.call("drif")):
        with pytest.raises(
            EnvironmentRefused, match=r"'judged_envs:Told-v0' has no attribute 'drif'; did you mean dri"
        ):
            act()
    with pytest.raises(UserError, match=r"got 2 values for 3 environments; pass one value, or a list with one for"):
        envs.set_attr("drift", [1.0, 2.0])
    for name in ("reset", "step", "close"):
        with pytest.raises(UserError, match=f"call: got '{name}', which only the trainer may call"):
            envs.call(name)
    with pytest.raises(EnvironmentFault, match=r"judged_envs:Told-v0 .*at its step 0: steer raised TypeError"):
        envs.call("steer", 1, 2, 3)
    with pytest.raises(UserError, match="reset options: got 3; expected a mapping from text to plain data"):
        envs.set_reset_options(3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"reset options: TypeError: .*; expected numbers, text, and lists of these"):
        envs.set_reset_options({"start": object()})
    step(envs, 0)


def test_what_cannot_reach_a_worker_is_refused_and_the_workers_still_answer(opened: list[TrainingEnvs]) -> None:
    envs = start(opened, settings(vectorization="async"))
    for act in (lambda: envs.set_attr("tool", threading.Lock()), lambda: envs.call("steer", threading.Lock())):
        with pytest.raises(UserError, match="the arguments can't be sent to worker processes"):
            act()
    assert envs.get_attr("drift") == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("when", [0, 1, 3])
@pytest.mark.parametrize("vectorization", SINGLE)
def test_a_resume_repeats_changes_before_and_within_the_episode(
    vectorization: str, when: int, opened: list[TrainingEnvs]
) -> None:
    """The changes fall between episodes of four steps, right after their reset, and within them."""
    config = settings(vectorization=vectorization)
    envs = start(opened, config)
    envs.set_attr("drift", 0.125)  # in the first episode, before its first step
    changes = {
        2: lambda: envs.set_attr("drift", [1.0, 2.0, 3.0]),
        4: lambda: envs.set_attr("goal", {"at": [3, 4, 5]}),
        5: lambda: (envs.set_attr("drift", 0.5), envs.set_attr("drift", -0.5)),
        8: lambda: envs.set_attr("drift", np.float64(0.75)),
        9: lambda: envs.set_attr("goal", {"at": [0]}),
        10: lambda: envs.set_reset_options({"start": 1000.0}),
    }
    for t in range(8 + when):
        if t in changes:
            changes[t]()
        step(envs, t)
    if 8 + when in changes:
        changes[8 + when]()  # just before the checkpoint
    again, fresh = resumed(opened, envs, settings(vectorization="sync"))
    assert fresh == []
    assert again.get_attr("drift") == envs.get_attr("drift")
    assert again.get_attr("goal") == envs.get_attr("goal")
    assert [step(envs, t) for t in range(20)] == [step(again, t) for t in range(20)]
    twice, fresh = resumed(opened, again, config)  # and so does the resume of a resume
    assert fresh == []
    assert [step(again, t) for t in range(20)] == [step(twice, t) for t in range(20)]


VALUES = st.sampled_from([0.0, 0.25, -1.5, 3, np.float32(0.1), True])
CHANGES = st.one_of(
    st.just(("step",)),
    st.tuples(st.just("drift"), VALUES),
    st.tuples(st.just("goal"), st.fixed_dictionaries({"at": st.lists(st.integers(-5, 5), max_size=3)})),
    st.tuples(st.just("label"), st.sampled_from(["a", None, (1, (2.0, "b")), {"x": [None]}])),
    st.tuples(
        st.just("options"), st.dictionaries(st.just("start"), VALUES.filter(lambda x: type(x) is not np.float32))
    ),
)


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.lists(CHANGES, max_size=30), st.booleans())
def test_a_resume_is_exact_whatever_was_changed(changes: list[tuple[Any, ...]], early: bool) -> None:
    config = settings(num_envs=2)
    with closing(TrainingEnvs(config, gamma=None)) as envs, closing(TrainingEnvs(config, gamma=None)) as again:
        if early:
            envs.set_attr("drift", 9.0)  # before the first reset
        envs.start()
        for t, change in enumerate(changes):
            if change[0] == "step":
                step(envs, t)
            elif change[0] == "options":
                envs.set_reset_options(change[1])
            else:
                envs.set_attr(*change)
        assert envs.inexact_changes() == []
        assert again.load_state_dict(from_plain(to_plain(envs.state_dict(), copy=True))) == []
        assert again.get_attr("label") == envs.get_attr("label")
        assert [step(envs, t) for t in range(9)] == [step(again, t) for t in range(9)]


def test_a_value_that_changes_after_it_was_set_does_not_reach_the_environment(opened: list[TrainingEnvs]) -> None:
    envs = start(opened, settings())
    goal = {"at": [3]}
    envs.set_attr("goal", goal)
    goal["at"].append(1000)
    envs.get_attr("goal")[0]["at"].append(5)
    assert envs.get_attr("goal")[1] == {"at": [3]}


@pytest.mark.parametrize(
    ("name", "value"), [("tool", 3), ("drift", {1, 2}), ("_np_random_seed", 3), ("label", np.zeros(2)), ("drift", 1j)]
)
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_what_a_resume_cannot_repeat_is_on_record(
    vectorization: str, name: str, value: Any, opened: list[TrainingEnvs]
) -> None:
    config = settings(vectorization=vectorization)
    envs = start(opened, config)
    envs.set_attr(name, value)
    assert envs.inexact_changes() == [f"set_attr: {name}"]
    assert "attributes" not in envs.state_dict()["snapshots"][0]
    again, _ = resumed(opened, envs, config)
    assert again.inexact_changes() == [f"set_attr: {name}"]


def test_a_run_without_changes_has_the_state_that_it_had_before(opened: list[TrainingEnvs]) -> None:
    envs = start(opened, settings())
    for t in range(6):
        step(envs, t)
    state = envs.state_dict()
    assert sorted(state) == ["observation_normalizer", "reward_normalizer", "snapshots"]
    assert sorted(state["snapshots"][0]) == [
        "actions",
        "episode_length",
        "episode_return",
        "life_steps",
        "observation",
        "options",
        "random_state",
        "random_state_before_reset",
        "seed",
    ]


@pytest.mark.parametrize("options", ["[1]", '"text"', "1"])
@pytest.mark.parametrize("vectorization", ["sync", "async", "native"])
def test_received_reset_options_that_are_no_mapping_are_refused(
    vectorization: str, options: str, opened: list[TrainingEnvs]
) -> None:
    config = settings(vectorization=vectorization)
    state = start(opened, config).state_dict()
    for snapshot in state["snapshots"]:
        snapshot["reset_options"] = options
    again = TrainingEnvs(config, gamma=None)
    opened.append(again)
    with pytest.raises(UserError, match="options"):
        again.load_state_dict(state)


@pytest.mark.parametrize(
    "touched", [["set_attr: a\x1b[31m"], ["call: a\nb"], ["a lie"], ["call: a"] * 1_001, ["call: " + "a" * 999]]
)
def test_received_changes_without_the_form_of_a_change_are_refused(
    touched: list[str], opened: list[TrainingEnvs]
) -> None:
    envs = start(opened, settings())
    with pytest.raises(CheckpointError, match="touched"):
        envs.load_state_dict({**envs.state_dict(), "touched": touched})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tool", "text"),  # not plain data before
        ("steer", 1.0),  # a method
        ("observe", None),
        ("_np_random", None),
        ("__class__", "text"),
        ("unwrapped", 1.0),
        ("np_random", 1.0),
        ("absent", 1.0),
        ("drift", np.zeros(2)),  # not plain data
    ],
)
def test_a_received_snapshot_sets_no_attribute_but_public_plain_data(name: str, value: Any) -> None:
    env = make_env(settings(), 0)
    env.reset(seed=1)
    env.reset()
    env.step(1)
    empty: dict[str, Any] = {"now": {}, "begun": {}, "seeded": {}, "during": []}
    for part in ({"begun": {name: value}}, {"seeded": {name: value}}, {"during": [[0, name, value]]}):
        other = make_env(settings(), 0)
        before = dict(vars(other.unwrapped))
        assert other.restore({**env.snapshot(), "attributes": {**empty, **part}}) is False
        assert all(vars(other.unwrapped)[key] is before[key] for key in ("tool", "drift", "label"))
        assert other.unwrapped.np_random.random() < 1
    with pytest.raises(EnvironmentRefused):
        make_env(settings(), 0).restore({**env.snapshot(), "attributes": {**empty, **part, "now": {name: value}}})


@pytest.mark.parametrize("vectorization", [*SINGLE, "native"])
def test_without_reset_options_resets_get_what_they_always_got(vectorization: str, opened: list[TrainingEnvs]) -> None:
    envs = start(opened, settings(vectorization=vectorization))
    for t in range(4):
        step(envs, t)
    assert envs.get_attr("seen")[1] == [None, {}]


@pytest.mark.parametrize("vectorization", [*SINGLE, "native"])
def test_reset_options_reach_the_first_reset_and_each_later_one(vectorization: str, opened: list[TrainingEnvs]) -> None:
    config = settings(vectorization=vectorization, reset_options={"start": 50.0})
    envs = start(opened, config)
    assert (envs.observation[:, 0] > 49).all()
    for t in range(4):
        step(envs, t)
    envs.set_reset_options({"start": -50.0, "path": ("a", 1)})
    for t in range(4):
        step(envs, t)
    later = {"start": -50.0, "path": ["a", 1]}
    assert envs.get_attr("seen")[2] == [{"start": 50.0}, {"start": 50.0}, later]
    again, fresh = resumed(opened, envs, config)
    assert fresh == ([0, 1, 2] if vectorization == "native" else [])
    for t in range(4):
        step(again, t)
    assert again.get_attr("seen")[0][-1] == later
    again.set_reset_options({})
    assert resumed(opened, again, config)[0]._envs.snapshots()[0]["reset_options"] == "{}"


@pytest.mark.parametrize("vectorization", SINGLE)
def test_an_environment_that_needs_options_is_restored_in_mid_episode(
    vectorization: str, opened: list[TrainingEnvs]
) -> None:
    config = settings("judged_envs:NeedsStart-v0", vectorization=vectorization, reset_options={"start": 2})
    envs = start(opened, config)
    for t in range(6):
        step(envs, t)
    again, fresh = resumed(opened, envs, config)
    assert fresh == []
    assert [step(envs, t) for t in range(9)] == [step(again, t) for t in range(9)]


def test_environments_that_reset_themselves_refuse_options(opened: list[TrainingEnvs]) -> None:
    words = "got reset options, which native environments in the mode SAME_STEP do not take; set vectorization to sync"
    with pytest.raises(EnvironmentRefused, match=words):
        TrainingEnvs(settings(**BOTH_NATIVE[1], reset_options={"start": 1.0}), gamma=None)
    envs = start(opened, settings(**BOTH_NATIVE[1]))
    with pytest.raises(EnvironmentRefused, match=words):
        envs.set_reset_options({"start": 1.0})


def test_native_cartpole_takes_its_options_in_resets_by_mask(opened: list[TrainingEnvs]) -> None:
    options = {"low": 0.01, "high": 0.02}
    envs = start(opened, settings("CartPole-v1", vectorization="native", max_episode_steps=2, reset_options=options))
    for t in range(2):
        assert ((envs.observation >= 0.01) & (envs.observation <= 0.02)).all() == (t == 0)
        step(envs, t)
    assert ((envs.observation >= 0.01) & (envs.observation <= 0.02)).all()
    envs.set_reset_options({"low": 0.03, "high": 0.03})
    for t in range(2):
        step(envs, t)
    assert envs.observation == pytest.approx(0.03)
