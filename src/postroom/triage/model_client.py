"""A language model: a question, its answer by a call of one of the offered tools, and what that cost.

Every error of the provider becomes one of ours here. The provider's own retries are off: a call that was paid for
must not hide behind another.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx2
from pydantic_ai import exceptions
from pydantic_ai.direct import model_request
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings as RequestSettings
from pydantic_ai.tools import ToolDefinition

from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, Fatal, PostroomError, Retryable
from postroom.domain.model_costs import PROVIDER_ALLOWANCE, Tariff, TokenCounts
from postroom.domain.money import Micros
from postroom.settings import ModelSettings
from postroom.triage.chat_completions import ChatCompletions, ModelHttp
from postroom.triage.questions import CallFailed, ModelAnswer, ModelQuestion, ModelRefused, ToolCall, one_line

_LATE = timedelta(seconds=30)
_NO_CREDIT_PAUSE = timedelta(hours=1)
_SIMULATED = "simulated-"
_LONGEST_NAME = 200
_UNREADABLE = (LookupError, AttributeError, TypeError, ValueError)
"""What the library raises for some answers that are not as documented."""


class ModelClient:
    def __init__(
        self, model: Model[Any], http: ModelHttp, settings: ModelSettings, tariff: Tariff, clock: Clock
    ) -> None:
        self._model = model
        self._short_way = None if settings.provider == "anthropic" else ChatCompletions(model, http)
        self._settings = settings
        self._tariff = tariff
        self._clock = clock

    @property
    def provider(self) -> str:
        return str(self._settings.provider)

    @property
    def name(self) -> str:
        return str(self._settings.name)

    @property
    def answer_limit(self) -> timedelta:
        """How long an answer may take. After it none is waited for, and what the call cost stays uncertain."""
        return timedelta(seconds=self._settings.timeout_s) + _LATE

    def most_for(self, question: ModelQuestion) -> Micros:
        """The most that asking this can cost."""
        return self._tariff.most(question.size + PROVIDER_ALLOWANCE, self._settings.max_output_tokens)

    async def ask(self, question: ModelQuestion) -> ModelAnswer | CallFailed:
        """One call, paid for whatever comes back."""
        started = self._clock.monotonic()
        try:
            response = await self._response(question)
        except (exceptions.AgentRunError, exceptions.UserError, httpx2.HTTPError, *_UNREADABLE) as error:
            return CallFailed(_mapped(error), _may_have_cost(error), self._since(started))
        return self._answer(response, self._since(started))

    async def _response(self, question: ModelQuestion) -> ModelResponse:
        if self._short_way is None:
            return await self._request(question)
        return await self._short_way.ask(question, lambda: self._request(question))

    async def _request(self, question: ModelQuestion) -> ModelResponse:
        tools = [
            ToolDefinition(name=tool.name, parameters_json_schema=tool.schema, description=tool.description)
            for tool in question.tools
        ]
        settings = RequestSettings(
            max_tokens=self._settings.max_output_tokens,
            timeout=self._settings.timeout_s,
            tool_choice="required",
            parallel_tool_calls=False,
            max_retries=0,
        )
        request = ModelRequest.user_text_prompt(question.content, instructions=question.instructions)
        parameters = ModelRequestParameters(function_tools=tools, allow_text_output=False)
        return await model_request(self._model, [request], model_settings=settings, model_request_parameters=parameters)

    def _answer(self, response: ModelResponse, latency_ms: int) -> ModelAnswer:
        usage = response.usage
        used = TokenCounts(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)
        return ModelAnswer(
            calls=tuple(
                ToolCall(part.tool_name, part.args if isinstance(part.args, str) else part.args_as_json_str())
                for part in response.parts
                if isinstance(part, ToolCallPart)
            ),
            text="".join(part.content for part in response.parts if isinstance(part, TextPart)),
            model=one_line(response.model_name or self.name, _LONGEST_NAME),
            used=used,
            cost=self._tariff.cost(used) if used.input > 0 and used.output > 0 else None,
            latency_ms=latency_ms,
            is_cut=response.finish_reason == "length",
            is_simulated=(response.provider_response_id or "").startswith(_SIMULATED),
        )

    def _since(self, started: float) -> int:
        return max(0, round((self._clock.monotonic() - started) * 1_000))


def model_of(settings: ModelSettings, key: str | None, http: httpx2.AsyncClient) -> Model[Any]:
    name = str(settings.name)
    if settings.provider == "compatible":
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

        base_url = str(settings.base_url)
        compatible = OpenAICompatibleProvider("compatible", base_url=base_url, api_key=key, http_client=http)
        return OpenAIChatModel(name, provider=compatible)
    if key is None:
        raise BadInput("model.api_key", f"is needed for {settings.provider}; set POSTROOM_MODEL__API_KEY")
    if settings.provider == "anthropic":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        anthropic = AnthropicProvider(api_key=key, base_url=settings.base_url, http_client=http)
        return AnthropicModel(name, provider=anthropic)
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIChatModel(name, provider=OpenAIProvider(base_url=settings.base_url, api_key=key, http_client=http))


def _mapped(error: Exception) -> PostroomError:
    """The provider's own message is left out, because it may repeat the mail."""
    match error:
        case exceptions.ModelRateLimitError():
            return Retryable("The model's provider asks for fewer requests.", retry_after=_wait(error))
        case exceptions.ModelQuotaExceededError():
            return Retryable("The account with the model's provider has no credit left.", retry_after=_NO_CREDIT_PAUSE)
        case exceptions.ModelAuthenticationError():
            return Fatal("The model's provider does not accept the key; check model.api_key.")
        case exceptions.ModelNotFoundError():
            return Fatal("The model's provider does not know this model; check model.name.")
        case exceptions.ModelRequestRejectedError():
            return ModelRefused()
        case exceptions.ModelAPIError():
            return Retryable(f"The model cannot be reached: {_kind(error)}.", retry_after=_wait(error))
        case exceptions.UserError():
            return Fatal(f"The model cannot be used as it is configured: {error.message}")
        case _:
            return Retryable("The model's answer cannot be read.")


def _wait(error: exceptions.ModelAPIError) -> timedelta | None:
    return None if error.retry_after is None else timedelta(seconds=error.retry_after)


def _kind(error: exceptions.ModelAPIError) -> str:
    status = getattr(error, "status_code", None)
    return f"HTTP {status}" if status else type(error).__name__.removeprefix("Model").removesuffix("Error").lower()


def _may_have_cost(error: Exception) -> bool:
    """A refusal costs nothing, nor does what was never sent; anything else may have been worked on."""
    if isinstance(error, exceptions.ModelHTTPError | exceptions.UserError):
        return False
    return getattr(error, "phase", None) not in ("pool", "connect")
