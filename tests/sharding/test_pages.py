"""The page about sharding on paper says what is so: tables are rendered from figures, and figures fit each other."""

import json

import pytest
from benchmarks import pages, sharding_paper

PAPER = sharding_paper.PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sharding_paper.render())
def test_the_tables_are_rendered_from_the_figures(name):
    assert pages.part(PAPER, name) == sharding_paper.render()[name], "run python -m benchmarks.sharding paper"


def test_what_was_measured_is_what_was_counted():
    rows = json.loads((sharding_paper.RESULTS / "sharding.json").read_text())["rows"]
    assert {row["ranks"] for row in rows} >= {1, 2, 4}
    assert all(sum(row["sent_bytes"]) == row["counted_bytes"] for row in rows)
    held = {}
    for row in rows:
        held.setdefault(row["case"], []).append(max(row["peak_bytes"]))
    assert all(most == sorted(most, reverse=True) for most in held.values()), "memory of a rank falls with the ranks"


def test_the_rate_of_products_is_the_measured_one(tmp_path, monkeypatch):
    kept = json.loads((sharding_paper.RESULTS / "additive-kernels-cuda.json").read_text())
    assert sharding_paper.matrix_rate() == kept["ceilings"]["matrix_flops"]
    half = kept | {"ceilings": kept["ceilings"] | {"matrix_flops": kept["ceilings"]["matrix_flops"] / 2}}
    (tmp_path / "additive-kernels-cuda.json").write_text(json.dumps(half))
    before = sharding_paper.dot()
    monkeypatch.setattr(sharding_paper, "RESULTS", tmp_path)
    assert sharding_paper.dot().backward(4096) == pytest.approx(2 * before.backward(4096))


def test_communication_dominates_below_the_threshold_and_not_above_it():
    work = sharding_paper.dot()
    tokens = sharding_paper.fewest_tokens(work, sharding_paper.BETWEEN, backward=True)
    above, below = (sharding_paper.estimate(work, tokens * factor, 64) for factor in (3, 0.3))
    assert above.moving < above.computing == pytest.approx(above.together)
    assert below.computing < below.moving == pytest.approx(below.together, rel=0.05)
