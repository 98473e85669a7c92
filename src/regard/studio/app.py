"""The studio's application: its page, its answers, and the guard before both."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from regard.studio import page_files, regression, scores, table
from regard.studio.guard import Guard, RefusedError
from regard.studio.models.shelf import Shelf
from regard.studio.replies import Replies, as_json
from regard.studio.translation import TranslationRoom


def build(shelf: Shelf, port: int) -> Guard:
    """The application over a shelf of models, for the port it will be reached at."""
    replies, room = Replies(), TranslationRoom(shelf)

    def answers(path: str, answer) -> Route:
        return Route(path, replies.to(answer), methods=["POST"])

    def offers(path: str, answer) -> Route:
        return Route(path, replies.about(answer), methods=["GET"])

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        del app
        yield
        shelf.stop()

    routes = [
        *page_files.routes(),
        offers("/api/regression", regression.offer),
        answers("/api/regression/fit", regression.fit),
        answers("/api/regression/table", table.points),
        offers("/api/models", room.models),
        answers("/api/models/begin", room.begin),
        answers("/api/models/looks", room.looks),
        answers("/api/translate", room.translate),
        offers("/api/scores", scores.offer),
        answers("/api/scores/attend", scores.attend_all),
    ]
    refusals = {RefusedError: _refused, HTTPException: _not_found}
    return Guard(Starlette(routes=routes, exception_handlers=refusals, lifespan=lifespan), port)


async def _refused(request: Request, refusal: Exception) -> Response:
    del request
    assert isinstance(refusal, RefusedError)
    return as_json({"error": refusal.sentence}, refusal.status)


async def _not_found(request: Request, refusal: Exception) -> Response:
    del request
    assert isinstance(refusal, HTTPException)
    sentence = "There is nothing at this address. Open the one that the terminal shows, and use the page's own links."
    return as_json({"error": sentence}, refusal.status_code)
