"""The times beside the floors of additive attention's kernels: each call is counted whole, and the shortest is kept."""

import pytest
from benchmarks import additive_kernels
from benchmarks.additive_figures import files, page
from benchmarks.additive_kernels import floor_of, least, summed

CEILINGS = {"matrix_flops": 7e14, "copied_bytes": 4e12, "multiprocessors": 132, "clock_after_products": 1.98e9}


def test_matrix_products_of_many_names_are_one_kernel_and_specks_are_left_out():
    events = [("nvjet_a", 0.5, 2), ("pool_scores", 0.1, 1), ("some_gemm_b", 0.25, 1), ("Memset", 0.001, 3)]
    assert summed(events) == {"matrix product": (0.75, 3), "pool_scores": (0.1, 1)}


def test_the_least_is_of_whole_calls_for_every_kernel():
    runs = [
        summed([("nvjet_a", 0.5, 1), ("nvjet_b", 0.4, 1), ("pool_scores", 0.1, 1)]),
        summed([("nvjet_a", 0.3, 1), ("nvjet_b", 0.4, 1), ("pool_scores", 0.2, 1)]),
        summed([("nvjet_a", 0.1, 1), ("nvjet_b", 0.9, 1), ("score_gradients", 0.2, 1)]),
    ]
    found = least(runs)
    assert found["matrix product"] == (pytest.approx(0.7), 2)
    assert (found["pool_scores"], found["score_gradients"]) == ((0.1, 1), (0.2, 1))


def test_a_ceiling_is_the_best_of_its_calls(monkeypatch):
    times = iter([2.0, 1.0, 4.0] * 10)
    monkeypatch.setattr(additive_kernels, "milliseconds", lambda call: next(times))
    assert additive_kernels.best_rate(6.0, lambda: None) == pytest.approx(6000.0)


def test_a_faster_machine_has_lower_floors():
    slow, by = floor_of("matrix product", 14, True, CEILINGS)
    fast, _ = floor_of("matrix product", 14, True, CEILINGS | {"matrix_flops": 1.4e15})
    assert by == "matrix operations"
    assert slow == pytest.approx(2 * fast)


def test_no_kernel_is_faster_than_its_floor():
    rows = [row for row in files.kept("additive-kernels-cuda")["rows"] if row["floor_ms"] is not None]
    kept = [row for row in rows if not (row["call"].startswith("lifted") and row["kernel"] in page.BEYOND_RANGE)]
    assert len(kept) > 8
    assert all(row["floor_ms"] <= row["ms"] for row in kept)


def test_kernels_for_what_is_beyond_the_range_are_those_of_the_lifted_calls():
    rows = files.kept("additive-kernels-cuda")["rows"]
    lifted = {row["kernel"] for row in rows if row["call"].startswith("lifted")}
    assert set(page.BEYOND_RANGE) <= lifted
    table = page.kernels_table()
    told = sum(table.count(f"| {note} |") for note in set(page.BEYOND_RANGE.values()))
    assert told == sum(row["call"].startswith("lifted") and row["kernel"] in page.BEYOND_RANGE for row in rows)
