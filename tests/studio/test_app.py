"""The application: what it serves, and what it does not."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

PAGE = Path(str(files("regard.studio"))) / "page"


def test_the_page_and_everything_it_names_is_served(client):
    page = client.get("/").text
    named = set(re.findall(r'(?:src|href)="(/[^"]+)"', page))
    for script in PAGE.glob("*.js"):
        named |= {f"/page/{name}" for name in re.findall(r'from "\./([\w.]+)"', script.read_text(encoding="utf-8"))}
    assert {"/page/main.js", "/page/studio.css", "/page/draw.js"} <= named
    for path in named:
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert answer.text == (PAGE / path.removeprefix("/page/")).read_text(encoding="utf-8")
    assert client.get("/page/main.js").headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize(
    "path",
    ["/page", "/page/", "/page/../app.py", "/page/%2e%2e/app.py", "/page/..%2fapp.py", "/page//etc/passwd",
     "/etc/passwd", "/api", "/api/", "/docs", "/openapi.json", "/page/index.html", "/.git/config"],
)  # fmt: skip
def test_nothing_else_is_served_and_no_folder_is_listed(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"].startswith("There is nothing at this address.")


@pytest.mark.parametrize(("method", "path"), [("POST", "/"), ("PUT", "/api/models"), ("GET", "/api/translate"),
                                              ("DELETE", "/page/main.js"), ("OPTIONS", "/api/translate")])  # fmt: skip
def test_other_methods_are_refused(client, method, path):
    assert client.request(method, path).status_code == 405


def test_the_page_asks_for_nothing_outside():
    for file in PAGE.iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//\w+\.\w+/|@import|url\(", text), file.name


def test_text_is_never_made_html():
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\(\"on|srcdoc"
    )
    for file in PAGE.glob("*.js"):
        assert not re.search(forbidden, file.read_text(encoding="utf-8")), file.name
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"\son\w+=|\sstyle=|<script(?![^>]*\ssrc=)|<style", page)


def test_files_of_the_page_are_short_and_say_what_they_are():
    for file in PAGE.glob("*.js"):
        lines = file.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= 300, file.name
        assert re.fullmatch(r"// [A-Z].+\.", lines[0]), file.name


def test_every_control_has_a_name():
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    for tag in re.findall(r"<(?:input|select|textarea)\b[^>]*>", page):
        before = page[: page.index(tag)]
        inside = before.rfind("<label") > before.rfind("</label>")
        assert inside or "aria-label" in tag, tag
    for label in re.findall(r"<label\b.*?</label>", page, flags=re.DOTALL):
        # An output before the input would take the label for its own.
        assert "<output" not in label or re.search(
            r'<label[^>]* for="([\w-]+)".*<input[^>]* id="\1"', label, re.DOTALL
        ), label
    assert page.count("<h1") == page.count('<section id="room-') == 3
