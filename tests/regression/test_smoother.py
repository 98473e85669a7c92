"""The curve keeps what was prepared of its data while its width changes, and forgets it with the data."""

from dataclasses import replace

import torch
from tests.regression.curves import wave

from regard.regression.smoother import Smoother
from regard.regression.sums import Observations


def test_data_are_prepared_once_for_all_widths():
    x, y = wave()
    data = Observations(torch.tensor(x), torch.tensor(y).unsqueeze(-1))
    first = Smoother(data, "gaussian", 1.0)
    assert replace(first, width=0.5).data.sorted is first.data.sorted
    other = replace(first, data=replace(data, value=-data.value))
    assert other.data.sorted is not first.data.sorted
    torch.testing.assert_close(other.fit(data.key).mean, -first.fit(data.key).mean)
