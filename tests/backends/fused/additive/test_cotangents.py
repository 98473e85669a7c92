"""What is measured of rows before the backward pass, by torch's own operations."""

import math

import pytest
import torch

from regard.backends.fused.additive.cotangents import choose_scale, measure_rows


@pytest.mark.parametrize(("rows", "value_dim"), [(1, 1), (7, 5), (64, 64), (131, 150)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_measured(rows, value_dim, dtype):
    grad_output, output = (torch.randn(rows, value_dim).to(dtype) for _ in range(2))
    log_mass, grad_log_mass = (torch.randn(rows) for _ in range(2))
    log_mass[0] = -math.inf
    means, norms, own = (torch.full((rows,), math.nan) for _ in range(3))
    measure_rows[(-(-rows // 16),)](
        grad_output, output, log_mass, grad_log_mass, means, norms, own, rows, VALUE_DIM=value_dim, BV=64, BR=16
    )
    cleaned = grad_log_mass.masked_fill(log_mass == -math.inf, 0.0)
    torch.testing.assert_close(own, cleaned, rtol=0, atol=0)
    torch.testing.assert_close(means, (grad_output.float() * output.float()).sum(-1) - cleaned)
    torch.testing.assert_close(norms, grad_output.float().norm(dim=-1))


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-12, 1.0, 3e4, 1e15])
@pytest.mark.parametrize(("count", "dropout"), [(3, 0.0), (70, 0.75)])
def test_the_scale_is_the_power_of_two_that_half_precision_bears(size, count, dropout):
    norms, values, own = (size * torch.rand(count) for _ in range(3))
    scale = torch.full((1,), math.nan)
    choose_scale[(1,)](norms, values, own, scale, count, count, 1 - dropout, BLOCK=16)
    most = float(2 * norms.double().max() * values.double().max() / (1 - dropout) + own.double().max())
    assert math.frexp(scale.item())[0] == 0.5, "a power of two"
    if most >= 2.0**-66:
        assert 2.0**13.99 <= scale.item() * most <= 2.0**15.01
    else:
        assert scale.item() == 2.0**80
