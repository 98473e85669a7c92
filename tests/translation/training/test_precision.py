"""`products_in`: the setting holds inside, and is put back."""

import pytest
import torch

from regard.translation.training.precision import products_in


def settings():
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def fail_inside(precision):
    with products_in(precision):
        raise KeyError(settings())


@pytest.mark.parametrize(("precision", "fast"), [("float32", False), ("tf32", True), ("bfloat16", True)])
def test_the_setting_holds_inside_only_whatever_happens_there(precision, fast):
    before = settings()
    with pytest.raises(KeyError) as raised:
        fail_inside(precision)
    assert raised.value.args[0] == (fast, fast)
    assert settings() == before
