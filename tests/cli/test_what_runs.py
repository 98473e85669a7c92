"""What would run: every kind of score on every device, told as `why` tells it."""

from regard.backends.dispatch import BACKENDS
from regard.cli.what_runs import devices, findings


def test_each_kind_in_two_sizes_on_each_device():
    found = findings()
    assert len(found) == 2 * 4 * len(list(devices()))
    for one in found:
        assert {one["backend"], *one["not"]} == set(BACKENDS)
        assert all(reason for reason in one["not"].values())


def test_on_a_cpu_small_and_large_differ_where_tiles_pay():
    kernels = {
        one["size"]: one["backend"] for one in findings() if one["what"].startswith("kernel") and one["device"] == "cpu"
    }
    assert kernels == {"2 x 16 x 16": "reference", "4 x 2048 x 2048": "blocked"}
