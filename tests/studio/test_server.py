"""The server: on the loopback address only, and stopped cleanly with what it has begun."""

import asyncio
import contextlib
import http.client
import re
import signal
import socket
import subprocess
import sys

from tests.refuses import refuses

from regard.studio.server import ADDRESS, bind


def test_it_binds_the_loopback_address_and_no_other():
    with bind(0) as listener:
        host, port = listener.getsockname()
        assert host == ADDRESS == "127.0.0.1"
        for other in _other_addresses():
            with socket.socket() as caller:
                caller.settimeout(0.5)
                assert caller.connect_ex((other, port)) != 0


def test_answers_do_not_wait_for_an_acknowledgement():
    """asyncio switches the delay of small packets off on sockets that say they are TCP, and on no others."""

    async def delayed():
        server = await asyncio.start_server(lambda _, writer: seen.append(writer), sock=bind(0))
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection(ADDRESS, port)
        while not seen:
            await asyncio.sleep(0.01)
        found = seen[0].get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        for one in (writer, seen[0]):
            one.close()
            await one.wait_closed()
        server.close()
        return not found

    seen = []
    assert not asyncio.run(delayed())


def test_a_port_that_is_taken_or_is_none():
    with bind(0) as listener, refuses("port", "Address", "already"):
        bind(listener.getsockname()[1])
    with refuses("port", "70000"):
        bind(70000)


def test_the_command_serves_says_where_and_stops(learnt, tmp_path):
    wanted, cache, _ = learnt
    command = [sys.executable, "-m", "regard", "studio", str(cache.kept(wanted)), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as studio:
        try:
            line = studio.stdout.readline()
            port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", line)[1])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request("GET", "/api/models")
            answer = connection.getresponse()
            assert answer.status == 200
            assert b'"state":"ready"' in answer.read()
            connection.request("GET", "/", headers={"Host": "evil.example"})
            assert connection.getresponse().status == 403
            connection.close()
            studio.send_signal(signal.SIGINT)
            assert studio.wait(20) == 0
        finally:
            studio.kill()
        assert "Traceback" not in studio.stderr.read()


def _other_addresses():
    """Addresses of this machine beside the loopback's own."""
    found = {"127.0.0.2"} if sys.platform == "linux" else set()
    with contextlib.suppress(OSError):
        found |= {entry[4][0] for entry in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    return found - {"127.0.0.1"}
