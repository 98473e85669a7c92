"""Generated parts of pages: found by their names, replaced alone, and refused where their markers are not in order."""

import pytest
from benchmarks import pages

PAGE = """# Title

<!-- generated: one -->
old
<!-- end -->
between
<!-- generated: two -->
<!-- end of two -->
last"""


def test_a_part_is_what_stands_between_its_markers():
    assert pages.part(PAGE, "one") == "old\n"
    assert pages.part(PAGE, "two") == ""


def test_only_the_named_parts_change(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    pages.renew(page, {"two": "2²\n"})
    assert page.read_text(encoding="utf-8") == PAGE.replace("<!-- end of two", "2²\n<!-- end of two")
    pages.renew(page, {"one": "new\n", "two": ""})
    assert page.read_text(encoding="utf-8") == PAGE.replace("old", "new")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (PAGE.replace("generated: two", "generated: three"), "the page has 0 markers <!-- generated: two -->"),
        (PAGE + PAGE, "the page has 2 markers"),
        (PAGE.replace("<!-- end of two -->", ""), "nothing ends what begins with <!-- generated: two -->"),
        (PAGE.replace("<!-- end -->", "").replace("two", "x").replace("one", "two"), "nothing ends"),
    ],
)
def test_markers_out_of_order_are_refused_and_nothing_is_written(tmp_path, text, told):
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=told):
        pages.renew(page, {"two": "new\n"})
    assert page.read_text(encoding="utf-8") == text
