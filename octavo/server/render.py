"""POST /v1/chat/completions/render (vLLM) and POST /apply-template (llama.cpp): the prompt that a
chat completions request would have. Nothing is generated; they answer while the model loads.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.server.body import read_request
from octavo.server.errors import JSON
from octavo.server.messages import chat_prompt
from octavo.server.openai_tools import chat_plan
from octavo.server.params import chat_params
from octavo.server.protocol.requests import ChatRequest
from octavo.server.protocol.responses import AppliedTemplate, RenderedChat
from octavo.server.state import ServerState


def routes(state: ServerState) -> list[Route]:
    """The routes of this file."""

    async def rendered(request: Request) -> RenderedChat:
        asked = await read_request(request, state, ChatRequest)
        model = state.model_name(asked.model)
        plan = chat_plan(asked, state.formats)
        chat_params(asked, state)  # what the request itself would be refused for is refused here
        prompt = await chat_prompt(asked.messages, asked, state, plan)
        ids = prompt["prompt_token_ids"]
        return RenderedChat(request_id=state.response_id("chatcmpl", asked.request_id),
                            model=model, prompt=prompt["prompt"], token_ids=ids, count=len(ids))

    async def render(request: Request) -> Response:
        return Response(msgspec.json.encode(await rendered(request)), media_type=JSON)

    async def apply_template(request: Request) -> Response:
        answer = AppliedTemplate(prompt=(await rendered(request)).prompt)
        return Response(msgspec.json.encode(answer), media_type=JSON)

    return [
        Route("/v1/chat/completions/render", render, methods=["POST"]),
        Route("/apply-template", apply_template, methods=["POST"]),
    ]
