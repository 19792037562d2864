"""The loss of quantile regression: by hand, against all pairs and autograd, and where it is least."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.algorithms.quantile_loss import midpoint_levels, quantile_huber

CPU = torch.device("cpu")


def all_pairs(quantiles_BM: torch.Tensor, samples_BT: torch.Tensor, levels_M: torch.Tensor) -> torch.Tensor:
    """The losses as Dabney et al. write them."""
    errors_BMT = samples_BT[:, None] - quantiles_BM[:, :, None]
    huber = torch.where(errors_BMT.abs() <= 1, errors_BMT**2 / 2, errors_BMT.abs() - 0.5)
    return ((levels_M[None, :, None] - (errors_BMT < 0).double()).abs() * huber).mean(2)


def test_levels_are_the_midpoints():
    assert midpoint_levels(4, CPU).tolist() == [0.125, 0.375, 0.625, 0.875]


def test_a_quantile_against_four_samples_by_hand():
    # Errors -3, -0.5, 0.5 and 4 at level 0.25: 0.75 (2.5 + 0.125) + 0.25 (0.125 + 3.5), over 4 samples.
    losses, slopes = quantile_huber(
        torch.tensor([[10.0]]), torch.tensor([[7.0, 9.5, 10.5, 14.0]]), torch.tensor([0.25]).double()
    )
    assert losses.item() == (0.75 * 2.625 + 0.25 * 3.625) / 4
    assert slopes.item() == (0.75 * 1.5 - 0.25 * 1.5) / 4


numbers = st.floats(-1e3, 1e3) | st.integers(-3, 3).map(float)  # integers, so that samples lie on the edges


@settings(deadline=None)
@given(
    st.lists(numbers, min_size=1, max_size=6),
    st.lists(numbers, min_size=1, max_size=9),
    st.integers(1, 50),
)
def test_losses_and_slopes_are_those_of_all_pairs(quantiles, samples, step):
    quantiles_BM = torch.tensor([quantiles, quantiles[::-1]]).double().requires_grad_()
    samples_BT = torch.tensor([samples, [sample / step for sample in samples]]).double()
    levels_M = midpoint_levels(len(quantiles), CPU)
    expected = all_pairs(quantiles_BM, samples_BT, levels_M)
    (slopes,) = torch.autograd.grad(expected.sum(), quantiles_BM)
    losses_found, slopes_found = quantile_huber(quantiles_BM.detach(), samples_BT.sort(1).values, levels_M)
    torch.testing.assert_close(losses_found, expected.detach(), rtol=1e-10, atol=1e-8)
    torch.testing.assert_close(slopes_found, slopes, rtol=1e-10, atol=1e-10)


def test_float32_comes_back_as_float32_with_float64s_precision():
    samples_BT = torch.linspace(1e4, 1e4 + 1, 8)[None]
    quantiles_BM = torch.full((1, 2), 1e4 + 0.5)
    levels_M = midpoint_levels(2, CPU)
    losses, slopes = quantile_huber(quantiles_BM, samples_BT, levels_M)
    exact = all_pairs(quantiles_BM.double(), samples_BT.double(), levels_M)
    assert losses.dtype == slopes.dtype == torch.float32
    torch.testing.assert_close(losses, exact.float(), rtol=1e-6, atol=0)


def test_the_slope_is_zero_at_the_median_of_far_samples():
    # With all errors beyond 1, the slope of level p is the share of samples below times 1 - p, less that above times p.
    _, slopes = quantile_huber(
        torch.tensor([[0.0]]), torch.tensor([[-30.0, -20.0, -10.0, 10.0, 20.0, 30.0]]), midpoint_levels(1, CPU)
    )
    assert slopes.item() == 0.0
