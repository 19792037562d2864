"""The arithmetic of several ranks: shares, moments, states, and the settings that go together."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.distributed.group import Group
from rl_training.distributed.moments import Moments, combine, combine_ranks, measure
from rl_training.distributed.share import Share
from rl_training.distributed.torchrun import find_place, require_ranks
from rl_training.envs.normalize import RewardNormalizer, RunningMeanStd
from rl_training.errors import ConfigError
from rl_training.experiment.loading import config_from_mapping
from rl_training.runtime.ranks.states import join_parts, read_state, select_part, write_state
from tests.rank_threads import ThreadExchange, on_ranks

SETTINGS: dict[str, Any] = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 1_000}


def test_the_second_of_two_ranks_with_six_environments_has_the_last_three() -> None:
    share = Share(1, 2, 6)
    assert (share.count, share.first, share.rows) == (3, 3, slice(3, 6))


def test_each_rank_selects_its_own_transitions_in_order() -> None:
    # Transition i is step i // 4 of environment i % 4; rank 1 has environments 2 and 3, its own 0 and 1.
    order = np.array([7, 0, 2, 9, 11, 4, 10])
    assert Share(0, 2, 4).select(order).tolist() == [0, 5, 2]
    assert Share(1, 2, 4).select(order).tolist() == [3, 0, 5, 4]


def test_moments_of_1_2_and_3_6_combine_to_those_of_all_four() -> None:
    each = [measure(np.array(rows)) for rows in ([1.0, 2.0], [3.0, 6.0])]
    assert [(m.count, float(m.mean), float(m.squares)) for m in each] == [(2, 1.5, 0.5), (2, 4.5, 4.5)]
    count, mean, squares = combine(Moments(*zip(*each, strict=True)))
    assert (float(count), float(mean), float(squares)) == (4, 3.0, 14.0)


def test_a_rank_without_rows_changes_nothing() -> None:
    each = [measure(np.array(rows)) for rows in ([], [1.0, 2.0, 6.0], [])]
    count, mean, squares = combine(Moments(*zip(*each, strict=True)))
    assert (float(count), float(mean), float(squares)) == (3, 3.0, 14.0)


def test_equal_rows_far_from_zero_have_no_variance() -> None:
    each = [measure(np.full(rows, 1e9 + 0.1)) for rows in (3, 5, 4)]
    count, mean, squares = combine(Moments(*zip(*each, strict=True)))
    assert (float(count), float(mean), float(squares)) == (12, 1e9 + 0.1, 0.0)


def test_statistics_are_those_of_all_ranks() -> None:
    rows = np.random.default_rng(3).normal(100.0, 2.0, (5, 6, 2))

    def learn(exchange: ThreadExchange) -> RunningMeanStd:
        statistics = RunningMeanStd((2,))
        statistics.combine = lambda own: combine_ranks(exchange, own)
        for step in rows:
            statistics.update(step[Share(exchange.rank, 2, 6).rows])
        return statistics

    for statistics in on_ranks(2, learn):
        assert statistics.count == 30
        np.testing.assert_allclose(statistics.mean, rows.reshape(30, 2).mean(axis=0), rtol=1e-14)
        np.testing.assert_allclose(statistics.var, rows.reshape(30, 2).var(axis=0), rtol=1e-12)


def test_rewards_are_scaled_by_the_returns_of_all_ranks() -> None:
    rewards, done = np.array([[1.0, 2.0], [3.0, 5.0]]), np.array([False, False])
    alone = RewardNormalizer(2, 0.5, 10.0)
    for step in rewards:
        alone.update(step, done)

    def learn(exchange: ThreadExchange) -> RewardNormalizer:
        normalizer = RewardNormalizer(1, 0.5, 10.0)
        normalizer.statistics.combine = lambda own: combine_ranks(exchange, own)
        for step in rewards:
            normalizer.update(step[exchange.rank : exchange.rank + 1], done[:1])
        return normalizer

    # The returns are 1, 2, then 3.5 and 6: mean 3.125, variance 3.546875.
    for normalizer in on_ranks(2, learn):
        assert float(normalizer.statistics.mean) == float(alone.statistics.mean) == 3.125
        assert float(normalizer.statistics.var) == pytest.approx(3.546875, rel=1e-15)


def whole_state() -> dict[str, Any]:
    buffer = {
        "position": 2,
        "steps": 3,
        "rewards": torch.arange(8.0).reshape(2, 4),
        "obs": torch.arange(24).reshape(2, 4, 3),
    }
    envs = {
        "snapshots": [{"episode_length": i} for i in range(4)],
        "observation_normalizer": {"count": 7, "mean": np.ones(3)},
        "reward_normalizer": {"statistics": {"count": 7}, "returns": np.arange(4.0)},
    }
    return {"algorithm": {"steps": 1}, "envs": envs, "buffer": buffer, "observation": np.arange(12.0).reshape(4, 3)}


def test_a_rank_takes_the_state_of_its_own_environments() -> None:
    part = select_part(whole_state(), Share(1, 2, 4))
    assert part["envs"]["snapshots"] == [{"episode_length": 2}, {"episode_length": 3}]
    assert part["envs"]["reward_normalizer"]["returns"].tolist() == [2.0, 3.0]
    assert part["envs"]["observation_normalizer"]["count"] == 7
    assert part["buffer"]["rewards"].tolist() == [[2.0, 3.0], [6.0, 7.0]]
    assert part["buffer"]["obs"].shape == (2, 2, 3)
    assert part["observation"].tolist() == [[6.0, 7.0, 8.0], [9.0, 10.0, 11.0]]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_parts_that_were_sent_join_to_the_whole(ranks: int) -> None:
    whole = whole_state()
    parts = [read_state(write_state(select_part(whole, Share(rank, ranks, 4)))) for rank in range(ranks)]
    joined = join_parts(parts)
    assert joined["envs"]["snapshots"] == whole["envs"]["snapshots"]
    np.testing.assert_equal(joined["envs"], whole["envs"])
    np.testing.assert_equal(joined["observation"], whole["observation"])
    assert joined["buffer"].keys() == whole["buffer"].keys()
    assert all(torch.equal(joined["buffer"][name], whole["buffer"][name]) for name in ("rewards", "obs"))
    assert (joined["buffer"]["position"], joined["buffer"]["steps"], joined["algorithm"]) == (2, 3, {"steps": 1})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ranks": 3}, "ranks: got 3 with num_envs: 8, expected a divisor of num_envs"),
        (
            {"ranks": 2, "vectorization": "native"},
            "vectorization: got native with ranks: 2, expected auto, sync, async, split",
        ),
        ({"ranks": 2, "device": "cuda:1"}, "device: got cuda:1 with ranks: 2, expected cuda"),
        ({"ranks": 2, "curriculum": [{"attributes": {"gravity": 1.0}}]}, "curriculum: got it with ranks: 2"),
    ],
    ids=str,
)
def test_settings_that_ranks_exclude_are_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config_from_mapping({**SETTINGS, **changed})


def test_one_rank_excludes_nothing() -> None:
    config = config_from_mapping({**SETTINGS, "num_envs": 3, "vectorization": "native", "device": "cuda:1"})
    assert isinstance(config, PPOConfig)
    assert config.ranks == 1


@pytest.mark.parametrize(
    ("kind", "chosen", "have"),
    [("cpu", [[0, 0], [0, 0]], None), ("cuda", [[1, 1], [1, 0]], 1), ("cpu", [[1, 1], [0, 0]], 1)],
)
def test_each_rank_needs_a_gpu_or_none_does(kind: str, chosen: list[list[int]], have: int | None) -> None:
    group: Any = SimpleNamespace(ranks=2, local_rank=1, gather=lambda own: np.array(chosen, bool))
    if have is None:
        assert Group.choose_gpu(group, torch.device(kind)) == torch.device("cpu")
        return
    with pytest.raises(ConfigError, match=f"cuda with ranks: 2, expected a GPU for each rank .* {have} ranks have one"):
        Group.choose_gpu(group, torch.device(kind))


def test_the_place_comes_from_the_variables_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert find_place() is None
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    place = find_place()
    assert place is not None
    assert (place.rank, place.ranks, place.local_rank, place.on_loopback) == (3, 4, 1, True)
    require_ranks(4)
    with pytest.raises(ConfigError, match=r"ranks: got 2, and torchrun has started 4 processes .*: set ranks=4"):
        require_ranks(2)
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.7")
    place = find_place()
    assert place is not None
    assert not place.on_loopback
