"""The guard: hostile requests are turned away with a sentence, and every answer carries its armour."""

import asyncio
import json

import pytest
from starlette.requests import Request
from tests.studio.conftest import ORIGIN, PORT, TestClient

from regard.studio.app import build
from regard.studio.guard import Guard
from regard.studio.limits import MOST_BYTES

FIT = {"x": [0, 1], "y": [0, 1], "kernel": "gaussian", "bandwidth": 1, "low": 0, "high": 1, "query": 0.5}


@pytest.fixture
def nameless(shelf):
    """A client that sends no Origin, as a browser's address bar and other programs do."""
    with TestClient(build(shelf, PORT), base_url=ORIGIN) as made:
        yield made


@pytest.mark.parametrize(
    "host",
    ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", f"127.0.0.1.evil.example:{PORT}", "", "[::1]"],
)
@pytest.mark.parametrize("path", ["/", "/page/main.js", "/api/models", "/nowhere"])
@pytest.mark.parametrize("origin", ["none", "its own"])
def test_a_foreign_host_is_refused_everywhere(nameless, host, path, origin):
    headers = {"host": host} | ({"origin": f"http://{host}"} if origin == "its own" else {})
    answer = nameless.get(path, headers=headers)
    assert answer.status_code == 403
    assert answer.json()["error"].startswith("This host is not the studio's.")


@pytest.mark.parametrize("path", ["/api/regression/fit", "/api/translate", "/api/models/begin"])
@pytest.mark.parametrize("site", [None, "same-origin"])
def test_a_name_that_was_rebound_to_this_machine_can_send_nothing(nameless, path, site):
    """DNS rebinding: for the browser the foreign page and the studio are one origin."""
    host = f"evil.example:{PORT}"
    headers = {"host": host, "origin": f"http://{host}"} | ({"sec-fetch-site": site} if site else {})
    answer = nameless.post(path, json=FIT, headers=headers)
    assert answer.status_code == 403
    assert answer.json()["error"].startswith("This host is not the studio's.")


@pytest.mark.parametrize("host", [f"127.0.0.1:{PORT}", f"localhost:{PORT}"])
def test_both_names_of_this_machine_are_ours(client, host):
    assert client.get("/", headers={"host": host, "origin": f"http://{host}"}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", f"https://127.0.0.1:{PORT}", "http://127.0.0.1:1", f"http://localhost:{PORT}"],
)
@pytest.mark.parametrize("method", ["get", "post"])
def test_another_origin_is_refused(client, origin, method):
    answer = client.request(method, "/api/regression/fit", headers={"origin": origin})
    assert answer.status_code == 403
    assert "Another page asked" in answer.json()["error"]


def test_what_sends_something_must_name_its_origin(nameless):
    assert nameless.get("/").status_code == 200
    assert nameless.post("/api/regression/fit", json=FIT).status_code == 403


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_the_browser_tells_who_asks(client, site, status):
    assert client.get("/api/models", headers={"sec-fetch-site": site}).status_code == status


@pytest.mark.parametrize("path", ["/", "/page/studio.css", "/api/regression", "/nowhere", "/page/"])
def test_every_answer_has_the_headers(client, path):
    check_headers(client.get(path).headers)


def test_refusals_have_the_headers_too(client):
    check_headers(client.get("/", headers={"host": "evil"}).headers)
    check_headers(client.post("/api/regression/fit", json={}).headers)


def check_headers(headers):
    """What SECURITY.md promises of every answer, spelled out."""
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' blob:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers


def test_a_body_that_says_it_is_too_long(client):
    answer = client.post("/api/regression/table", content=b"x" * (MOST_BYTES + 1))
    assert answer.status_code == 413
    assert "1 MiB" in answer.json()["error"]


def test_a_body_that_does_not_say_how_long_it_is(client):
    def endless():
        for _ in range(MOST_BYTES // 2**15 + 2):
            yield b"x" * 2**15

    answer = client.post("/api/regression/table", content=endless(), headers={"content-type": "application/json"})
    assert answer.status_code == 413


@pytest.mark.parametrize("length", ["abc", "-5", "1e3", "5, 6"])
def test_a_length_that_is_no_number(length):
    status, said = call(Guard(_ok, PORT), headers=[("content-length", length)])
    assert status == 400
    assert "no number" in said["error"]


@pytest.mark.parametrize("name", ["host", "origin", "content-length"])
def test_a_header_that_comes_twice(name):
    value = {"host": f"127.0.0.1:{PORT}", "origin": ORIGIN, "content-length": "0"}[name]
    status, said = call(Guard(_ok, PORT), headers=[(name, value), (name, value)])
    assert status == 400
    assert name in said["error"]


def test_a_body_that_does_not_come_is_not_waited_for():
    async def reader(scope, receive, send):
        while (await receive()).get("more_body"):
            pass

    async def never():
        await asyncio.sleep(60)

    status, said = call(Guard(reader, PORT, seconds=0.05), receive=never)
    assert status == 503
    assert "longer than 0.05 seconds" in said["error"]


def test_who_hangs_up_in_the_middle_is_not_answered():
    async def reader(scope, receive, send):
        await Request(scope, receive).body()

    async def gone():
        return {"type": "http.disconnect"}

    sent = []

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/", "query_string": b"",
        "headers": [(b"host", f"127.0.0.1:{PORT}".encode()), (b"origin", ORIGIN.encode())],
    }  # fmt: skip
    asyncio.run(Guard(reader, PORT)(scope, gone, send))
    assert sent == []


def test_an_answer_that_takes_too_long_is_cut_off():
    async def slow(scope, receive, send):
        await asyncio.sleep(60)

    assert call(Guard(slow, PORT, seconds=0.05))[0] == 503


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_what_a_form_of_another_page_could_send_is_not_read(client, kind):
    answer = client.post("/api/regression/fit", content=json.dumps(FIT), headers={"content-type": kind})
    assert answer.status_code == 415


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"bandwidth": NaN}', b'{"x": [Infinity]}'])
def test_what_is_not_json(client, body):
    answer = client.post("/api/regression/fit", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"] == "The request is not JSON. Reload the page."


@pytest.mark.parametrize("body", ["3", "null", "[]", '"text"', "9" * 5000])
def test_json_that_is_no_object(client, body):
    answer = client.post("/api/regression/fit", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)
    assert "Reload the page" in answer.json()["error"]


async def _ok(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


async def _empty():
    return {"type": "http.request", "body": b"", "more_body": False}


def call(app, headers=(), receive=_empty):
    """One request by hand: headers that no client would send, bodies that never come."""
    names = {name for name, _ in headers}
    usual = [("host", f"127.0.0.1:{PORT}"), ("origin", ORIGIN)]
    given = [*headers, *((name, value) for name, value in usual if name not in names)]
    scope = {
        "type": "http", "method": "POST", "path": "/", "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given],
    }  # fmt: skip
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:]))
