"""Attempts to reach beyond this machine, and to stay within it, by sockets and by asyncio: what becomes of them.

Run as a program, `python -m tests.promises.outsiders sealed|open`, it prints JSON, {name: what was recorded}.
"""

import asyncio
import json
import socket
import sys
from collections.abc import Awaitable, Callable

from tests.promises import seal

PATIENCE = 20  # seconds; who is refused does not wait
FAR = "192.0.2.1"  # of a block that is kept for documentation: nobody has it


def _tcp() -> socket.socket:
    found = socket.socket()
    found.settimeout(1)
    return found


def _udp() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


async def _serve(host: str | None) -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), host, 0)
    server.close()


async def _datagrams(host: str) -> None:
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(asyncio.DatagramProtocol, (host, 0))
    transport.close()


def _run(make: Callable[[], Awaitable[object]]) -> Callable[[], object]:
    async def within_its_time() -> object:
        return await asyncio.wait_for(make(), PATIENCE)

    return lambda: asyncio.run(within_its_time())


OUTSIDE: dict[str, tuple[str, Callable[[], object]]] = {
    "connect": ("socket.connect", lambda: _tcp().connect((FAR, 80))),
    "connect_ex": ("socket.connect", lambda: _tcp().connect_ex((FAR, 80))),
    "connect to every interface": ("socket.connect", lambda: _tcp().connect(("", 80))),
    "bind": ("socket.bind", lambda: _tcp().bind((FAR, 0))),
    "bind to zeros": ("socket.bind", lambda: _tcp().bind(("0.0.0.0", 0))),
    "bind to every interface": ("socket.bind", lambda: _tcp().bind(("", 0))),
    "serve every interface": ("socket.bind", lambda: socket.create_server(("", 0))),
    "create a connection": ("socket.getaddrinfo", lambda: socket.create_connection((FAR, 80), timeout=1)),
    "sendto": ("socket.sendto", lambda: _udp().sendto(b"x", (FAR, 9))),
    "sendmsg": ("socket.sendmsg", lambda: _udp().sendmsg([b"x"], [], 0, (FAR, 9))),
    "a name": ("socket.getaddrinfo", lambda: socket.getaddrinfo("name.invalid", 80)),
    "an old name": ("socket.gethostbyname", lambda: socket.gethostbyname("name.invalid")),
    "asyncio connects": ("socket.connect", _run(lambda: asyncio.open_connection(FAR, 80))),
    "asyncio asks a name": ("socket.getaddrinfo", _run(lambda: asyncio.open_connection("name.invalid", 80))),
    "asyncio binds": ("socket.bind", _run(lambda: _serve("0.0.0.0"))),
    "asyncio serves every interface": ("socket.bind", _run(lambda: _serve(None))),
    "asyncio binds datagrams": ("socket.bind", _run(lambda: _datagrams("0.0.0.0"))),
}
"""What reaches beyond this machine, and the event by which it is caught."""
HARMLESS = ("bind to zeros", "bind to every interface", "asyncio binds", "asyncio serves every interface")
"""Those that succeed on a machine without a network too, while nobody refuses them."""


def stay_by_sockets() -> str:
    """A word through the loopback, to a listener found by its name."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        calling = socket.create_connection(("localhost", listener.getsockname()[1]), timeout=PATIENCE)
        answering, _ = listener.accept()
        with calling, answering:
            calling.sendall(b"word")
            return answering.recv(16).decode()


def stay_by_asyncio() -> str:
    """The same by streams, and back."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    async def call() -> str:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        writer.write(b"word\n")
        answer = await reader.readline()
        writer.close()
        server.close()
        return answer.decode().strip()

    return asyncio.run(asyncio.wait_for(call(), PATIENCE))


def stay_by_datagrams() -> str:
    """A word to a bound socket of this machine."""
    with _udp() as listener, _udp() as calling:
        listener.settimeout(PATIENCE)
        listener.bind(("127.0.0.1", 0))
        calling.sendto(b"word", listener.getsockname())
        return listener.recv(16).decode()


INSIDE = {"sockets": stay_by_sockets, "asyncio": stay_by_asyncio, "datagrams": stay_by_datagrams}


def recorded(attempt: Callable[[], object]) -> str:
    """What the seal recorded of an attempt, "passed" where it went through, and the error where another stopped it."""
    before = len(seal.asked)
    try:
        attempt()
    except OSError as error:
        return " ".join(seal.asked[before:]) or f"{type(error).__name__}: {error}"
    return "passed"


if __name__ == "__main__":
    is_sealed = sys.argv[1] == "sealed"
    if is_sealed:
        seal.close()
    outside = {name: recorded(OUTSIDE[name][1]) for name in (OUTSIDE if is_sealed else HARMLESS)}
    print(json.dumps(outside | {name: stay() for name, stay in INSIDE.items()}))
