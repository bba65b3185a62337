"""GET / and /page/{name}: the page in the browser, from files read once at start.

Serves these files and nothing else: no path of a request ever reaches the file system. Holds no
state and no secret, so it needs no API key; the page asks for one and sends it with its calls.
"""

import dataclasses
import functools
import hashlib
import importlib.resources
import re

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.server.ollama.routes import greeting
from octavo.server.state import ServerState

# Only files of this server, no inline script or style, nowhere to send a form, and in no frame.
# Trusted types: a script that would parse a text as HTML fails instead.
_POLICY = ("default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
           "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'")
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    # kept, but asked for again each time: a new version of the server shows its own page
    "cache-control": "no-cache",
}
_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_NAME = re.compile(r"[a-z0-9-]+\.(html|css|js|svg)")
_INDEX = "index.html"


@dataclasses.dataclass(slots=True, frozen=True)
class PageFile:
    """One file, ready to send. etag: of its bytes, quoted."""

    media_type: str
    data: bytes
    etag: str


@functools.cache
def page_files() -> dict[str, PageFile]:
    """Every file of the page by name."""
    found = {}
    for item in importlib.resources.files("octavo.server.page").joinpath("static").iterdir():
        match = _NAME.fullmatch(item.name)
        if match is not None:
            data = item.read_bytes()
            digest = hashlib.blake2b(data, digest_size=12).hexdigest()
            found[item.name] = PageFile(_MEDIA_TYPES[match[1]], data, f'"{digest}"')
    return found


def routes(state: ServerState) -> list[Route]:
    """The routes of this file. They answer while the model loads."""
    files = page_files() if state.section.serve_page else {}

    async def root(request: Request) -> Response:
        """A browser gets the page. Ollama's clients look here for a server of their kind."""
        answer = _answer(files[_INDEX], request) if files and _wants_html(request) else greeting()
        answer.headers["vary"] = "accept"
        return answer

    async def file(request: Request) -> Response:
        found = files.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        return _answer(found, request)

    return [Route("/", root, methods=["GET"]),  # HEAD too
            Route("/page/{name}", file, methods=["GET"])]


def _wants_html(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "").lower()


def _answer(file: PageFile, request: Request) -> Response:
    headers = _HEADERS | {"etag": file.etag}
    known = request.headers.get("if-none-match", "")
    # proxies that compress mark the tag as weak
    if file.etag in [tag.strip().removeprefix("W/") for tag in known.split(",")]:
        return Response(None, 304, headers)
    return Response(file.data, 200, headers, file.media_type)
