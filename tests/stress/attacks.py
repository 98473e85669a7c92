"""Hostile requests to the studio, each with the statuses that may answer it (0: the connection was closed)."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tests.stress.readers import ASKED, FIT

LONGEST = 60.0  # seconds that an answer may take: the studio's own limit is half of it
FIT_PATH = "/api/regression/fit"


class Answer(NamedTuple):
    """A status, or 0 where the connection was closed without one; and what came with it."""

    status: int
    body: bytes

    @property
    def sentence(self) -> str:
        """What it says of the refusal: the page's JSON, or the server's own words."""
        try:
            return json.loads(self.body)["error"]
        except (ValueError, KeyError, TypeError):
            words = self.body.decode(errors="replace").strip()
            return words if " " in words else ""


class Attack(NamedTuple):
    """name: what is tried. make: does it. expected: the statuses that are right. is_slow: takes the studio's time."""

    name: str
    make: Callable[[int, random.Random], Awaitable[Answer]]
    expected: tuple[int, ...]
    is_slow: bool = False


def request(
    method: str, path: str, port: int, body: bytes = b"", *, replace: dict[str, str] | None = None, more: str = ""
) -> bytes:
    """An HTTP request as the page sends it; `replace` changes headers, or removes them by an empty value."""
    host = f"127.0.0.1:{port}"
    headers = {
        "Host": host,
        "Origin": f"http://{host}",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
    } | (replace or {})
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value)
    return f"{method} {path} HTTP/1.1\r\n{lines}{more}\r\n".encode("latin-1") + body


async def ask(port: int, *content: bytes, pause: float = 0.0, hang_up: bool = False) -> Answer:
    """Send the parts of a request, with a pause after each, and read the answer to its end."""
    try:
        async with asyncio.timeout(LONGEST):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                for part in content:
                    writer.write(part)
                    await writer.drain()
                    if pause:
                        await asyncio.sleep(pause)
                        if reader.at_eof() or reader._buffer:  # type: ignore[attr-defined]
                            break  # it has answered, and wants no more
                if hang_up:
                    return Answer(0, b"")
                return _parsed(await reader.read())
            finally:
                writer.close()
    except TimeoutError:  # before OSError, of which it is one
        return Answer(-1, b"no answer in time")
    except OSError:
        return Answer(0, b"")


def _parsed(content: bytes) -> Answer:
    head, _, body = content.partition(b"\r\n\r\n")
    status = int(head.split()[1]) if head.startswith(b"HTTP/1.1 ") else 0
    return Answer(status, body)


def _plain(method: str, path: str, body: bytes = b"", **changes) -> Callable[[int, random.Random], Awaitable[Answer]]:
    async def make(port: int, draw: random.Random) -> Answer:
        del draw
        return await ask(port, request(method, path, port, body, **changes))

    return make


def _fit(**changes: object) -> bytes:
    return json.dumps(FIT | changes).encode()


async def _endless(port: int, draw: random.Random) -> Answer:
    """A body in chunks, without an end."""
    del draw
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    head = request("POST", FIT_PATH, port, replace={"Content-Length": "", "Transfer-Encoding": "chunked"})
    return await ask(port, head, *[chunk] * 64, pause=0.001)


async def _slow(port: int, draw: random.Random) -> Answer:
    """A body that comes a byte at a time and never ends."""
    head = request("POST", FIT_PATH, port, replace={"Content-Length": "1000"})
    return await ask(port, head, *[b" "] * 999, pause=draw.uniform(0.3, 1.0))


async def _hung_up(port: int, draw: random.Random) -> Answer:
    """Half of a request, and the connection is closed; whoever comes next is answered."""
    content = request("POST", FIT_PATH, port, _fit())
    await ask(port, content[: draw.randint(1, len(content) - 1)], hang_up=True)
    return await ask(port, content)


async def _noise(port: int, draw: random.Random) -> Answer:
    """No HTTP at all."""
    return await ask(port, draw.randbytes(draw.randint(1, 400)).replace(b"\n", b"") + b"\r\n\r\n")


async def _any_json(port: int, draw: random.Random) -> Answer:
    """A value of the wrong kind in any place of any question."""
    path, asked = draw.choice(list(ASKED.items()))
    wrong = draw.choice((None, [], {}, "x" * 700, [[]], -(10**30), True, "\x00", {"x": 1}, [None]))
    body = json.dumps(asked | {draw.choice(list(asked)): wrong}).encode()
    return await ask(port, request("POST", path, port, body))


ATTACKS = (
    Attack("another host", _plain("POST", FIT_PATH, _fit(), replace={"Host": "evil.example"}), (403,)),
    Attack("no host", _plain("POST", FIT_PATH, _fit(), replace={"Host": ""}), (400, 403)),
    Attack("another origin", _plain("POST", FIT_PATH, _fit(), replace={"Origin": "http://evil.example"}), (403,)),
    Attack("no origin", _plain("POST", FIT_PATH, _fit(), replace={"Origin": ""}), (403,)),
    Attack("another site", _plain("GET", "/api/models", more="Sec-Fetch-Site: cross-site\r\n"), (403,)),
    Attack("two hosts", _plain("POST", FIT_PATH, _fit(), more="Host: localhost\r\n"), (400,)),
    Attack("two origins", _plain("POST", FIT_PATH, _fit(), more="Origin: http://localhost\r\n"), (400,)),
    Attack("a huge length", _plain("POST", FIT_PATH, replace={"Content-Length": "99999999999"}), (413,)),
    Attack("no length", _plain("POST", FIT_PATH, replace={"Content-Length": "many"}), (400,)),
    Attack("a huge body", _plain("POST", FIT_PATH, b"[" + b"1," * 2**20 + b"1]"), (413, 0)),
    Attack("another method", _plain("DELETE", FIT_PATH), (405,)),
    Attack("get where post is meant", _plain("GET", FIT_PATH), (405,)),
    Attack("a path upwards", _plain("GET", "/../../../../etc/passwd"), (404,)),
    Attack("a path upwards, quoted", _plain("GET", "/%2e%2e/%2e%2e/etc/passwd"), (404,)),
    Attack("a path upwards, in a file", _plain("GET", "/static/..%2f..%2fserver.py"), (404,)),
    Attack("a model by its path", _plain("POST", "/api/translate", b'{"text":"a","model":"/etc/passwd"}'), (422,)),
    Attack("broken json", _plain("POST", FIT_PATH, _fit()[:-3]), (400,)),
    Attack("deep json", _plain("POST", FIT_PATH, b"[" * 200_000), (400,)),
    Attack("broken utf-8", _plain("POST", FIT_PATH, b'{"x": "\xff\xfe\xc3"}'), (400,)),
    Attack("half a character", _plain("POST", "/api/translate", b'{"text":"\\ud800","model":"given"}'), (422,)),
    Attack("not a number", _plain("POST", FIT_PATH, _fit(bandwidth=float("nan"))), (400,)),
    Attack("infinity", _plain("POST", FIT_PATH, b'{"x":[1e999],"y":[1]}'), (422,)),
    Attack("a huge number", _plain("POST", FIT_PATH, b'{"x":[' + b"9" * 5000 + b'],"y":[1]}'), (400, 422)),
    Attack("too many points", _plain("POST", FIT_PATH, _fit(x=[0] * 6000, y=[0] * 6000)), (422,)),
    Attack("no json at all", _plain("POST", FIT_PATH, b"a=1", replace={"Content-Type": "text/plain"}), (415,)),
    Attack("a value of another kind", _any_json, (422, 200)),
    Attack("a socket instead", _plain("GET", "/api/models/ws", replace={"Connection": "Upgrade"}, more=(
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    )), (404, 400, 403)),
    Attack("a huge header", _plain("GET", "/", replace={"Cookie": "x" * 200_000}), (400, 431, 0)),
    Attack("noise", _noise, (400, 0)),
    Attack("hung up", _hung_up, (200,)),
    Attack("an endless body", _endless, (413, 0)),
    Attack("a slow body", _slow, (503,), is_slow=True),
)  # fmt: skip
