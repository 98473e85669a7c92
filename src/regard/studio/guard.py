"""The gate before every request: who asks (Host, Origin), how much comes in, how long it may take.

A page on this machine can be reached by every page that the browser has open. The Host must be this server's own, so
that a foreign name that was made to point here is refused; what another site's page asks for is refused by its Origin
or by what the browser says of the asker (Sec-Fetch-Site). Every answer forbids scripts, styles and connections of
other origins, frames, and text as HTML (trusted types).
"""

import asyncio
from collections.abc import Iterable

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.studio.limits import MOST_BYTES, SECONDS

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
OURSELVES = {"same-origin", "none"}  # of Sec-Fetch-Site: our own page, or the address bar


class RefusedError(Exception):
    """A request that is turned away: an HTTP status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


class Guard:
    """Lets through what the studio's own page asks, within its limits.

    port: that the studio listens on; it is part of the Host and of the Origin.
    """

    def __init__(self, app: ASGIApp, port: int, *, most_bytes: int = MOST_BYTES, seconds: float = SECONDS) -> None:
        self.app, self.most_bytes, self.seconds = app, most_bytes, seconds
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        if port == 80:
            self.hosts |= {"127.0.0.1", "localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, then serve within the time."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # nothing here speaks WebSocket: uvicorn closes it
        answer = _Answer(send)
        try:
            self._check(scope)
            async with asyncio.timeout(self.seconds):
                await self.app(scope, self._counted(receive), answer)
        except RefusedError as refusal:
            await answer.refuse(scope, receive, refusal)
        except ClientDisconnect:
            pass  # whoever asked has hung up in the middle of it: nobody is left to be answered
        except TimeoutError:
            sentence = f"It took longer than {self.seconds:g} seconds. Ask for less: fewer points, or a shorter text."
            await answer.refuse(scope, receive, RefusedError(503, sentence))

    def _check(self, scope: Scope) -> None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        host = _only(headers, b"host")
        if host not in self.hosts:
            raise RefusedError(403, "This host is not the studio's. Open the address that the terminal shows.")
        origin, site = _only(headers, b"origin"), _only(headers, b"sec-fetch-site")
        if origin is None and scope["method"] not in ("GET", "HEAD"):
            raise RefusedError(403, "A request that sends something must name its origin. Use the studio's own page.")
        if (origin is not None and origin != f"http://{host}") or (site is not None and site not in OURSELVES):
            raise RefusedError(403, "Another page asked for this. Open the address that the terminal shows in a tab.")
        length = _only(headers, b"content-length")
        if length is not None and not (length.isascii() and length.isdigit()):
            raise RefusedError(400, "The length of the request is no number.")
        if length is not None and int(length) > self.most_bytes:
            raise self._too_much()

    def _counted(self, receive: Receive) -> Receive:
        """Receive, with the bytes of a body counted as they come, whatever its header says."""
        come = 0

        async def counted() -> Message:
            nonlocal come
            message = await receive()
            come += len(message.get("body", b""))
            if come > self.most_bytes:
                raise self._too_much()
            return message

        return counted

    def _too_much(self) -> RefusedError:
        return RefusedError(
            413,
            f"That is more than {self.most_bytes / 2**20:.3g} MiB, the most the studio takes at once. "
            "Take a sample; `regard regress` reads larger files.",
        )


class _Answer:
    """Sends an answer with our headers; one that has begun cannot be replaced by a refusal."""

    def __init__(self, send: Send) -> None:
        self.send, self.begun = send, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            ours = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", []), *ours]}
        await self.send(message)

    async def refuse(self, scope: Scope, receive: Receive, refusal: RefusedError) -> None:
        if not self.begun:
            # Without reading on: the rest of a body that is too long is not wanted.
            response = JSONResponse({"error": refusal.sentence}, refusal.status, headers={"connection": "close"})
            await response(scope, receive, self)


def _only(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The value of a header; one that comes twice is refused, since two readers might take different ones."""
    found = [value for key, value in headers if key == name]
    if len(found) > 1:
        raise RefusedError(400, f"The header {name.decode()} came {len(found)} times.")
    return found[0].decode("latin-1") if found else None
