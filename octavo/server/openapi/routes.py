"""GET /openapi.json and GET /docs. They answer while the model loads."""

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from octavo.server.errors import JSON
from octavo.server.openapi.document import Schema, openapi_document
from octavo.server.openapi.page import docs_page
from octavo.server.state import ServerState

# the page has no scripts, and nothing of another origin
_PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def routes(state: ServerState) -> list[Route]:
    """The routes of this file. Both texts are made once."""
    made: dict[str, bytes] = {}

    async def openapi(request: Request) -> Response:
        if "json" not in made:
            made["json"] = msgspec.json.encode(await asyncio.to_thread(_document, state))
        return Response(made["json"], media_type=JSON)

    async def docs(request: Request) -> Response:
        if "page" not in made:
            made["page"] = (await asyncio.to_thread(
                lambda: docs_page(_document(state)))).encode()
        return HTMLResponse(made["page"], headers={"content-security-policy": _PAGE_POLICY})

    return [Route("/openapi.json", openapi, methods=["GET"]),
            Route("/docs", docs, methods=["GET"])]


def _document(state: ServerState) -> Schema:
    return openapi_document(
        names=state.names, vocab_size=state.llm.tokenizer.vocab_size,
        max_model_len=state.max_model_len, root_path=state.section.root_path,
        has_keys=bool(state.section.api_keys))
