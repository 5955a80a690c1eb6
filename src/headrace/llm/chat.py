"""Conversations as a model writes them: messages and tools flow in, text or tokens up to where it answers come out.

The template comes from the checkpoint; where it has none, one that fits its special tokens. A template that knows no
tools gets them told in the system message, in the form most models have learnt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, TypeAlias

from headrace.errors import InvalidInput
from headrace.llm.jinja import compile_template
from headrace.llm.messages import Message, check_messages, check_tools
from headrace.llm.templates import default_template
from headrace.llm.tokenizer import Tokenizer
from headrace.llm.tools import describe_tools

__all__ = ["Chat"]

_UNTRUSTED = ("user", "tool")
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Code points that are no characters: a text has no use for them."""

Render: TypeAlias = Callable[[Mapping[str, Any]], str]


class Chat:
    """A model's way of writing a conversation; threads may share one. The template is compiled when first used.

    Args:
        metadata: The checkpoint's, in GGUF's keys: "tokenizer.chat_template", and ".tool_use" after it for tools.
        tokenizer: The model's.
        template: A template in place of the checkpoint's own.
    """

    def __init__(self, metadata: Mapping[str, Any], tokenizer: Tokenizer, template: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._names = {
            "bos_token": self._text(tokenizer.bos_id),
            "eos_token": self._text(tokenizer.eos_id),
            "unk_token": self._text(tokenizer.marks.unk_id),
            "pad_token": self._text(tokenizer.marks.pad_id),
        }
        own = metadata.get("tokenizer.chat_template") if template is None else template
        self._source = own if isinstance(own, str) and own.strip() else default_template(tokenizer)
        with_tools = metadata.get("tokenizer.chat_template.tool_use") if template is None else template
        self._with_tools = with_tools if isinstance(with_tools, str) else self._source
        self._compiled: dict[str, Render] = {}
        self._compiling = Lock()

    def render(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """The conversation as text, up to where the answer begins.

        Args:
            messages: `{"role": …, "content": …}`; the content a text or OpenAI's parts of type "text".
            tools: Functions the model may call, in OpenAI's form.

        Raises `InvalidInput` for messages that are malformed or that the template refuses, `LoadFailed` for a template
        that is none, `StageFailed` for one that does not end.
        """
        plain, offered = check_messages(messages), check_tools(tools)
        source = self._with_tools if offered else self._source
        if "tools" not in source:
            plain, offered = describe_tools(plain, offered), []
        if "developer" not in source:
            plain = [{**message, "role": "system"} if message["role"] == "developer" else message for message in plain]
        given = {**self._names, "messages": plain, "add_generation_prompt": True, "tools": offered or None}
        return self._template(source)(given)

    def encode(self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
        """The tokens of a conversation; begin of text is there once, whether or not the template writes it.

        What users and tools write is text throughout: "<|im_end|>" in it does not end a turn.
        """
        plain = check_messages(messages)
        written = "".join(message["content"] for message in plain)
        mark = next((mark for mark in _MARKS if mark not in written), "")
        if not mark:
            raise InvalidInput("messages: hold all of U+FDD0 to U+FDEF, which are no characters; expected one unused")
        for message in plain:
            if message["role"] in _UNTRUSTED:
                message["content"] = self._tokenizer.guard(message["content"], mark)
        text = self.render(plain, tools)
        if mark in text:
            ids = self._tokenizer.encode_guarded(text, mark)
        else:
            ids = self._tokenizer.encode(text, special=False, parse_special=True)
        bos = self._tokenizer.bos_id
        return [bos, *ids] if self._tokenizer.marks.add_bos and bos is not None and ids[:1] != [bos] else ids

    def _template(self, source: str) -> Render:
        if (render := self._compiled.get(source)) is None:
            with self._compiling:
                render = self._compiled[source] = compile_template(source, "tokenizer.chat_template")
        return render

    def _text(self, token: int | None) -> str:
        return "" if token is None else self._tokenizer.token_bytes(token).decode("utf-8", "replace")
