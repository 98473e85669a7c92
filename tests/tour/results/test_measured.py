"""Result files of today and of tomorrow become curves."""

from regard.tour.results.measured import remembered, timed


def page(*rows, device="cuda"):
    return {"additive": {"device": device, "rows": list(rows)}}


def row(tokens, **more):
    return {"batch": 8, "tokens": tokens, "hidden": 128, "backward": False} | more


def curves(series):
    return {one.name: list(one.points) for one in series}


def test_times_are_curves_over_length_and_medians_over_rows():
    seconds = [{"textbook": {"median": number}} for number in (1.0, 2.0, 4.0, 8.0)]
    rows = [row(1024, seconds=one) for one in seconds[:3]] + [row(256, seconds=seconds[3])]
    found = timed(page(*rows, {"kind": "something else"}, {"tokens": 3}))
    assert {place: curves(series) for place, series in found.items()} == {
        "GPU, forwards, batch 8, hidden size 128": {"textbook": [(256, 8.0), (1024, 2.0)]}
    }


def test_directions_devices_and_allowed_errors_are_told_apart():
    names = ("textbook, torch.compile", "regard.attend", "regard.attend, torch.compile")
    seconds = {name: {"median": 1.0} for name in names}
    lifted = {name: {"median": 1.0} for name in names[:2]}
    found = timed(page(row(64, seconds=seconds), row(64, seconds=lifted, tolerance=0.0025)))
    (series,) = found.values()
    assert [(one.name, one.kind) for one in series] == [
        ("textbook, compiled", "c3"),
        ("regard.attend", "c0"),
        ("regard.attend, compiled", "c0 dashed"),
        ("regard.attend, within 0.0025", "c2"),
    ]
    both = timed(page(row(64, seconds=seconds, backward=True), device="cpu"))
    assert list(both) == ["CPU, forwards and backwards, batch 8, hidden size 128"]


def test_a_form_as_a_product_is_dashed_and_replays_are_no_calls():
    rows = [
        row(64, seconds={name: {"median": 1.0}}, captured=captured)
        for name in ("textbook as a product", "textbook as a product, torch.compile")
        for captured in (False, True)
    ]
    rows[1]["seconds"] = rows[3]["seconds"] = {"regard.attend": {"median": 9.0}}
    (series,) = timed(page(*rows)).values()
    assert [(one.name, one.kind) for one in series] == [
        ("textbook as a product", "c4 dashed"),
        ("textbook as a product, compiled", "c3 dashed"),
    ]


def test_memory_is_a_number_or_one_for_each_form_and_forwards_alone_does_not_count():
    rows = [
        row(64, backward=True, peak_bytes={"textbook": 100, "regard.attend": 10}),
        row(32, backward=True, peak_bytes={"textbook": None, "regard.attend": 5}),
        row(64, peak_bytes={"regard.attend": 1}),
        {"tokens": 16, "hidden": 8, "peak_bytes": 7, "textbook_bytes_at_least": 70},
    ]
    found = {place: curves(series) for place, series in remembered(page(*rows)).items()}
    assert found == {
        "GPU, forwards and backwards, batch 8, hidden size 128": {
            "textbook": [(64, 100)],
            "regard.attend": [(32, 5), (64, 10)],
        },
        "GPU, forwards and backwards, batch 1, hidden size 8": {
            "regard.attend": [(16, 7)],
            "textbook, at least": [(16, 70)],
        },
    }
