"""Not run: each line marked `# error: code` must be refused by mypy with that code, and nothing else may be."""

from __future__ import annotations

from headrace.core.context import Context
from headrace.errors import Overloaded
from headrace.serve.infer import Infer
from headrace.serve.protocol import Payload, Stage


class TakesNoContext:
    def process(self, payload: Payload, /) -> Payload:
        return payload


class GivesText:
    def process(self, payload: Payload, ctx: Context, /) -> str:
        return payload.text


first: Stage = TakesNoContext()  # error: assignment
second: Stage = GivesText()  # error: assignment
Context("id", 1.0)  # error: call-arg
Context(timeout_s="soon")  # error: arg-type
Payload(text=b"bytes")  # error: arg-type
Payload(speech="")  # error: call-arg
Infer(1)  # error: arg-type
Overloaded("full", retry_after_s="1")  # error: arg-type
