"""Action masks in environments and encoded observations: what is taken, checked, drawn and refused."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.algorithms.space_checks import include_body_and_mask
from rl_training.config.algorithms.dqn import DQNConfig
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.config.algorithms.sac import SACConfig
from rl_training.config.settings import TrainConfig
from rl_training.envs.contract.mask_guard import MaskGuard
from rl_training.envs.factory import make_bare_env, make_env
from rl_training.envs.native.automatic_choice import choose_vectorization
from rl_training.envs.normalize import ObservationNormalizer
from rl_training.envs.spaces import ObservationEncoder, UnsupportedSpace
from rl_training.envs.spaces.action_mask import draw_allowed, find_mask_faults, take_features, take_mask
from rl_training.envs.training_envs import TrainingEnvs
from rl_training.envs.validation import step_speed
from rl_training.envs.validation.validate import validate_env
from rl_training.errors import ConfigError, EnvironmentFault, EnvironmentRefused
from rl_training.experiment.registry import get_algorithm


def config(env: str, mask: str | None = "info", **fields: Any) -> PPOConfig:
    return PPOConfig(env_id=f"case_envs:{env}-v0", total_timesteps=1_000, num_envs=2, action_mask=mask, **fields)


@pytest.fixture(autouse=True)
def _untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_speed, "TIMED_SECONDS", 1e-9)


# Settings.


def test_the_algorithms_of_discrete_actions_have_the_setting_and_others_refuse_it() -> None:
    assert config("Strict", None).mask_key is None
    assert (config("Strict").mask_key, config("Strict").masks_in_infos) == ("action_mask", True)
    legal = DQNConfig(env_id="x", total_timesteps=5_000, action_mask="legal")
    assert (legal.mask_key, legal.masks_in_infos) == ("legal", False)
    with pytest.raises(ConfigError, match="action_mask: unknown key"):
        SACConfig(env_id="x", total_timesteps=5_000, action_mask="info")


@pytest.mark.parametrize("kind", ["native", "envpool"])
def test_masks_need_single_environments(kind: Any) -> None:
    with pytest.raises(ConfigError, match="set vectorization to sync, async, split or ray"):
        config("Strict", vectorization=kind)
    masked = PPOConfig(env_id="CartPole-v1", total_timesteps=1_000, action_mask="info")
    assert choose_vectorization(masked).vectorization == "sync"
    assert choose_vectorization(masked.model_copy(update={"action_mask": None})).vectorization == "native"


def test_masks_of_other_goals_are_not_known() -> None:
    with pytest.raises(ConfigError, match="the masks of an episode belong to its own goal"):
        DQNConfig(env_id="x", total_timesteps=5_000, action_mask="info", hindsight={})


# Encoded observations.

NUMBERS = spaces.Box(-1, 1, (2,))
PICTURE = spaces.Box(0, 255, (2, 3, 1), np.uint8)
FORMS: list[tuple[dict[str, Any], Any]] = [
    ({"x": NUMBERS}, [[0.5, -0.5]]),
    ({"x": PICTURE}, [[[[7, 7, 7], [7, 7, 7]]]]),
    ({"x": PICTURE, "z": NUMBERS}, [([0.5, -0.5], [[[7, 7, 7], [7, 7, 7]]])]),
]
MASKS: list[tuple[Any, Any]] = [
    (spaces.MultiBinary(3), np.array([0, 1, 1], np.int8)),
    (spaces.Box(0, 1, (3,), np.uint8), np.array([0, 1, 1], np.uint8)),
    (spaces.Box(0, 1, (3,), np.bool_), np.array([False, True, True])),
    (spaces.MultiDiscrete([2, 2, 2]), np.array([0, 1, 1])),
    (spaces.Tuple([spaces.MultiBinary(1), spaces.MultiBinary(2)]), (np.zeros(1, np.int8), np.ones(2, np.int8))),
]


@pytest.mark.parametrize(("mask_space", "mask"), MASKS, ids=lambda case: str(case)[:30])
@pytest.mark.parametrize(("parts", "expected"), FORMS, ids=["vector", "image", "mixed"])
def test_a_mask_is_no_feature(parts: dict[str, Any], expected: Any, mask_space: Any, mask: Any) -> None:
    encoder = ObservationEncoder(spaces.Dict({**parts, "legal": mask_space}), "legal")
    without = ObservationEncoder(spaces.Dict(parts))
    assert encoder.features == without.features
    assert (encoder.kind, encoder.shape, encoder.mask_size) == (without.kind, (), 3)
    values = {"x": np.full((2, 3, 1), 7, np.uint8) if parts["x"] is PICTURE else np.float32([0.5, -0.5])}
    values["z"] = np.float32([0.5, -0.5])
    observation = {name: values[name] for name in parts}
    encoded = encoder.encode_list([{**observation, "legal": mask}] * 2)
    assert encoded.dtype == encoder.dtype
    assert np.array_equal(take_features(encoded), without.encode_list([observation] * 2))
    allowed = take_mask(encoded)
    assert allowed is not None
    assert allowed.tolist() == [[False, True, True]] * 2
    assert take_features(encoded)[0].tolist() == pytest.approx(expected[0]) if parts["x"] is NUMBERS else True
    assert take_mask(without.encode_list([observation])) is None


def test_features_of_records_in_any_place_are_aligned_for_torch() -> None:
    """A record of two floats and a mask of three takes eleven bytes, so the second one's floats are not aligned."""
    encoder = ObservationEncoder(spaces.Dict({"x": NUMBERS, "legal": spaces.MultiBinary(3)}), "legal")
    assert encoder.dtype.itemsize == 11
    stored = np.zeros((4, 1), encoder.dtype)
    features = take_features(stored[1])
    assert features.flags.aligned
    assert features.flags.c_contiguous


def test_normalisation_leaves_masks_alone() -> None:
    encoder = ObservationEncoder(spaces.Dict({"x": NUMBERS, "legal": spaces.MultiBinary(3)}), "legal")
    normalizer = ObservationNormalizer(encoder, 10.0)
    rows = encoder.encode_list(
        [{"x": np.float32([x, 2 * x]), "legal": np.array([x == 1, 1, 0], np.int8)} for x in (1, 3)]
    )
    normalizer.update(rows)
    assert normalizer.statistics.mean.tolist() == [2.0, 4.0]
    scaled = normalizer.normalize(rows)
    assert take_features(scaled).tolist() == [pytest.approx([-1, -1]), pytest.approx([1, 1])]
    assert take_mask(scaled).tolist() == [[True, True, False], [False, True, False]]  # type: ignore[union-attr]
    assert take_features(rows).tolist() == [[1, 2], [3, 6]]


@pytest.mark.parametrize(
    ("space", "key", "words"),
    [
        (NUMBERS, "legal", "observations have Box"),
        (spaces.Dict({"x": NUMBERS}), "legal", r"got 'legal', and observations have the keys x; expected a key"),
        (spaces.Dict({"x": NUMBERS, "m": spaces.Discrete(2)}), "m", "expected a 0 or 1 for each action"),
        (spaces.Dict({"m": spaces.MultiBinary(2)}), "m", "at least one feature"),
    ],
)
def test_other_masks_in_observations_are_refused(space: Any, key: str, words: str) -> None:
    with pytest.raises(UnsupportedSpace, match=words):
        ObservationEncoder(space, key)


@pytest.mark.parametrize(
    ("mask", "actions", "fault"),
    [
        (spaces.MultiBinary(3), spaces.Discrete(3), None),
        (spaces.MultiBinary(3), spaces.MultiDiscrete([1, 2]), None),
        (MASKS[4][0], spaces.MultiDiscrete([1, 2]), None),
        (spaces.MultiBinary(6), spaces.MultiDiscrete([[1, 2], [1, 2]]), None),
        (spaces.MultiBinary(3), spaces.Discrete(4), "observation m has shape (3,); expected (4,)"),
        (spaces.MultiBinary((3, 1)), spaces.Discrete(3), "observation m has shape (3, 1); expected (3,)"),
        (MASKS[4][0], spaces.MultiDiscrete([2, 1]), "has shape (1,), (2,); expected (3,), or a tuple of (2,), (1,)"),
        (spaces.MultiBinary(3), spaces.Box(0, 1, (3,)), "expected Discrete or MultiDiscrete, or no mask"),
        (spaces.MultiBinary(3), spaces.MultiBinary(3), "expected Discrete or MultiDiscrete, or no mask"),
    ],
)
def test_a_mask_has_a_number_for_each_action(mask: Any, actions: Any, fault: str | None) -> None:
    faults = find_mask_faults(spaces.Dict({"x": NUMBERS, "m": mask}), actions, "m")
    assert len(faults) == (fault is not None)
    assert all(fault in found for found in faults if fault)


# Random actions.


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=6), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_random_actions_are_allowed_ones(rows: list[list[bool]], seed: int) -> None:
    allowed, rng = np.array(rows), np.random.default_rng(seed)
    drawn = draw_allowed(allowed, rng)
    for row, action in zip(allowed, drawn, strict=True):
        assert row[action] or (not row.any() and action == 0)
    assert rng.random() == np.random.default_rng(seed).random(len(rows) + 1)[-1]  # one number for each row


def test_each_allowed_action_is_drawn_equally_often() -> None:
    """10,000 of 30,000 draws each, to within four standard deviations of 82."""
    allowed = np.tile([True, False, True, True, False], (30_000, 1))
    counts = np.bincount(draw_allowed(allowed, np.random.default_rng(0)), minlength=5)
    assert counts[[1, 4]].tolist() == [0, 0]
    assert np.abs(counts[[0, 2, 3]] - 10_000).max() < 330


class Largest:
    """A generator that draws the largest number below 1."""

    def random(self, count: int) -> np.ndarray:
        return np.full(count, np.nextafter(1.0, 0.0))


def test_the_largest_number_draws_the_last_allowed_action() -> None:
    for count in range(1, 300):
        allowed = np.ones((1, count + 1), bool)
        allowed[0, -1] = False
        assert draw_allowed(allowed, Largest()).tolist() == [count - 1]  # type: ignore[arg-type]


# In environments.


def play(env: gym.Env[Any, Any], steps: int, seed: int = 3) -> Iterator[tuple[Any, bool]]:
    """Plays allowed random actions; yields each observation, and whether it is an episode's last one."""
    rng = np.random.default_rng(seed)
    yield env.reset(seed=seed)[0], False
    for _ in range(steps):
        observation, _, terminated, truncated, _ = env.step(env.get_wrapper_attr("sample_allowed")(rng))
        yield observation, terminated or truncated
        if terminated or truncated:
            yield env.reset()[0], False


CASES = [
    ("Strict", "info", {}),
    ("StrictCut", "info", {"dtype": "bool"}),
    ("Strict", "legal", {"in_observation": True, "dtype": "uint8"}),
    ("StrictParts", "info", {}),
    ("StrictParts", "info", {"flat": True}),
    ("StrictParts", "legal", {"in_observation": True}),
    ("StrictParts", "legal", {"in_observation": True, "flat": True}),
]
IDS = ["-".join([env, mask, *kwargs]) for env, mask, kwargs in CASES]


@pytest.mark.parametrize(("env_id", "mask", "kwargs"), CASES, ids=IDS)
def test_a_mask_comes_with_each_observation(env_id: str, mask: str, kwargs: dict[str, Any]) -> None:
    masked = config(env_id, mask, env_kwargs=kwargs)
    with closing(make_env(masked, 0)) as env:
        encoder = ObservationEncoder(env.observation_space, masked.mask_key)
        for observation, _ in play(env, 40):
            newest = env.unwrapped.newest  # type: ignore[attr-defined]
            expected = np.concatenate([np.ravel(part) for part in newest]) if isinstance(newest, tuple) else newest
            assert env.observation_space.contains(observation)
            allowed = take_mask(encoder.encode_list([observation]))
            assert allowed is not None
            assert allowed[0].tolist() == expected.astype(bool).tolist()


def test_a_mask_from_infos_joins_the_parts_of_a_dict() -> None:
    class Told(gym.Wrapper[Any, Any, Any, Any]):
        def __init__(self, env: Any) -> None:
            super().__init__(env)
            self.observation_space = spaces.Dict({"x": env.observation_space})

        def reset(self, **kwargs: Any) -> Any:
            observation, info = self.env.reset(**kwargs)
            return {"x": observation}, info

    bare = gym.make("case_envs:Strict-v0", disable_env_checker=True)
    assert MaskGuard(bare, config("Strict")).observation_space == spaces.Dict(
        {"observation": bare.observation_space, "action_mask": spaces.MultiBinary(3)}
    )
    joined = MaskGuard(Told(bare), config("Strict"))
    assert sorted(joined.observation_space.spaces) == ["action_mask", "x"]  # type: ignore[attr-defined]
    assert sorted(joined.reset(seed=0)[0]) == ["action_mask", "x"]
    with pytest.raises(EnvironmentRefused, match="set action_mask: action_mask"):
        MaskGuard(gym.make("case_envs:MaskedView-v0", disable_env_checker=True), config("Strict"))


def play_on(envs: TrainingEnvs) -> None:
    while True:
        envs.step(draw_allowed(take_mask(envs.observation), np.random.default_rng(0)))  # type: ignore[arg-type]


FAULTS = [
    ("none", "the action mask allows no action; expected at least one in each state that is not terminal"),
    ("shape", "the action mask has shape (4,); expected (3,)"),
    ("two", "the action mask has 2; expected 0 (forbidden) or 1 (allowed) for each action"),
    ("text", "the action mask has shape (); expected (3,)"),
    ("missing", "info has no 'action_mask' (keys: mask); give it in each reset and step"),
]


@pytest.mark.parametrize(("kind", "words"), FAULTS)
def test_a_wrong_mask_is_a_fault_that_names_the_environment_and_its_step(kind: str, words: str) -> None:
    wrong = config("BadMask", env_kwargs={"kind": kind}, normalization={"reward": False})
    with closing(TrainingEnvs(wrong, gamma=None)) as envs:
        envs.start()
        with pytest.raises(EnvironmentFault) as caught:
            play_on(envs)
    message = str(caught.value)
    assert message.startswith("environment case_envs:BadMask-v0 (index 0) at its step 4: step: ")
    assert words in message


def test_a_mask_without_a_choice_in_one_part_is_a_fault() -> None:
    class Half(gym.Wrapper[Any, Any, Any, Any]):
        def reset(self, **kwargs: Any) -> Any:
            return self.env.reset(**kwargs)[0], {"action_mask": (np.ones(2, np.int8), np.zeros(3, np.int8))}

    guard = MaskGuard(Half(gym.make("case_envs:StrictParts-v0", disable_env_checker=True)), config("StrictParts"))
    with pytest.raises(Exception, match="allows no choice in part 1 of the action"):
        guard.reset(seed=0)


@pytest.mark.parametrize("kind", ["sync", "async", "split"])
def test_vector_environments_give_the_same_masks(kind: Any) -> None:
    def record(kind: Any) -> list[bytes]:
        masked = config("Strict", vectorization=kind, normalization={"reward": False})
        rng, seen = np.random.default_rng(0), []
        with closing(TrainingEnvs(masked, gamma=None)) as envs:
            envs.start()
            for _ in range(25):
                step = envs.step(draw_allowed(take_mask(envs.observation), rng))  # type: ignore[arg-type]
                seen += [step.next_observation.tobytes(), envs.observation.tobytes()]
        return seen

    assert record(kind) == record("sync")


# Validation.


def validate(masked: TrainConfig) -> list[tuple[str, str, str]]:
    check_spaces = include_body_and_mask(get_algorithm(masked.algo).check_spaces, masked)
    report = validate_env(masked, check_spaces)
    return [(finding.severity, finding.code, finding.message) for finding in report.findings]


@pytest.mark.parametrize(("env_id", "mask", "kwargs"), CASES, ids=IDS)
def test_validation_plays_allowed_actions_alone(env_id: str, mask: str, kwargs: dict[str, Any]) -> None:
    """The environment raises at any other."""
    assert validate(config(env_id, mask, env_kwargs=kwargs)) == []


@pytest.mark.parametrize(("kind", "words"), FAULTS)
def test_validation_finds_wrong_masks(kind: str, words: str) -> None:
    found = validate(config("BadMask", env_kwargs={"kind": kind}))
    assert [(severity, code) for severity, code, _ in found] == [("fatal", "action-mask")]
    assert words in found[0][2]


def test_validation_notes_a_forbidden_action_that_is_taken() -> None:
    ((severity, code, message),) = validate(config("Lenient"))
    assert (severity, code) == ("warning", "forbidden-action")
    assert message.startswith("its step took the action ")


def test_validation_refuses_masks_of_other_shapes_and_actions_that_have_none() -> None:
    ((severity, _, message),) = validate(config("MaskedView", "x"))
    assert severity == "fatal"
    assert "observation x has shape (4,); expected (2,)" in message
    ((severity, _, message),) = validate(config("AsymAct"))
    assert severity == "fatal"
    assert "expected Discrete or MultiDiscrete, or no mask" in message
    found = validate(DQNConfig(env_id="case_envs:StrictParts-v0", total_timesteps=5_000, action_mask="info"))
    assert "dqn needs Discrete" in found[0][2]


def test_evaluations_own_environment_is_masked_too() -> None:
    strict = {"env_id": "case_envs:StrictCut-v0", "env_kwargs": {"dtype": "bool"}}
    assert validate(config("Strict", evaluation=strict)) == []
    with closing(make_bare_env(config("Strict", evaluation=strict).for_evaluation())) as env:
        assert isinstance(env, MaskGuard)
