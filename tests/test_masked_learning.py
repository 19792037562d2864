"""What DQN and PPO compute with action masks: probabilities, choices, targets and gradients."""

import math
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms.ppo_learner import forbid
from rl_training.data.replay_buffer import ReplayBatch
from rl_training.data.rollout_buffer import Minibatch, RolloutBuffer
from rl_training.data.sequence_buffer import SequenceMinibatch
from rl_training.envs.spaces import ActionCodec, ObservationEncoder
from rl_training.envs.spaces.action_mask import FEATURES, MASK, take_features, take_mask
from rl_training.errors import NumericError
from rl_training.networks import distributions
from rl_training.networks.backend import Backend
from rl_training.networks.distributions import FORBIDDEN, Categorical, MultiCategorical, make_distribution
from tests.docs_code import losses_of
from tests.mask_parts import LEGAL, SPACE, draw_masks, record
from tests.network_parts import BACKENDS
from tests.network_parts import by_autograd as outputs_by_autograd
from tests.off_policy_parts import VECTOR, choices, in_float64, make_dqn, random_batch, targets
from tests.ppo_parts import go_on, make_buffer, make_ppo
from tests.recurrent_parts import make_recurrent, random_dones
from tests.test_dqn_update import OPTIONS, outputs_of
from tests.test_recurrent_layer import by_autograd as sequence_by_autograd

DQN_PAGE, PPO_PAGE = losses_of("dqn"), losses_of("ppo")
PAIRS = spaces.Dict({"x": VECTOR, "legal": spaces.MultiBinary(5)})
ACTIONS: dict[str, tuple[gym.Space[Any], gym.Space[Any]]] = {
    "discrete": (SPACE, spaces.Discrete(3)),
    "multi_discrete": (PAIRS, spaces.MultiDiscrete([2, 3])),
}


# Distributions.


def test_probabilities_entropy_and_gradient_by_hand(backend: Backend) -> None:
    """Logits log 1, log 2 and log 3, the second one forbidden: probabilities 1/4, 0 and 3/4.

    The gradient of log p by the logits is (1 at the action) - p, and that of the entropy is -p (log p + entropy).
    """
    categorical = Categorical(3)
    categorical.bind(backend)
    logits = np.log(np.array([[1.0, 2.0, 3.0]] * 2))
    outputs = forbid(backend.array(logits), backend.array(np.array([[True, False, True]] * 2)), backend.xp)
    evaluation = categorical.evaluate_actions(outputs, backend.array(np.array([0, 2])))
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert backend.numpy(evaluation.logprobs_B).tolist() == pytest.approx([math.log(0.25), math.log(0.75)])
    assert backend.numpy(evaluation.entropies_B).tolist() == pytest.approx([entropy] * 2)
    of_logprobs = backend.numpy(evaluation.backward(backend.array(np.ones(2)), 0.0))
    assert of_logprobs == pytest.approx(np.array([[0.75, 0.0, -0.75], [-0.25, 0.0, 0.25]]))
    of_entropy = backend.numpy(evaluation.backward(backend.array(np.zeros(2)), 1.0))
    assert of_entropy[0] == pytest.approx([-0.25 * (math.log(0.25) + entropy), 0.0, -0.75 * (math.log(0.75) + entropy)])
    assert of_logprobs[:, 1].tolist() == of_entropy[:, 1].tolist() == [0.0, 0.0]


def test_a_single_allowed_action_is_certain() -> None:
    categorical = Categorical(3)
    categorical.bind(BACKENDS["numpy"])
    outputs = forbid(np.float32([[9.0, -40.0, 9.0]]), np.array([[False, True, False]]), np)
    evaluation = categorical.evaluate_actions(outputs, np.array([1]))
    assert (evaluation.logprobs_B.tolist(), evaluation.entropies_B.tolist()) == ([0.0], [0.0])
    assert evaluation.backward(np.float32([5.0]), 7.0).tolist() == [[0.0, 0.0, 0.0]]
    assert categorical.mode(outputs).tolist() == [1]


def test_samples_have_the_probabilities_of_the_allowed_choices() -> None:
    """20,000 draws of two choices; four standard deviations of a share of 1/4 are 0.0122."""
    multi = MultiCategorical([2, 3])
    multi.bind(BACKENDS["numpy"])
    allowed = np.array([False, True, True, False, True])
    outputs = forbid(np.tile(np.float32(np.log([1, 1, 1, 2, 3])), (20_000, 1)), allowed, np)
    drawn = multi.sample(outputs, np.random.default_rng(0))
    assert (drawn[:, 0] == 1).all()
    assert not (drawn[:, 1] == 1).any()
    assert (drawn[:, 1] == 0).mean() == pytest.approx(0.25, abs=0.0122)


def test_not_even_an_infinite_gumbel_variable_draws_a_forbidden_choice() -> None:
    noise = distributions._to_gumbel(np.array([[0.0, 1.0]]))
    assert np.isfinite(noise).all()
    categorical = Categorical(2)
    assert categorical.choose(np.float32([[FORBIDDEN, -50.0]]), noise).tolist() == [1]
    assert categorical.choose(np.float32([[-50.0, 50.0]]), noise).tolist() == [0]


# PPO.


def rollout(ppo: Any, kind: str, seed: int = 0) -> RolloutBuffer:
    """A rollout of random observations, masks and rewards, in episodes of one step."""
    rng, (space, actions) = np.random.default_rng(seed), ACTIONS[kind]
    buffer, ones = make_buffer(ppo, space, actions), np.ones(4, bool)
    parts = ActionCodec(actions).nvec
    buffer.reset()
    while not buffer.full:
        observation = record(rng.standard_normal((4, 3)).astype(np.float32), draw_masks(rng, 4, parts))
        drawn, logprobs, values = ppo.act(observation)
        buffer.add(observation, drawn, rng.standard_normal(4), ones, ~ones, values, logprobs, np.zeros(4, np.float32))
    buffer.compute_returns_and_advantages(np.zeros(4, np.float32), 0.9, 0.95)
    return buffer


def evaluate_allowed(
    outputs: torch.Tensor, allowed: np.ndarray, actions: torch.Tensor, parts: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies by autograd, of distributions that have the allowed choices alone."""
    logprobs, entropies = [], []
    for row, mask, action in zip(outputs, torch.from_numpy(allowed), actions.reshape(len(actions), -1), strict=True):
        pairs = zip(row.split(parts), mask.split(parts), action, strict=True)
        each = [(part[kept].log_softmax(0), kept[:chosen].sum()) for part, kept, chosen in pairs]
        logprobs.append(sum(logs[place] for logs, place in each))
        entropies.append(-sum((logs.exp() * logs).sum() for logs, _ in each))
    return torch.stack(logprobs), torch.stack(entropies)


@pytest.mark.parametrize("kind", ACTIONS)
def test_ppos_gradient_equals_autograds_over_allowed_choices_alone(backend: Backend, kind: str) -> None:
    ppo = make_ppo(*ACTIONS[kind], entropy_coef=0.1, batch_size=32, normalize_advantage=False, **LEGAL)
    drawn = next(rollout(ppo, kind).iter_minibatches(32, np.arange(32)))
    ppo.parameters = in_float64(ppo.network, noise=0.1)
    features, allowed = take_features(drawn.obs).astype(np.float64), take_mask(drawn.obs)
    assert allowed is not None
    wide = {name: f.astype(np.float64) if f.dtype == np.float32 else f for name, f in vars(drawn).items()}
    minibatch = Minibatch(**{**wide, "obs": record(features, allowed)})
    b = {name: torch.from_numpy(array) for name, array in wide.items() if name != "obs"}
    outputs, values = outputs_by_autograd(ppo.network, torch.from_numpy(features))
    evaluated = evaluate_allowed(outputs, allowed, b["actions"], ActionCodec(ACTIONS[kind][1]).nvec)
    settings = {"value_clip": None, "value_coef": 0.5, "entropy_coef": 0.1}
    loss = PPO_PAGE.ppo_loss(*evaluated, values.squeeze(1), b, clip_range=0.1, **settings)
    expected = torch.autograd.grad(loss, list(ppo.network.parameters()))
    for _ in range(2):  # overwritten and not added to
        measured = ppo._gradient(minibatch, clip_range=0.1)
    assert 0.0 < measured.clip_fraction < 1.0
    assert measured.entropy == pytest.approx(evaluated[1].mean().item(), rel=1e-10)
    for (name, parameter), want in zip(ppo.network.named_parameters(), expected, strict=True):
        assert float((parameter.grad - want).norm()) <= 1e-10 * float(want.norm()), name


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent_ppos_gradient_equals_autograds_over_allowed_choices_alone(kind: str) -> None:
    ppo = make_recurrent(kind, space=SPACE, batch_size=32, entropy_coef=0.1, normalize_advantage=False, **LEGAL)
    buffer = ppo.make_buffer(4, ObservationEncoder(SPACE, "legal"), ActionCodec(spaces.Discrete(3)))
    rng, dones = np.random.default_rng(0), random_dones(buffer)
    buffer.reset()
    while not buffer.full:
        observation = record(rng.standard_normal((4, 3)).astype(np.float32), draw_masks(rng, 4))
        buffer.add_step(observation, ppo.acting.act(observation), rng.standard_normal(4))
        buffer.end_episodes(dones[buffer.position - 1], np.zeros(4, bool), None)
        ppo.acting.complete(buffer)
    buffer.compute_returns_and_advantages(np.zeros(4), 0.9, 0.95)
    order = buffer.draw_order(np.random.default_rng(0))
    (drawn,) = buffer.iter_minibatches(32, order)
    assert ppo._gradient(drawn, clip_range=1e-5).clip_fraction == 0.0  # acting and learning agree
    ppo.parameters = in_float64(ppo.network, noise=0.1)
    features, allowed = take_features(drawn.obs).astype(np.float64), take_mask(drawn.obs)
    assert allowed is not None
    wide = {name: f.astype(np.float64) if f.dtype == np.float32 else f for name, f in vars(drawn).items()}
    b = {name: torch.from_numpy(array) for name, array in wide.items() if name != "obs"}
    starts = np.flatnonzero(np.diff(order // 4 // 4 * 4 + order % 4, prepend=-1))
    seen = {**vars(buffer), "obs": take_features(buffer.obs)}
    outputs, values = (
        torch.cat([sequence_by_autograd(part, kind, seen, index, which) for index in np.split(order, starts[1:])])
        for which, part in enumerate((ppo.network.policy, ppo.network.value))
    )
    evaluated = evaluate_allowed(outputs, allowed, b["actions"], (3,))
    settings = {"value_clip": None, "value_coef": 0.5, "entropy_coef": 0.1}
    loss = PPO_PAGE.ppo_loss(*evaluated, values[:, 0], b, clip_range=0.1, **settings)
    expected = torch.autograd.grad(loss, list(ppo.network.parameters()))
    ppo._gradient(SequenceMinibatch(**{**wide, "obs": record(features, allowed)}), clip_range=0.1)
    for (name, parameter), want in zip(ppo.network.named_parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert float((parameter.grad - want).norm()) <= 1e-10 * float(want.norm()), name


@pytest.mark.parametrize("kind", ACTIONS)
def test_acting_in_blocks_has_the_bits_of_acting_step_by_step(kind: str) -> None:
    (one, blocks), (space, actions) = (make_ppo(*ACTIONS[kind], seed=1, **LEGAL) for _ in range(2)), ACTIONS[kind]
    stepwise, buffer = rollout(one, kind), make_buffer(blocks, space, actions)
    buffer.reset()
    for observation in stepwise.obs:
        buffer.add_step(observation, blocks.acting.act(observation), np.zeros(4))
        buffer.end_episodes(np.ones(4, bool), np.zeros(4, bool), None)
    blocks.acting.complete(buffer)
    for name in ("actions", "logprobs", "values"):
        assert getattr(buffer, name).tobytes() == getattr(stepwise, name).tobytes(), name
    parts, allowed = ActionCodec(actions).nvec, stepwise.obs[MASK].reshape(32, -1)
    for a, part in enumerate(np.split(allowed, np.cumsum(parts)[:-1], axis=1)):
        assert part[np.arange(32), stepwise.actions.reshape(32, -1)[:, a]].all()


def test_ppos_greedy_action_and_its_draws_are_allowed_ones() -> None:
    ppo = make_ppo(*ACTIONS["discrete"], **LEGAL)
    rng = np.random.default_rng(0)
    allowed = draw_masks(rng, 500)
    observation = record(rng.standard_normal((500, 3)).astype(np.float32), allowed)
    logits = ppo.network.act(take_features(observation))[0].copy()
    greedy = ppo.act_greedy(observation)
    assert greedy.tolist() == np.where(allowed, logits, -np.inf).argmax(1).tolist()
    drawn = ppo.draw_actions(ppo.policy_outputs(observation).copy(), rng)
    assert allowed[np.arange(500), drawn].all()
    assert not (drawn == greedy).all()


def test_an_update_with_masks_never_moves_the_logit_of_an_action_that_is_always_forbidden() -> None:
    ppo = make_ppo(*ACTIONS["discrete"], entropy_coef=0.1, learning_rate=0.01, **LEGAL)
    buffer, rng = make_buffer(ppo, *ACTIONS["discrete"]), np.random.default_rng(0)
    buffer.reset()
    ones = np.ones(4, bool)
    while not buffer.full:
        observation = record(rng.standard_normal((4, 3)).astype(np.float32), np.array([[True, False, True]] * 4))
        actions, logprobs, values = ppo.act(observation)
        buffer.add(observation, actions, rng.standard_normal(4), ones, ~ones, values, logprobs, np.zeros(4, np.float32))
    buffer.compute_returns_and_advantages(np.zeros(4, np.float32), 0.9, 0.95)
    before = ppo.policy_state()["mlps.head_weights.0"]
    ppo.update(buffer, 0.0, go_on)
    moved = (ppo.policy_state()["mlps.head_weights.0"] != before).any(0)
    assert moved.tolist() == [True, False, True]


# DQN.


def masked_batch(seed: int = 0, count: int = 32) -> tuple[ReplayBatch, ReplayBatch]:
    """A batch with masks, none of whose terminal states allows an action, and the same batch without masks."""
    plain, rng = random_batch(choices, count=count, seed=seed, scale=3.0), np.random.default_rng(seed)
    allowed, next_allowed = draw_masks(rng, count), draw_masks(rng, count)
    next_allowed[plain.discounts == 0] = False
    allowed[np.arange(count), plain.actions] = True
    obs, next_obs = record(plain.obs, allowed), record(plain.next_obs, next_allowed)
    return replace(plain, obs=obs, next_obs=next_obs), plain


def widen(batch: ReplayBatch) -> ReplayBatch:
    """The batch with its float32 arrays as float64."""

    def one(array: np.ndarray) -> np.ndarray:
        allowed = take_mask(array)
        if allowed is not None:
            return record(take_features(array).astype(np.float64), allowed)
        return array.astype(np.float64) if array.dtype == np.float32 else array

    return ReplayBatch(**{name: one(array) for name, array in vars(batch).items() if array is not None})


@pytest.mark.parametrize("option", OPTIONS)
def test_dqns_gradient_equals_autograds_of_the_pages_loss(backend: Backend, option: str) -> None:
    dqn = make_dqn(SPACE, **OPTIONS[option], **LEGAL)
    dqn.parameters, dqn.state.target = in_float64(dqn.network), in_float64(dqn.target_network)
    dqn.state.target.vector.mul_(0.7)
    batch = widen(masked_batch()[0])
    b = {name: torch.from_numpy(take_features(array)) for name, array in vars(batch).items() if array is not None}
    b["next_allowed"] = torch.from_numpy(batch.next_obs[MASK].copy())
    online = {name: torch.nn.Parameter(tensor) for name, tensor in dqn.policy_state().items()}
    networks = [partial(outputs_of, each, config=dqn.config) for each in (online, dqn.state.target.state_dict())]
    loss = DQN_PAGE.quantile_dqn_loss if dqn.config.quantiles else DQN_PAGE.dqn_loss
    losses, _ = loss(*networks, b, double=dqn.config.double)
    if dqn.config.prioritized_replay is not None:
        beta = dqn.config.prioritized_replay.beta_start
        losses = losses * DQN_PAGE.importance_weights(b["priorities"] / 4_321.0, 1_000, beta)
    gradients = torch.autograd.grad(losses.mean(), online.values())
    for _ in range(2):  # buffers are used again
        measured = dqn._gradient(batch, 0.0)
        assert measured["q_loss"] == pytest.approx(losses.mean().item(), rel=1e-10)
        for (name, parameter), expected in zip(dqn.network.named_parameters(), gradients, strict=True):
            assert float((parameter.grad - expected).norm()) <= 1e-10 * float(expected.norm()), name


TABLE = [
    # mask, discount, targets without and with double: the networks have Q 1, 5, 3 (online) and 10, 20, 30 (target)
    ([1, 1, 1], 0.5, 16.0, 11.0),
    ([1, 1, 0], 0.5, 11.0, 11.0),
    ([1, 0, 1], 0.5, 16.0, 16.0),
    ([1, 0, 0], 0.5, 6.0, 6.0),
    ([0, 0, 0], 0.0, 1.0, 1.0),
]


@pytest.mark.parametrize("quantiles", [0, 2])
@pytest.mark.parametrize("double", [False, True])
def test_targets_by_hand(backend: Backend, double: bool, quantiles: int) -> None:
    """Two quantiles are 4 below and above the value."""
    dqn = make_dqn(SPACE, double=double, quantiles=quantiles, **LEGAL)
    for network, values in ((dqn.network, [1.0, 5.0, 3.0]), (dqn.target_network, [10.0, 20.0, 30.0])):
        for parameter in network.parameters():
            parameter.data.zero_()
        spread = [value + off for value in values for off in ((-4.0, 4.0) if quantiles else (0.0,))]
        network.observed.mlps.head_biases[0].data.copy_(torch.tensor(spread))
    masks, discounts, *expected = zip(*TABLE, strict=True)
    obs = record(np.zeros((5, 3), np.float32), np.array(masks, bool))
    rewards = np.ones(5, np.float32)
    batch = ReplayBatch(obs, np.zeros(5, np.int64), rewards, obs, np.float32(discounts))
    inputs = replace(batch, obs=take_features(obs), next_obs=take_features(obs))
    got = backend.numpy(targets(dqn, inputs, None, backend.array(np.array(masks, bool))))
    wanted = np.array(expected[double])[:, None] + np.array(discounts)[:, None] * [[-4.0, 4.0] if quantiles else [0.0]]
    assert got.reshape(5, -1) == pytest.approx(wanted)
    measured = dqn._gradient(replace(batch, discounts=np.float32(discounts)).select(slice(0, 4)), 0.0)
    assert measured["q_max"] == pytest.approx(5.0)
    measured = dqn._gradient(batch.select(slice(2, 4)), 0.0)
    assert measured["q_max"] == pytest.approx(3.0)  # of the allowed actions


@pytest.mark.parametrize("option", ["plain", "both", "quantiles"])
def test_updates_with_target_values_from_ahead_equal_updates_without(option: str) -> None:
    batches, results = masked_batch(count=5 * 64)[0], []
    for look_ahead in (lambda dqn: dqn.look_ahead(batches, 3), lambda dqn: batches):
        dqn = make_dqn(SPACE, **OPTIONS[option], batch_size=64, gradient_steps=5, **LEGAL)
        dqn.state.target.vector.mul_(0.7)
        assert dqn.batches_ahead != (1, 1)
        drawn = look_ahead(dqn)
        results.append([dqn.update(drawn.select(slice(i * 64, (i + 1) * 64)), 0.0) for i in range(5)])
    for ahead, alone in zip(*results, strict=True):
        assert ahead == pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize("count", [1, 500])
def test_dqn_chooses_and_draws_allowed_actions_alone(backend: Backend, count: int) -> None:
    greedy = make_dqn(SPACE, exploration={"start": 0.0, "end": 0.0}, **LEGAL)
    dqn = make_dqn(SPACE, learning_starts=10, exploration={"end": 0.5}, **LEGAL)
    rng = np.random.default_rng(0)
    for _ in range(500 // count):
        allowed = draw_masks(rng, count)
        observation = record(rng.standard_normal((count, 3)).astype(np.float32), allowed)
        best = np.where(allowed, dqn.q_values(observation), -np.inf).argmax(1)
        assert dqn.act_greedy(observation).tolist() == best.tolist()
        assert dqn.policy_outputs(observation).argmax(1).tolist() == best.tolist()
        assert greedy.act(observation, 0).tolist() == best.tolist()
        for drawn in (dqn.act(observation, 0), dqn.draw_actions(dqn.policy_outputs(observation), rng)):
            assert allowed[np.arange(count), drawn].all()


def test_random_actions_of_the_warm_up_are_uniform_over_the_allowed_ones() -> None:
    """10,000 of 20,000 each; four standard deviations of the count are 283."""
    dqn = make_dqn(SPACE, learning_starts=10, **LEGAL)
    observation = record(np.zeros((20_000, 3), np.float32), np.tile([True, False, True], (20_000, 1)))
    counts = np.bincount(dqn.act(observation, 0), minlength=3)
    assert counts[1] == 0
    assert abs(counts[0] - 10_000) < 283


def test_streams_do_not_depend_on_masks() -> None:
    states = []
    for seed in (0, 1):
        dqn = make_dqn(SPACE, exploration={"start": 0.5, "fraction": 1.0}, **LEGAL)
        rng = np.random.default_rng(seed)
        for _ in range(20):
            dqn.act(record(rng.standard_normal((4, 3)).astype(np.float32), draw_masks(rng, 4)), 100)
        states.append(dqn.state.action_rng.bit_generator.state)
    assert states[0] == states[1]


def test_masks_that_allow_everything_choose_as_no_masks() -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((50, 3)).astype(np.float32)
    everything = record(features, np.ones((50, 3), bool))
    dqn, plain_dqn = make_dqn(SPACE, **LEGAL), make_dqn(VECTOR)
    assert dqn.act_greedy(everything).tolist() == plain_dqn.act_greedy(features).tolist()
    ppo, plain_ppo = make_ppo(*ACTIONS["discrete"], **LEGAL), make_ppo(VECTOR, spaces.Discrete(3))
    for got, expected in zip(ppo.act(everything), plain_ppo.act(features), strict=True):
        assert got.tobytes() == expected.tobytes()


def test_the_first_action_is_the_answer_if_nothing_is_allowed() -> None:
    nothing = record(np.zeros((2, 3), np.float32), np.zeros((2, 3), bool))
    dqn, ppo = make_dqn(SPACE, **LEGAL), make_ppo(*ACTIONS["discrete"], **LEGAL)
    assert dqn.act_greedy(nothing).tolist() == ppo.act_greedy(nothing).tolist() == [0, 0]
    rng = np.random.default_rng(0)
    assert all(agent.draw_actions(agent.policy_outputs(nothing), rng).tolist() == [0, 0] for agent in (dqn, ppo))


def test_distributions_exist_for_both_kinds_of_masked_actions() -> None:
    assert [type(make_distribution(actions, 0.0)) for _, actions in ACTIONS.values()] == [Categorical, MultiCategorical]


# Images, and bodies of one's own.

CAMERA = spaces.Box(0, 255, (6, 6, 1), np.uint8)
PARTS: dict[str, dict[str, gym.Space[Any]]] = {"image": {"camera": CAMERA}, "mixed": {"camera": CAMERA, "x": VECTOR}}


def observe(space: spaces.Dict, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Encoded random observations, and their masks."""
    rng = np.random.default_rng(seed)
    allowed, shown = draw_masks(rng, count), deepcopy(space)
    shown.seed(seed)
    rows = [{**shown.sample(), "legal": mask.astype(np.int8)} for mask in allowed]
    return ObservationEncoder(space, "legal").encode_list(rows), allowed


@pytest.mark.parametrize("kind", PARTS)
def test_images_have_masks_too(kind: str) -> None:
    space = spaces.Dict({**PARTS[kind], "legal": spaces.MultiBinary(3)})
    (obs, allowed), rng = observe(space, 32), np.random.default_rng(1)
    dqn = make_dqn(space, **LEGAL)
    assert dqn.act_greedy(obs).tolist() == np.where(allowed, dqn.q_values(obs), -np.inf).argmax(1).tolist()
    batch = ReplayBatch(obs, dqn.act(obs, 0), rng.standard_normal(32).astype(np.float32), obs, np.ones(32, np.float32))
    assert all(map(math.isfinite, dqn.update(batch, 0.0).values()))
    ppo = make_ppo(space, spaces.Discrete(3), **LEGAL)
    buffer, ones = make_buffer(ppo, space, spaces.Discrete(3)), np.ones(4, bool)
    buffer.reset()
    while not buffer.full:
        drawn, logprobs, values = ppo.act(obs[:4])
        buffer.add(obs[:4], drawn, rng.standard_normal(4), ones, ~ones, values, logprobs, np.zeros(4, np.float32))
    buffer.compute_returns_and_advantages(np.zeros(4, np.float32), 0.9, 0.95)
    assert all(map(math.isfinite, ppo.update(buffer, 0.0, go_on).values()))
    assert allowed[np.arange(4), buffer.actions].all()


def test_a_body_of_ones_own_sees_the_observation_without_its_mask() -> None:
    network = {"hidden": [8], "body": "tests.bodies:Normed"}
    masked, plain = (make_ppo(space, spaces.Discrete(3), network=network, **given) for space, given in (
        (SPACE, LEGAL), (VECTOR, {})
    ))  # fmt: skip
    features = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    everything = record(features, np.ones((5, 3), bool))
    assert masked.policy_outputs(everything).tolist() == plain.policy_outputs(features).tolist()


def test_a_replayed_nan_is_named_as_without_masks() -> None:
    dqn, (batch, _) = make_dqn(SPACE, **LEGAL), masked_batch()
    batch.obs[FEATURES][3, 1] = np.nan
    with pytest.raises(NumericError, match="replayed obs is not finite"):
        dqn.update(batch, 0.0)
