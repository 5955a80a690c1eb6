r"""How a text is cut into words before merging: the name of a scheme flows in, out comes a cutter of texts.

The names are those of GGUF's `tokenizer.ggml.pre`; the expressions are those the models were trained with. Where one
has several, each cuts the pieces that the one before it left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import LoadFailed
from headrace.llm.tokenizer.classes import classify, compile_pattern

__all__ = ["PRE_TYPES", "PreTokenizer"]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_DIGITS = r"\p{N}|\P{N}+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_OTHERS}|{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_OTHERS}|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = rf"{_CASED}{_UPPER}*{_LOWER}+|{_CASED}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_GPT4O = (
    rf"{_CASED}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_CASED}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_DEEPSEEK3 = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + rf"|{_SPACES}"
_BAILING = rf"'(?i:[sdmt]|ll|ve|re)|{_LETTERS}|\p{{N}}|{_OTHERS}|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_EXAONE_MOE = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_BLANKS = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
_JAIS2 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_OTHERS}|\s*[\r\n]+|{_BLANKS}|\s{{1,2}}(?!\S)|\s"


@dataclass(frozen=True)
class _Scheme:
    """`ignore_merges`: a word that is a token is taken as it is. `add_bos`: what holds when the file does not say."""

    patterns: tuple[str, ...]
    names: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_SCHEMES = (
    _Scheme(
        (_GPT2,),
        (
            *("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4", "gigachat", "mellum"),
            *("a.x-4.0", "modern-bert", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code"),
            "roberta-bpe",
        ),
    ),
    _Scheme(
        (_DIGITS, _GPT2),
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
    ),
    _Scheme(
        (_LLAMA3,),
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        ignore_merges=True,
        add_bos=True,
    ),
    _Scheme((_LLAMA3,), ("dbrx", "smaug-bpe", "glm4", "chatglm-bpe")),
    _Scheme(
        (_QWEN2,),
        ("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "solar-open", "kormo", "f2llmv2", "grok-2"),
    ),
    _Scheme((_QWEN35,), ("qwen35",)),
    _Scheme((r"\n+|[^\n]+", _QWEN2), ("laguna",)),
    _Scheme((_TEKKEN,), ("tekken",), ignore_merges=True, add_bos=True),
    _Scheme((_GPT4O,), ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2")),
    _Scheme(
        (r"\p{N}{1,3}|\P{N}+", r"\p{Kana_Han}+", _DEEPSEEK3), ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4")
    ),
    _Scheme(
        (r"[\r\n]|[^\r\n]+", r"\s?\p{L}+", r"\s?\p{P}+", r"\p{Wide}+", _DIGITS),
        ("deepseek-coder",),
    ),
    _Scheme(
        (
            r"[\r\n]|[^\r\n]+",
            r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
            r"\s?[!-/:-~\p{Full_Width}\p{Quote}]+",
            r"\s+\Z",
            r"\p{Wide}+",
            r"\p{N}+",
        ),
        ("deepseek-llm",),
    ),
    _Scheme((r"[\p{P}$+<=>^~|`]+", _GPT2, r"[0-9]{3}"), ("falcon",)),
    _Scheme((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9]{3}"), ("default",)),
    _Scheme((_BAILING,), ("bailingmoe", "bailingmoe2", "llada-moe")),
    _Scheme((_SEED,), ("seed-coder",)),
    _Scheme((_EXAONE_MOE,), ("exaone-moe",)),
    _Scheme((_JAIS2,), ("jais-2",)),
    _Scheme((r"\p{N}{1,3}|\P{N}+", rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}+|{_OTHERS}|{_SPACES}"), ("minicpm5",), True),
)
_BY_NAME = {name: scheme for scheme in _SCHEMES for name in scheme.names}

PRE_TYPES: Mapping[str, _Scheme] = _BY_NAME
"""Every scheme by its names."""


class PreTokenizer:
    """Cuts a text into the words within which tokens are merged. Raises `LoadFailed` for a name it does not know."""

    def __init__(self, name: str) -> None:
        if name not in PRE_TYPES:
            raise LoadFailed(f"tokenizer.ggml.pre is {name!r}; known are: {', '.join(sorted(PRE_TYPES))}")
        scheme = PRE_TYPES[name]
        self.ignore_merges = scheme.ignore_merges
        self.add_bos = scheme.add_bos
        self._patterns = [compile_pattern(pattern) for pattern in scheme.patterns]

    def words(self, text: str) -> list[bytes]:
        """The words in UTF-8, in order; together they are the text."""
        pieces = [classify(text)]
        for pattern in self._patterns:
            if len(pieces) == 1:
                pieces = pattern.findall(pieces[0])
            else:
                pieces = [word for piece in pieces for word in pattern.findall(piece)]
        if text.isascii():
            return pieces
        words, at = [], 0
        for piece in pieces:
            end = at + len(piece)
            words.append(text[at:end].encode())
            at = end
        return words
