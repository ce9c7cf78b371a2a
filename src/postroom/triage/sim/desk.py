"""Where a request becomes an answer: faults first, then what was scripted, then what is made up."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import asdict, dataclass, field

from postroom.domain.clock import Clock
from postroom.triage.sim.answers import arguments_text, invent, tokens_in
from postroom.triage.sim.chat import ChatRequest, Completion, assistant_message
from postroom.triage.sim.script import Answer, Fault, FaultKind, Stage

_KEPT = 1_000


@dataclass
class Tally:
    requests: int = 0
    answered: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    """Requests with a wrong key or a wrong form."""


class Desk:
    def __init__(self, seed: int, clock: Clock) -> None:
        self.stage = Stage()
        self.tally = Tally()
        self.prompts: deque[str] = deque(maxlen=_KEPT)
        """What was asked, the newest last."""
        self._seed = seed
        self._clock = clock

    def state(self) -> dict[str, object]:
        return asdict(self.tally) | {"faults": dict(self.tally.faults), "queued": len(self.stage.queue)}

    def reset(self) -> None:
        self.stage.clear()
        self.tally = Tally()
        self.prompts.clear()

    def fault_for(self, request: ChatRequest) -> Fault | None:
        self.tally.requests += 1
        self.prompts.append(request.prompt)
        fault = self.stage.fault_for(request.prompt)
        if fault is not None:
            self.tally.faults[fault.kind] += 1
        return fault

    def answer(self, request: ChatRequest, fault: Fault | None) -> Completion:
        answer = self.stage.answer_for(request.prompt) or invent(request, self._seed)
        if fault is not None:
            answer = _spoiled(answer, fault)
        kind = None if fault is None else fault.kind
        message, finish_reason, said = self._message(answer, request, kind)
        self.tally.answered += 1
        completion = Completion(
            id=f"simulated-{self.tally.answered}",
            created=int(self._clock.now().timestamp()),
            model=request.model,
            message=message,
            finish_reason=finish_reason,
            input_tokens=tokens_in(" " * request.size) if answer.input_tokens is None else answer.input_tokens,
            output_tokens=tokens_in(said) if answer.output_tokens is None else answer.output_tokens,
        )
        self.tally.input_tokens += completion.input_tokens
        self.tally.output_tokens += completion.output_tokens
        return completion

    def _message(
        self, answer: Answer, request: ChatRequest, kind: FaultKind | None
    ) -> tuple[dict[str, object], str, str]:
        """The message, why it ends, and what was said; cut where the caller's limit is."""
        said = answer.text if answer.text is not None else arguments_text(answer)
        is_cut = request.max_tokens is not None and tokens_in(said) > request.max_tokens
        said = said[: 4 * request.max_tokens] if is_cut and request.max_tokens else said
        if answer.text is not None:
            return assistant_message(text=said), "length" if is_cut else "stop", said
        name = answer.tool or next((tool.name for tool in request.callable_tools), "none")
        number = self.tally.answered + 1
        calls = [(f"call_simulated_{number}_{each}", name, said) for each in range(2 if kind == "two_calls" else 1)]
        return assistant_message(*calls), "length" if is_cut else "tool_calls", said


def _spoiled(answer: Answer, fault: Fault) -> Answer:
    match fault.kind:
        case "malformed_tool_call":
            return answer.model_copy(update={"text": None, "arguments": arguments_text(answer)[:-1] + ",,"})
        case "unknown_tool":
            return answer.model_copy(update={"text": None, "tool": "no_such_tool"})
        case "text":
            return Answer(text="Simulated: I would rather talk.")
        case "empty":
            return Answer(text="")
        case _:
            return answer
