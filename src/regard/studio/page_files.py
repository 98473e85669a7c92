"""The files of the page, read once from the package: only what is listed is ever served."""

from importlib.resources import files

from starlette.responses import Response
from starlette.routing import Route

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FIRST = "index.html"


def routes() -> list[Route]:
    """A route for each file, and `/` for the first one; there is no folder to be listed or left."""
    found = {}
    for entry in files("regard.studio").joinpath("page").iterdir():
        ending = entry.name[entry.name.rfind(".") :]
        if ending in KINDS:
            found[entry.name] = Response(entry.read_bytes(), media_type=KINDS[ending])
    paths = {"/": found[FIRST], **{f"/page/{name}": response for name, response in found.items() if name != FIRST}}
    return [Route(path, _serve(response), methods=["GET"]) for path, response in paths.items()]


def _serve(response: Response):
    async def endpoint(request: object) -> Response:
        del request
        return response

    return endpoint
