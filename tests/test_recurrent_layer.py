"""One step of each kind of recurrent layer by hand, and gradients through sequences in which episodes begin."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rl_training.data.sequence_buffer import SequenceMinibatch
from rl_training.networks.backend import Backend
from rl_training.networks.recurrent.recurrent_layer import RecurrentLayer
from tests.docs_code import losses_of
from tests.network_parts import reference
from tests.off_policy_parts import in_float64
from tests.recurrent_parts import collect, make_buffer, make_recurrent, random_dones

PLAIN = losses_of("ppo")
LN2, LN3 = math.log(2.0), math.log(3.0)
"""tanh(ln 2) = 3/5; sigmoid(ln 3) = 3/4; sigmoid(-ln 3) = 1/4."""


def make_unit(kind: Any, of_input: list[float], of_output: list[float], biases: list[float]) -> RecurrentLayer:
    layer = RecurrentLayer(kind, 1, 1, np.random.default_rng(0))
    with torch.no_grad():
        layer.weights.copy_(torch.tensor([of_input, of_output]))
        layer.biases.copy_(torch.tensor(biases))
    return layer


def test_a_step_of_an_lstm_of_one_unit_by_hand() -> None:
    # Gates: input 3/4, forget 1/4, cell input tanh(ln 2 * x) = 3/5, output sigmoid(ln 3 * h) = 3/4.
    layer = make_unit("lstm", [0, 0, LN2, 0], [0, 0, 0, LN3], [LN3, -LN3, 0, 0])
    outputs, memories = layer(torch.ones(1, 1, 1), torch.tensor([[[1.0], [0.4]]]))  # h = 1, c = 0.4
    cell = 0.25 * 0.4 + 0.75 * 0.6
    assert outputs.item() == pytest.approx(0.75 * math.tanh(cell))
    assert memories.flatten().tolist() == pytest.approx([0.75 * math.tanh(cell), cell])


def test_a_step_of_a_gru_of_one_unit_by_hand() -> None:
    # Gates: reset 3/4, update 1/4; the candidate is tanh(x * 0 + 3/4 * ln 2 / 0.6 * h) = tanh(ln 2) = 3/5 for h = 0.8.
    layer = make_unit("gru", [0, 0, 0], [0, 0, LN2 / 0.6], [LN3, -LN3, 0])
    outputs, memories = layer(torch.ones(1, 1, 1), torch.tensor([[[0.8]]]))
    assert outputs.item() == pytest.approx(0.75 * 0.6 + 0.25 * 0.8)
    assert memories.item() == pytest.approx(0.65)


def lstm_step(x: torch.Tensor, memory: list[torch.Tensor], layer: Any) -> list[torch.Tensor]:
    h, c = memory
    i, f, g, o = (torch.cat([x, h]) @ layer.weights + layer.biases).chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return [torch.sigmoid(o) * torch.tanh(c), c]


def gru_step(x: torch.Tensor, memory: list[torch.Tensor], layer: Any) -> list[torch.Tensor]:
    (h,) = memory
    of_x, of_h = x @ layer.weights[: len(x)] + layer.biases, h @ layer.weights[len(x) :]
    (r, z, n), (r_h, z_h, n_h) = of_x.chunk(3), of_h.chunk(3)
    r, z = torch.sigmoid(r + r_h), torch.sigmoid(z + z_h)
    return [(1 - z) * torch.tanh(n + r * n_h) + z * h]


STEPS = {"lstm": lstm_step, "gru": gru_step}


def by_autograd(part: Any, kind: str, rollout: dict[str, Any], index: np.ndarray, which: int) -> torch.Tensor:
    """A network on a sequence of transitions, step by step, with an empty memory after each end of an episode."""
    memory, outputs = None, []
    for t, env in zip(*np.divmod(index, 4), strict=True):
        if memory is None:
            memory = list(torch.from_numpy(rollout["memories"][t // 4, env, which].astype(np.float64)))
        elif rollout["dones"][t - 1, env]:
            memory = [torch.zeros_like(part) for part in memory]
        memory = STEPS[kind](torch.from_numpy(rollout["obs"][t, env].astype(np.float64)), memory, part.layer)
        outputs.append(memory[0])
    return reference(part.mlp, torch.stack(outputs))[0]


@pytest.mark.parametrize("steps", [8, 7])
@pytest.mark.parametrize("kind", STEPS)
def test_gradients_of_the_loss_through_beginnings_of_episodes_equal_autograd(
    backend: Backend, kind: str, steps: int
) -> None:
    ppo = make_recurrent(kind, batch_size=32, entropy_coef=0.1, normalize_advantage=False)
    buffer = make_buffer(ppo)
    dones = random_dones(buffer)
    dones[1] = [True, False, True, False]  # in the middle of a sequence
    collect(ppo, buffer, dones, steps)
    order = buffer.draw_order(np.random.default_rng(0))
    (minibatch,) = buffer.iter_minibatches(32, order)
    ppo.parameters = in_float64(ppo.network, noise=0.1)
    wide = {n: f.astype(np.float64) if f.dtype == np.float32 else f for n, f in vars(minibatch).items()}
    b = {name: torch.from_numpy(array) for name, array in wide.items()}

    starts = np.flatnonzero(np.diff(order // 4 // 4 * 4 + order % 4, prepend=-1))
    sequences = np.split(order, starts[1:])
    assert len(sequences) == 8
    outputs, values = (
        torch.cat([by_autograd(part, kind, vars(buffer), index, which) for index in sequences])
        for which, part in enumerate((ppo.network.policy, ppo.network.value))
    )
    categorical = torch.distributions.Categorical(logits=outputs)
    loss = PLAIN.ppo_loss(
        categorical.log_prob(b["actions"]), categorical.entropy(), values[:, 0], b,
        clip_range=0.1, value_clip=None, value_coef=0.5, entropy_coef=0.1,
    )  # fmt: skip
    expected = torch.autograd.grad(loss, list(ppo.network.parameters()))
    for _ in range(2):  # overwritten and not added to
        ppo._gradient(SequenceMinibatch(**wide), clip_range=0.1)
    for (name, parameter), want in zip(ppo.network.named_parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert float((parameter.grad - want).norm()) <= 1e-10 * float(want.norm()), name


def test_first_weights_are_orthogonal_and_biases_zero() -> None:
    layer = RecurrentLayer("lstm", 3, 5, np.random.default_rng(0))
    of_inputs, of_outputs = layer.weights.detach()[:3], layer.weights.detach()[3:]
    torch.testing.assert_close(of_inputs @ of_inputs.T, torch.eye(3))
    torch.testing.assert_close(of_outputs @ of_outputs.T, torch.eye(5))
    assert not layer.biases.any()
    assert isinstance(layer.weights, nn.Parameter)
