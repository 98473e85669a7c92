"""Connections of clients that are silent, slow, too many or no HTTP clients, over real sockets."""

import http.client
import json
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    """The port of a studio that runs as a user starts it."""
    cache = tmp_path_factory.mktemp("cache")
    command = [sys.executable, "-m", "regard", "studio", "--no-browser", "--cache", str(cache)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as studio:
        try:
            yield int(re.search(r"http://127\.0\.0\.1:(\d+)/", studio.stdout.readline())[1])
        finally:
            studio.terminate()


def get(port, path="/"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def half_header(port):
    return f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-Slow: ".encode()


def half_body(port):
    lines = (
        "POST /api/regression/fit HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        f"Origin: http://127.0.0.1:{port}",
        "Content-Type: application/json",
        "Content-Length: 1000",
    )
    return ("\r\n".join(lines) + '\r\n\r\n{"x": ').encode()


def silence(port):
    del port
    return b""


@pytest.mark.parametrize(
    ("count", "begin"), [(64, silence), (300, silence), (100, half_header), (300, half_header), (64, half_body)]
)
def test_clients_that_do_not_finish_a_request_keep_nobody_out(port, count, begin):
    with ExitStack() as opened:
        for _ in range(count):
            client = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            with suppress(ConnectionError):  # the oldest may have been closed already
                client.sendall(begin(port))
        started = time.monotonic()
        for _ in range(3):
            assert get(port)[0] == 200
        assert time.monotonic() - started < 5


def test_the_oldest_unfinished_connections_are_closed_first(port):
    with ExitStack() as opened:
        clients = [opened.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(100)]
        time.sleep(1)
        assert [is_closed(client) for client in clients] == [True] * 36 + [False] * 64


def test_a_request_that_does_not_become_complete_is_cut_off(port):
    """Silence, a header and a body that come one byte at a time, and a connection that is idle after its answer."""
    with ExitStack() as opened:
        clients = {}
        for begin in (silence, half_header, half_body):
            clients[begin] = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
            clients[begin].sendall(begin(port))
        idle = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
        idle.sendall(f"GET /page/icon.svg HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        assert idle.recv(2**16).startswith(b"HTTP/1.1 200 ")
        started = time.monotonic()
        ended = {}
        while time.monotonic() - started < 20 and len(ended) < 4:
            time.sleep(0.5)
            for begin in (half_header, half_body):
                with suppress(OSError):
                    clients[begin].sendall(b"1")
            for name, client in {**clients, "idle": idle}.items():
                if is_closed(client):
                    ended.setdefault(name, time.monotonic() - started)
        assert ended.keys() == {*clients, "idle"}
        assert 8 < min(ended.values()) <= max(ended.values()) < 14
    assert get(port)[0] == 200


def test_of_many_requests_at_once_each_is_answered_in_json_with_all_headers(port):
    with ThreadPoolExecutor(200) as threads:
        answers = list(threads.map(lambda _: get(port, "/api/regression"), range(200)))
    statuses = {status for status, _, _ in answers}
    assert {200} <= statuses <= {200, 503}
    for status, headers, body in answers:
        assert HEADERS.items() <= headers.items()
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert status == 200 or "Try again in a moment." in json.loads(body)["error"]


@pytest.mark.parametrize("text", [b"NONSENSE\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\r\n\r\n"])
def test_what_is_not_http_is_refused_by_a_sentence_with_all_headers(port, text):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(text)
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert answer.status == 400
        assert HEADERS.items() <= dict(answer.getheaders()).items()
        assert json.loads(answer.read())["error"].startswith("This is not an HTTP request.")


def is_closed(client):
    """Whether the server has closed this connection."""
    client.setblocking(False)
    try:
        return client.recv(2**16) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        client.setblocking(True)
