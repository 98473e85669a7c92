"""The README says what is so: its example runs, and its tables list what the library has."""

import json
import re
from pathlib import Path

import torch
from benchmarks import pages, report
from benchmarks.translation import report as translation_report

import regard
from regard.scores.names import NAMED_SCORES

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def first_cells(title):
    (section,) = re.findall(rf"## {title}\n(.*?)\n## ", README, flags=re.DOTALL)
    return re.findall(r"^\| `(\w+(?:\.\w+)?)\(.*$", section, flags=re.MULTILINE)


BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def run_blocks():
    """What the README's blocks define, run one after the other."""
    names = {}
    for block in BLOCKS:
        exec(block, names)
    return names


def test_the_example_runs_and_its_shapes_are_as_it_says(capsys):
    names = run_blocks()
    assert all(names[name].shape == (2, 5, 3) for name in ("output", "smooth", "learned", "own"))
    weights = regard.inspect(*(names[name] for name in ("query", "key", "value")), mask=names["mask"]).weights()
    assert weights[1].shape == (5, 7)
    assert (weights[1, :, 4:] == 0).all()
    assert str(weights[1])[:20] in capsys.readouterr().out


def test_decoding_by_steps_gives_the_same_numbers():
    names = run_blocks()
    torch.testing.assert_close(torch.cat(names["steps"], dim=1), names["whole"])


def test_the_speed_table_is_rendered_from_the_results():
    assert pages.part(README, report.PART) == report.short()
    assert report.WHOLE.read_text(encoding="utf-8") == report.page()


def test_the_tables_of_translation_are_rendered_from_the_results():
    assert pages.part(README, translation_report.PART) == translation_report.render()


def test_a_model_can_be_called_as_it_says():
    assert run_blocks()["logits"].shape == (2, 6, 40)


def test_every_score_is_listed():
    modules = {name for name in regard.scores.__all__ if name not in {"Score", "Rotary"}}
    assert set(first_cells("Scores")) == modules


def test_every_score_is_listed_with_its_name():
    listed = re.findall(r'^\| `(\w+)\(.*\| `"(\w+)"` \|$', README, flags=re.MULTILINE)
    assert {name: score for score, name in listed} == {name: kind.__name__ for name, kind in NAMED_SCORES.items()}


def test_every_mask_that_is_listed_exists():
    words = [word.removeprefix("Mask.") for word in first_cells("Masks")]
    assert len(words) == 8
    assert all(hasattr(regard.Mask, word) for word in words)


def test_no_result_stands_under_another_machine():
    """Each short table names the machine of all its rows."""
    suites = [json.loads(path.read_text()) for path in sorted(report.RESULTS.glob("*.json"))]
    timed = [suite for suite in suites if suite.get("suite") in report.RENDERED]
    own, on_gpu = (
        {suite["suite"]: suite["machine"]["processor"] for suite in timed if suite["device"] == device}
        for device in ("cpu", "cuda")
    )
    tables = dict(
        re.findall(
            r"Medians of interleaved passes on (.+?), \d+ threads.+?\n(.+?)(?=\nMedians|\Z)", report.short(), re.S
        )
    )
    for suite, sign in (("dot", "scaled dot"), ("additive", "additive"), ("regression", "NadarayaWatson")):
        machines = [machine for machine, table in tables.items() if f"`, {sign}," in table or f"`{sign}`" in table]
        assert own[suite] in machines, suite
        assert set(machines) <= {own[suite], on_gpu.get(suite)}, suite
