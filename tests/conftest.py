"""Every test starts from one seed, on one thread; REGARD_TEST_DEVICE=cuda makes the contracts' tensors on a GPU."""

import gc
import os
import warnings
from contextlib import ExitStack

if not os.environ.get("REGARD_TEST_DEVICE"):
    os.environ["TRITON_INTERPRET"] = "1"  # without a GPU its kernels run in Triton's interpreter
if "OMP_NUM_THREADS" not in os.environ:
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's, and of processes tests start

import pytest
import torch
from hypothesis import settings
from tests import interpreter, moved, refuses

moved.install(moved.MOVED)

torch.set_num_threads(1)
if DEVICE := os.environ.get("REGARD_TEST_DEVICE"):
    torch.set_default_device(DEVICE)
    # A GPU's libraries warn when a backward pass is the first to call them: make it this one.
    with warnings.catch_warnings(action="ignore"):
        (torch.ones(1, 1, requires_grad=True) @ torch.ones(1, 1)).backward()
settings.register_profile("regard", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("regard")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect without the garbage collector, which would walk through all items so far again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_ignore_collect(collection_path):
    """Look for doctests in src only: in tests that would import the helpers and programs, and torch's compiler."""
    is_helper = collection_path.suffix == ".py" and not collection_path.name.startswith("test_")
    return True if is_helper else None


def pytest_runtest_setup(item):
    """Skip what is about a CPU where tensors are on a GPU."""
    if DEVICE and DEVICE != "cpu" and item.get_closest_marker("cpu"):
        pytest.skip("tensors of this run are on a GPU")


@pytest.fixture(autouse=True, scope="session")
def _interpreter():
    if not DEVICE:
        interpreter.patch_once_per_launch()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(20240229)


@pytest.fixture
def set_limits():
    """A function that overrides limits until the test ends, as `regard.testing.limits` does inside a block."""
    from regard.testing import limits

    with ExitStack() as stack:
        yield lambda **values: stack.enter_context(limits(**values))


# --- tests/refusals.txt: the texts of all refusals that tests expect ------------------------------------------------


def pytest_addoption(parser):
    parser.addoption("--update-refusals", action="store_true", help="write the texts of refusals to tests/refusals.txt")


def pytest_configure(config):
    refuses.updates = config.getoption("--update-refusals")
    refuses.known.update(refuses.read())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Collect what a process of xdist has met."""
    refuses.seen.update(getattr(node, "workeroutput", {}).get("refusals", ()))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    """Write the file, or list the texts in it that a whole run has not met: a missing browser skips some tests."""
    config = session.config
    if config.option.collectonly:
        return
    if hasattr(config, "workeroutput"):
        config.workeroutput["refusals"] = sorted(refuses.seen)
        return
    is_whole = config.args == config.getini("testpaths") and not (config.option.keyword or config.option.markexpr)
    if config.getoption("--update-refusals"):
        refuses.write(refuses.seen if is_whole else refuses.seen | refuses.read())
    elif is_whole and not session.testsfailed and not DEVICE and (stale := refuses.known - refuses.seen):
        lines = "\n".join(sorted(stale))
        print(f"\n{len(stale)} texts of tests/refusals.txt were not met; run pytest --update-refusals:\n{lines}")
