"""PPO on several ranks equals PPO on one, in float64, with ranks that are threads."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms import ppo as module
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.ranked_ppo import RankedPPO
from rl_training.config.algorithms.ppo import PPOConfig
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.errors import NumericError
from rl_training.networks.actor_critic import ActorCritic
from tests.mask_parts import LEGAL, SPACE, draw_masks, record
from tests.ppo_parts import ACTIONS, VECTOR, go_on
from tests.rank_threads import ThreadExchange, on_ranks

CPU = torch.device("cpu")
STEPS, ENVS = 8, 6


@pytest.fixture(autouse=True)
def _networks_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ActorCritic", lambda *arguments: ActorCritic(*arguments).double())


def make_config(**settings: Any) -> PPOConfig:
    sizes = {"num_envs": ENVS, "rollout_steps": STEPS, "batch_size": 9, "epochs": 2, "network": {"hidden": [8]}}
    return PPOConfig(env_id="none", total_timesteps=10_000, learning_rate=3e-3, **{**sizes, **settings})


def make_encoder(config: PPOConfig) -> ObservationEncoder:
    return ObservationEncoder(VECTOR if config.mask_key is None else SPACE, config.mask_key)


def fill(ppo: PPO, space: gym.Space[Any], rng: np.random.Generator, rows: slice = slice(None)) -> RolloutBuffer:
    """A rollout of random observations and rewards of the environments in `rows`, with the agent's own actions."""
    encoder, codec = make_encoder(ppo.config), ActionCodec(space)
    count = len(range(ENVS)[rows])
    buffer = RolloutBuffer(STEPS, count, encoder.shape, encoder.dtype, codec.shape, codec.dtype)
    ended, nothing = np.zeros(count, bool), np.zeros(count, np.float32)
    while not buffer.full:
        observation = rng.standard_normal((ENVS, 3)).astype(np.float32)
        if encoder.mask_size:
            observation = record(observation, draw_masks(rng, ENVS))
        observation = observation[rows]
        rewards = 3.0 + rng.standard_normal(ENVS)[rows]
        actions, logprobs, values = ppo.act(observation)
        buffer.add(observation, actions, rewards, ended, ended, values, logprobs, nothing)
    buffer.compute_returns_and_advantages(nothing, 0.99, 0.95)
    for name in ("values", "logprobs", "advantages", "returns"):  # so that the losses are computed in float64 too
        setattr(buffer, name, getattr(buffer, name).astype(np.float64))
    return buffer


def train(ppo: PPO, space: gym.Space[Any], updates: int, rows: slice = slice(None)) -> list[dict[str, float]]:
    rng = np.random.default_rng(5)
    return [ppo.update(fill(ppo, space, rng, rows), update / 10, go_on) for update in range(updates)]


def on_two_ranks(
    config: PPOConfig, space: gym.Space[Any], updates: int = 10, ranks: int = 2
) -> list[tuple[RankedPPO, Any]]:
    """The agent of each rank after some updates, and their metrics."""

    def work(exchange: ThreadExchange) -> tuple[RankedPPO, Any]:
        ppo = RankedPPO(config, make_encoder(config), ActionCodec(space), CPU, exchange)
        return ppo, train(ppo, space, updates, ppo.share.rows)

    results = on_ranks(ranks, work)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


@pytest.mark.parametrize("kind", [*ACTIONS, "masked"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ten_updates_equal_those_of_one_rank_to_1e_10(kind: str, ranks: int) -> None:
    masks = LEGAL if kind == "masked" else {}
    config = make_config(entropy_coef=0.01, learning_rate_schedule="linear", **masks)
    space = ACTIONS.get(kind, ACTIONS["discrete"])
    one = PPO(config, make_encoder(config), ActionCodec(space), CPU)
    before = one.parameters.vector.clone()
    metrics = train(one, space, 10)
    assert float((one.parameters.vector - before).norm() / before.norm()) > 0.01
    for ranked, own in on_two_ranks(config, space, ranks=ranks):
        error = (ranked.parameters.vector - one.parameters.vector).norm() / one.parameters.vector.norm()
        assert float(error) < 1e-10
        assert ranked.state.optimizer.steps == one.state.optimizer.steps == 10 * 2 * 6
        for ours, theirs in zip(own, metrics, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    "settings", [{"batch_size": 2}, {"normalize_advantage": False}, {"batch_size": 48}, {"target_kl": 1e-4}], ids=str
)
def test_parts_may_be_empty_whole_or_end_the_update_early(settings: dict[str, Any]) -> None:
    config, space = make_config(**settings), ACTIONS["discrete"]
    one = PPO(config, ObservationEncoder(VECTOR), ActionCodec(space), CPU)
    metrics = train(one, space, 3)
    for ranked, own in on_two_ranks(config, space, 3):
        torch.testing.assert_close(ranked.parameters.vector, one.parameters.vector, rtol=1e-9, atol=1e-12)
        assert ranked.state.optimizer.steps == one.state.optimizer.steps
        assert own[-1]["train/approx_kl"] == pytest.approx(metrics[-1]["train/approx_kl"], rel=1e-7)


def test_all_ranks_have_the_same_bits() -> None:
    first, second = on_two_ranks(make_config(), ACTIONS["box"])
    assert torch.equal(first[0].parameters.vector, second[0].parameters.vector)
    assert first[1] == second[1]


def test_an_update_makes_one_call_a_minibatch_one_a_pass_and_one_at_the_end() -> None:
    config, space = make_config(), ACTIONS["discrete"]

    def count(exchange: ThreadExchange) -> int:
        ppo = RankedPPO(config, ObservationEncoder(VECTOR), ActionCodec(space), CPU, exchange)
        train(ppo, space, 1, ppo.share.rows)
        return exchange.calls

    # 48 transitions make 6 minibatches of 9 or fewer in each of 2 passes.
    assert on_ranks(2, count) == [2 * (6 + 1) + 1] * 2


def test_each_rank_draws_the_actions_that_one_rank_would_draw() -> None:
    config = make_config()
    observation = np.random.default_rng(2).standard_normal((ENVS, 3)).astype(np.float32)
    for space in ACTIONS.values():
        one = PPO(config, ObservationEncoder(VECTOR), ActionCodec(space), CPU)
        expected = [one.act(observation) for _ in range(3)]

        def draw(exchange: ThreadExchange, space: gym.Space[Any] = space) -> list[Any]:
            ppo = RankedPPO(config, ObservationEncoder(VECTOR), ActionCodec(space), CPU, exchange)
            return [ppo.act(observation[ppo.share.rows]) for _ in range(3)]

        for step, parts in zip(expected, zip(*on_ranks(2, draw), strict=True), strict=True):
            for whole, *halves in zip(step, *parts, strict=True):
                np.testing.assert_allclose(np.concatenate(halves), whole, rtol=1e-6, atol=1e-7)


def test_equal_advantages_become_zeros_on_all_ranks() -> None:
    config, space = make_config(batch_size=48), ACTIONS["discrete"]

    def look(exchange: ThreadExchange) -> list[Any]:
        ppo = RankedPPO(config, ObservationEncoder(VECTOR), ActionCodec(space), CPU, exchange)
        buffer = fill(ppo, space, np.random.default_rng(1), ppo.share.rows)
        buffer.advantages[:] = np.float32(0.1)
        return [part.advantages for part in ppo._divide(buffer, np.arange(48))]

    for parts in on_ranks(2, look):
        assert [part.tolist() for part in parts] == [[0.0] * 24]


def test_a_nan_on_one_rank_ends_all() -> None:
    config, space = make_config(normalize_advantage=False), ACTIONS["discrete"]

    def spoil(exchange: ThreadExchange) -> None:
        ppo = RankedPPO(config, ObservationEncoder(VECTOR), ActionCodec(space), CPU, exchange)
        buffer = fill(ppo, space, np.random.default_rng(1), ppo.share.rows)
        if exchange.rank == 1:
            buffer.advantages[3, 1] = np.nan
        ppo.update(buffer, 0.0, go_on)

    errors = on_ranks(2, spoil)
    assert [type(error) for error in errors] == [NumericError, NumericError]
    assert str(errors[0]) == str(errors[1])
    assert "policy_loss nan" in str(errors[0])
