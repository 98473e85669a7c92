"""Station 7: looks at a model while it learns, at dates it has not seen."""

import pytest

from regard.tour.stations.learning import DAY, LOCALES, SHOWN, shown_date


def test_the_shown_languages_are_learnt():
    assert set(SHOWN) <= set(LOCALES)


@pytest.mark.parametrize(
    ("locale", "text"), [("fi", "21. syyskuuta 1987"), ("hu", "1987. szeptember 21."), ("de", "21. September 1987")]
)
def test_the_shown_date_and_its_fields(locale, text):
    example = shown_date(locale)
    assert (example.source, example.target) == (text, "1987-09-21")
    said = {example.target[slice(*span.target)]: example.source[slice(*span.source[0])] for span in example.spans}
    assert said["1987"] == "1987"
    assert said["21"] == "21"
    assert said["09"].lower().startswith("s")


def test_maps_are_rows_of_weights(stations):
    data = stations["learning"].data
    looks = len(data["updates"])
    assert data["updates"][0] == 0
    assert data["updates"] == sorted(set(data["updates"]))
    for locale in SHOWN:
        assert len(data["weights"][locale]) == len(data["mass"][locale]) == len(data["exact"][locale]) == looks
        for table in data["weights"][locale]:
            assert len(table) == len(DAY.isoformat()) == len(data["target"])
            for row in table:
                assert len(row) == len(data["sources"][locale])
                assert sum(row) == pytest.approx(1, abs=0.005)


def test_an_untrained_model_looks_everywhere_alike(stations):
    data = stations["learning"].data
    for locale in SHOWN:
        count = len(data["sources"][locale])
        assert max(map(max, data["weights"][locale][0])) < 2 / count
        assert data["mass"][locale][0][0] < 0.4


def test_every_number_has_its_count(stations):
    header, rows = stations["learning"].tables[0].header, stations["learning"].tables[0].rows
    assert header[-1] == "n"
    assert {row[-1] for row in rows} == {6}
