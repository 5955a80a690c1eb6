"""Words are cut as by the expressions models were trained with, run by another engine (Oniguruma, in `tokenizers`)."""

# ruff: noqa: RUF001

from __future__ import annotations

import itertools
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers.pre_tokenizers import Digits, PreTokenizer, Sequence, Split

from headrace.errors import LoadFailed
from headrace.llm.tokenizer.classes import classify
from headrace.llm.tokenizer.pretokenize import PRE_TYPES
from headrace.llm.tokenizer.pretokenize import PreTokenizer as Cutter

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
HEAD = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = [rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"]
SLASHED = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"

# As in the `tokenizer.json` of the families.
UPSTREAM: dict[str, list[str]] = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [HEAD + r"|\p{N}{1,3}" + TAIL],
    "qwen2": [HEAD + r"|\p{N}" + TAIL],
    "qwen35": [
        CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ],
    "tekken": ["|".join(CASED) + r"|\p{N}" + SLASHED],
    "gpt-4o": ["|".join(f"{one}{CONTRACTIONS}?" for one in CASED) + r"|\p{N}{1,3}" + SLASHED],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        r"[一-龥\u3040-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-\uD7FF]+", r"\p{N}"],
    "falcon": [r"[\p{P}$+<=>^~|`]+", GPT2, r"[0-9][0-9][0-9]"],
    "default": [r"[\p{P}$+<=>^~|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"],
    "seed-coder": [HEAD + r"|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"],
    "bailingmoe": [
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "minicpm5": [r"\p{N}{1,3}", HEAD + r"|\p{N}+" + TAIL],
    "laguna": [r"[^\n]+|[\n]+", HEAD + r"|\p{N}" + TAIL],
    "exaone-moe": [
        CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?"
        r"|\s*[\r\n]|\s+(?!\S)|\s+"
    ],
    "jais-2": [
        HEAD
        + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
        + "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
        + r"|\s{1,2}(?!\S)|\s{1}"
    ],
    "deepseek-llm": [],
}

PIECES = [
    *"aZſßéÉЖжǅʰªºあア漢한ก็าऺकिשׁعا٣१½²Ⅷ①👍\u200d\ufe0f\u0301€$+<=>^~|`«»¡!?.,:;'\"/\\_-()[]{}",
    *("'s", "'LL", "'re", "I'm", " a", "  b", "12", "1234", "\n", "\r\n", "\n\n\n", "\t", " \n ", "\u00a0", "\u3000"),
    *("\u2028", "\x85", "\v", "\x00", "\x7f", "𝐇", "𠮷", "\U000e0101", "\ue000"),
    *("中文。", "、", "‘x’", "！", "～", "camelCase"),
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


def _reference(patterns: list[str]) -> PreTokenizer:
    return Sequence([Split(Regex(pattern), "isolated") for pattern in patterns])


def _words(cutter: PreTokenizer, text: str) -> list[str]:
    return [word for word, _ in cutter.pre_tokenize_str(text)] if text else []


@pytest.mark.parametrize("name", [name for name, patterns in UPSTREAM.items() if patterns])
@settings(max_examples=150, deadline=None)
@given(text=texts)
def test_words_are_those_of_the_upstream_expression(name, text):
    expected = _words(_reference(UPSTREAM[name]), text)
    assert [word.decode() for word in Cutter(name).words(text)] == expected


@given(text=texts)
def test_smollm_is_digits_then_gpt2(text):
    reference = Sequence([Digits(individual_digits=True), Split(Regex(GPT2), "isolated")])
    assert [word.decode() for word in Cutter("smollm").words(text)] == _words(reference, text)


@pytest.mark.parametrize("name", sorted(PRE_TYPES))
@settings(max_examples=20, deadline=None)
@given(text=st.text(st.characters(codec="utf-8")))
def test_words_are_the_text(name, text):
    assert b"".join(Cutter(name).words(text)) == text.encode()


def test_each_scheme_is_held_to_an_upstream_expression():
    schemes = {PRE_TYPES[name].patterns for name in UPSTREAM}
    assert {scheme.patterns for scheme in PRE_TYPES.values()} == schemes


def test_deepseek_llm_cuts_cased_letters_wide_ones_numbers_and_punctuation():
    words = [word.decode() for word in Cutter("deepseek-llm").words("Hello, мир 中文。x1 abc 12\n\nend  ")]
    assert words == ["Hello", ",", " мир", " ", "中文", "。", "x", "1", " abc", " ", "12", "\n", "\n", "end", "  "]


def test_an_unknown_scheme_names_the_known_ones():
    with pytest.raises(LoadFailed, match=r"tokenizer\.ggml\.pre is 'klingon'; known are: .*llama-bpe.*qwen2"):
        Cutter("klingon")


def test_classes_are_those_of_unicode():
    """Python's own tables agree wherever both know the character."""
    groups = {"L": "\x82\x83\x84\x85\x86", "M": "\x87", "N": "\x88", "P": "\x89", "S": "\x8a", "Z": "\x81"}
    known = [chr(code) for code in itertools.chain(range(128, 0xD800), range(0xE000, 0x110000))]
    classes = classify("".join(known))
    wrong = []
    for character, kind in zip(known, classes, strict=True):
        category = unicodedata.category(character)
        if category not in ("Cn", "Cc", "Cf") and chr(kind & 0x8F) not in groups.get(category[0], "\x80"):
            wrong.append((character, category, kind))
    assert wrong == []
