"""What a Hugging Face folder says of its tokens, under GGUF's keys: the folder in, tokenizer metadata out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.errors import LoadFailed

__all__ = ["token_metadata"]

_TEMPLATE = "chat_template.jinja"
# A model may end a generation with any of several tokens; GGUF has three names for them.
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")


def token_metadata(
    folder: Path, config: Mapping[str, Any], read_json: Callable[[Path], Mapping[str, Any]]
) -> dict[str, Any]:
    """Ids of special tokens (`generation_config.json` before `config.json`), the chat template, and where the
    `tokenizer.json` is: under `headrace.tokenizer.file`."""
    found: dict[str, Any] = {}
    if (folder / "tokenizer.json").exists():
        found["headrace.tokenizer.file"] = str(folder / "tokenizer.json")
    sources = [config]
    if (folder / "generation_config.json").exists():
        sources.insert(0, read_json(folder / "generation_config.json"))
    for key, name in {"bos_token_id": "bos_token_id", "padding_token_id": "pad_token_id"}.items():
        ids = next((ids for source in sources if (ids := _ids(source.get(name)))), [])
        found.update({f"tokenizer.ggml.{key}": token for token in ids[:1]})
    ends = next((ids for source in sources if (ids := _ids(source.get("eos_token_id")))), [])
    found.update({f"tokenizer.ggml.{key}": token for key, token in zip(_ENDS, ends, strict=False)})
    if (folder / "tokenizer_config.json").exists():
        found.update(_settings(read_json(folder / "tokenizer_config.json")))
    if (folder / _TEMPLATE).is_file():
        try:
            found["tokenizer.chat_template"] = (folder / _TEMPLATE).read_text("utf-8")
        except (OSError, ValueError) as error:
            raise LoadFailed(f"{folder / _TEMPLATE}: cannot be read: {error}") from error
    return found


def _settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("add_bos_token", "add_eos_token"):
        if isinstance(settings.get(name), bool):
            found[f"tokenizer.ggml.{name}"] = settings[name]
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    if isinstance(template, str):
        found["tokenizer.chat_template"] = template
    return found


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [one for one in values if type(one) is int and one >= 0]
