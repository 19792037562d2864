"""A recurrent layer, LSTM or GRU, evaluated on sequences of steps.

Shapes: L steps of a sequence, C sequences (or environments), I inputs, H units, G gates, P parts of a memory.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.networks.initialization import RECURRENT_GAIN, orthogonal_

Kind = Literal["lstm", "gru"]

GATES: dict[Kind, int] = {"lstm": 4, "gru": 3}
"""Number of gates, each with a row of weights per unit, in the order of torch's functions."""
PARTS: dict[Kind, int] = {"lstm": 2, "gru": 1}
"""Number of parts of a memory: outputs and cell states of an LSTM, outputs of a GRU."""


class RecurrentLayer(nn.Module):
    """A long short-term memory (Hochreiter & Schmidhuber 1997) or a gated recurrent unit (Cho et al. 2014).

    `torch.lstm` and `torch.gru` compute it, with autograd. Inputs and previous outputs share one matrix and one bias
    per gate; torch's second bias would be redundant in an LSTM, and is zero here.

    Attributes:
        weights: Weights of the inputs, and below them those of the previous outputs, [I + H, G * H].
        biases: One bias per gate, [G * H].
        memory_shape: Shape of the memory of one sequence, (P, H).
    """

    def __init__(self, kind: Kind, inputs: int, units: int, rng: np.random.Generator) -> None:
        """Makes a layer with orthogonal weights (gain 1) and zero biases.

        Args:
            kind: `lstm` or `gru`.
            inputs: Number of inputs (I).
            units: Number of units (H).
            rng: Generator of the stream `init`.

        Source: Huang et al. 2022, LSTM detail 1.
        """
        super().__init__()
        self.kind, self.memory_shape = kind, (PARTS[kind], units)
        self._rows = [inputs, units]
        self.weights = nn.Parameter(torch.empty(inputs + units, GATES[kind] * units))
        self.biases = nn.Parameter(torch.zeros(GATES[kind] * units))
        for rows in torch.split(self.weights.detach(), self._rows):
            orthogonal_(rows, RECURRENT_GAIN, rng)

    def forward(self, inputs_LCI: Tensor, memories_CPH: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates sequences.

        Args:
            inputs_LCI: The inputs of each step.
            memories_CPH: The memory of each sequence before its first step; zero where an episode begins.

        Returns:
            The outputs [L, C, H], and the memories [C, P, H] after the last step.
        """
        of_inputs_IG, of_outputs_HG = torch.split(self.weights, self._rows)
        parameters = [of_inputs_IG.T, of_outputs_HG.T, self.biases, torch.zeros_like(self.biases)]
        state_PCH = memories_CPH.transpose(0, 1).contiguous()
        # With biases, of one layer, without dropout, for training or not, in one direction, with steps as first axis.
        options = (True, 1, 0.0, torch.is_grad_enabled(), False, False)
        if self.kind == "lstm":
            outputs_LCH, *state = torch.lstm(inputs_LCI, list(state_PCH[:, None]), parameters, *options)
        else:
            outputs_LCH, *state = torch.gru(inputs_LCI, state_PCH, parameters, *options)
        return outputs_LCH, torch.cat(state).transpose(0, 1)
