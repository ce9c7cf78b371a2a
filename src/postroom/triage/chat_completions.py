"""The short way to a model that speaks OpenAI's chat completions, past most of what its library does for each call.

The library says what a request holds and what an answer means. The first request with a set of tools is its own, and
becomes a form that is filled in for the questions after it. A plain answer is read here; any other reply, and every
failure, is given to the library as it came, in place of sending, so that all of them mean what they always meant.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import httpx2
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_ai.messages import FinishReason, ModelResponse, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.usage import RequestUsage

from postroom.triage.questions import ModelQuestion

_MOST_FORMS = 100
_LATEST_CREATED = 10**11
_FINISHED: dict[str, FinishReason] = {"stop": "stop", "tool_calls": "tool_call", "length": "length"}


@dataclass(slots=True)
class _Exchange:
    """A request that the library wants to send, and what it gets for it if that is here already."""

    reply: httpx2.Response | Exception | None = None
    request: httpx2.Request | None = None


_exchange: ContextVar[_Exchange | None] = ContextVar("_exchange", default=None)


class ModelHttp(httpx2.AsyncClient):
    """What the library sends with."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        exchange = _exchange.get()
        if exchange is None:
            return await super().send(request, **options)
        exchange.request = request
        match exchange.reply:
            case None:
                return await super().send(request, **options)
            case httpx2.Response() as reply:
                return reply
            case failure:
                raise failure


@dataclass(frozen=True, slots=True)
class _Form:
    """A request of the library, with room for what is said."""

    url: httpx2.URL
    headers: list[tuple[bytes, bytes]]
    extensions: dict[str, Any]
    """The time limits."""
    roles: tuple[str, str]
    rest: str
    """The body without its messages, from its first name on."""

    def filled_in(self, question: ModelQuestion, cookies: httpx2.Cookies) -> httpx2.Request:
        said = zip(self.roles, _said(question), strict=True)
        messages = ",".join(f'{{"role":{role},"content":{_json(text)}}}' for role, text in said)
        body = f'{{"messages":[{messages}],{self.rest}'.encode()
        return httpx2.Request(
            "POST", self.url, headers=self.headers, content=body, extensions=self.extensions, cookies=cookies or None
        )


def _form(request: httpx2.Request, question: ModelQuestion) -> _Form | None:
    """None if the request does not hold what is said word for word, in two messages and nothing else in them."""
    body = json.loads(request.content)
    messages = body.pop("messages")
    roles = [_json(message.pop("role", None)) for message in messages]
    if messages != [{"content": text} for text in _said(question)] or not body:
        return None
    own = (b"content-length", b"cookie")
    headers = [(name, value) for name, value in request.headers.raw if name.lower() not in own]
    return _Form(request.url, headers, dict(request.extensions), (roles[0], roles[1]), _json(body)[1:])


def _said(question: ModelQuestion) -> tuple[str, str]:
    return question.instructions, question.content


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class ChatCompletions:
    def __init__(self, model: Model[Any], http: ModelHttp) -> None:
        self._model = model
        self._http = http
        self._forms: dict[tuple[str, ...], _Form | None] = {}

    async def ask(self, question: ModelQuestion, library: Callable[[], Awaitable[ModelResponse]]) -> ModelResponse:
        """`library` asks the same through the library."""
        if not all(_said(question)):  # what is empty, the library may leave out
            return await library()
        tools = tuple(tool.as_json for tool in question.tools)
        form = self._forms.get(tools)
        if form is None:
            return await self._by_library(question, tools, library)
        request = form.filled_in(question, self._http.cookies)
        try:
            reply: httpx2.Response | Exception = await self._http.send(request)
        except Exception as error:
            reply = error
        plain = None if isinstance(reply, Exception) else self._plain(reply)
        return plain or await _given(_Exchange(reply), library)

    async def _by_library(
        self, question: ModelQuestion, tools: tuple[str, ...], library: Callable[[], Awaitable[ModelResponse]]
    ) -> ModelResponse:
        exchange = _Exchange()
        try:
            return await _given(exchange, library)
        finally:
            if exchange.request is not None and tools not in self._forms:
                if len(self._forms) == _MOST_FORMS:
                    del self._forms[next(iter(self._forms))]
                self._forms[tools] = _form(exchange.request, question)

    def _plain(self, reply: httpx2.Response) -> ModelResponse | None:
        kind = reply.headers.get("content-type", "").partition(";")[0]
        if reply.status_code != httpx2.codes.OK or kind != "application/json":
            return None
        try:
            completion = _Completion.model_validate_json(reply.content)
        except ValidationError:
            return None
        [choice] = completion.choices
        return ModelResponse(
            parts=[ToolCallPart(call.function.name, call.function.arguments) for call in choice.message.tool_calls],
            usage=self._used(completion.usage),
            model_name=completion.model,
            provider_response_id=completion.id or None,
            finish_reason=_FINISHED[choice.finish_reason],
        )

    def _used(self, usage: _Usage) -> RequestUsage:
        """As the library counts."""
        data = {"model": self._model.model_name, "usage": usage.model_dump(exclude_none=True)}
        used = RequestUsage.extract(
            data,
            provider=self._model.system,
            provider_url=self._model.base_url or "",
            provider_fallback="openai",
            api_flavor="chat",
        )
        details = usage.prompt_tokens_details
        if details is not None and details.cache_write_tokens is not None:
            used.cache_write_tokens = details.cache_write_tokens
        return used


async def _given(exchange: _Exchange, library: Callable[[], Awaitable[ModelResponse]]) -> ModelResponse:
    token = _exchange.set(exchange)
    try:
        return await library()
    finally:
        _exchange.reset(token)


class _Part(BaseModel):
    """Of a plain answer: everything that can change what it means is as named here, or not there."""

    model_config = ConfigDict(strict=True, frozen=True)


class _Function(_Part):
    name: str
    arguments: str


class _Call(_Part):
    id: str
    type: Literal["function"]
    function: _Function


class _Message(_Part):
    role: Literal["assistant"]
    content: Literal[""] | None = None
    refusal: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None
    tool_calls: Annotated[list[_Call], Field(min_length=1)]


class _Choice(_Part):
    index: int
    finish_reason: Literal["stop", "tool_calls", "length"]
    logprobs: None = None
    message: _Message


class _Details(_Part):
    model_config = ConfigDict(strict=True, frozen=True, extra="allow")
    __pydantic_extra__: dict[str, int | None]

    cache_write_tokens: int | None = None


class _Usage(_Part):
    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Completion(_Part):
    id: str
    object: Literal["chat.completion"]
    created: Annotated[int, Field(ge=0, le=_LATEST_CREATED)]
    model: str
    choices: Annotated[list[_Choice], Field(min_length=1, max_length=1)]
    usage: _Usage
    service_tier: str | None = None
    system_fingerprint: str | None = None
    metadata: None = None
    moderation: None = None
