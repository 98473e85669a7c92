"""Every test starts from one seed, on one thread; REGARD_TEST_DEVICE=cuda makes the contracts' tensors on a GPU."""

import os
import warnings

if not os.environ.get("REGARD_TEST_DEVICE"):
    os.environ["TRITON_INTERPRET"] = "1"  # without a GPU its kernels run in Triton's interpreter
if "OMP_NUM_THREADS" not in os.environ:
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's, and of processes tests start

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
if DEVICE := os.environ.get("REGARD_TEST_DEVICE"):
    torch.set_default_device(DEVICE)
    # A GPU's libraries warn when a backward pass is the first to call them: make it this one.
    with warnings.catch_warnings(action="ignore"):
        (torch.ones(1, 1, requires_grad=True) @ torch.ones(1, 1)).backward()
settings.register_profile("regard", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("regard")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(20240229)
