"""From a JSON request to a JSON answer: what the user got wrong is a sentence, and so is what we got wrong."""

import json
import logging
from collections.abc import Callable
from typing import Any, NoReturn

import anyio
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response

from regard.errors import RegardError
from regard.studio.asked import Asked
from regard.studio.guard import RefusedError
from regard.studio.limits import AT_ONCE, MAX_PENDING

Answer = Callable[[Asked], dict[str, Any]]

LOG = logging.getLogger("regard.studio")


class Replies:
    """Runs what computes in a few threads, so that the page is served while it does."""

    def __init__(self) -> None:
        self._threads: anyio.CapacityLimiter | None = None
        self._pending = 0

    def to(self, answer: Answer) -> Callable[[Request], Any]:
        """The endpoint of a function from what was asked to what is answered."""

        async def endpoint(request: Request) -> Response:
            asked = _parsed(request, await request.body())
            return await self._answered(lambda: answer(Asked(asked)))

        return endpoint

    def about(self, answer: Callable[[], dict[str, Any]]) -> Callable[[Request], Any]:
        """The endpoint of a function that is asked for nothing in particular."""

        async def endpoint(request: Request) -> Response:
            del request
            return await self._answered(answer)

        return endpoint

    async def _answered(self, answer: Callable[[], dict[str, Any]]) -> Response:
        if self._threads is None:  # it belongs to the loop that serves
            self._threads = anyio.CapacityLimiter(AT_ONCE)
        if self._pending >= MAX_PENDING:
            raise RefusedError(503, f"The studio has {self._pending} other requests to answer. Try again in a moment.")
        self._pending += 1
        try:
            # Abandoned when the time is over: the thread ends by itself, since what it may be asked for is limited.
            found = await run_sync(answer, limiter=self._threads, abandon_on_cancel=True)
        except RegardError as refusal:
            return as_json({"error": str(refusal)}, 422)
        except Exception as failure:
            LOG.exception("an answer failed")
            sentence = f"The studio failed on this ({type(failure).__name__}); the terminal shows where. "
            return as_json({"error": sentence + "Please report it, and try another input."}, 500)
        finally:
            self._pending -= 1
        return as_json(found)


def as_json(content: dict[str, Any], status: int = 200) -> Response:
    """JSON proper: a number that is not finite would be a mistake of ours, and is refused here."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text, status, media_type="application/json")


def _parsed(request: Request, body: bytes) -> object:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusedError(415, "The studio reads JSON only. Use its own page.")
    try:
        return json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise RefusedError(400, "The request is not JSON. Reload the page.") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)  # NaN and Infinity are not JSON
