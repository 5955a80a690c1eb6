"""Classes of characters: text flows in, out comes one byte a character, on which regular expressions are quick.

ASCII stands for itself. Any other character becomes 0x80 | block << 4 | category, so that a Unicode class such as
\\p{L} is a handful of byte ranges whatever the script, and `re` needs no tables of its own.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

import numpy as np
import numpy.typing as npt

__all__ = ["classify", "compile_pattern"]

_PLANES = 0x40000  # all letters, numbers and symbols; beyond lie marks and private use
_OTHER, _SPACE = 0, 1
_CATEGORIES = {"Lu": 2, "Ll": 3, "Lt": 4, "Lm": 5, "Lo": 6, "M": 7, "N": 8, "P": 9, "S": 10}
_SPACES = (0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)
# Ranges that some expressions name by their code points; each is one block or several.
_BLOCKS = (
    (1, 0x0800, 0x303F),  # up to CJK ideographs: Indic scripts, Thai, symbols, punctuation
    (2, 0x3040, 0x30FF),  # Hiragana, Katakana
    (1, 0x3100, 0x4DFF),
    (3, 0x4E00, 0x9FA5),  # CJK ideographs of Unicode 1.1
    (1, 0xAC00, 0xD7FF),  # Hangul
    (4, 0x2018, 0x201F),  # quotation marks
    (4, 0x3000, 0x3002),
    (5, 0xFF01, 0xFF0F),  # full-width punctuation
    (5, 0xFF1A, 0xFF5E),
)
_NAMED = {
    "Wide": (1, 2, 3, 4),  # U+0800 to U+9FA5 and Hangul
    "Kana_Han": (2, 3),
    "Quote": (4,),
    "Full_Width": (5,),
}
_TERM = re.compile(r"\\([pP])\{(\w+)\}|\\([sS])|\\.|[\[\]]")


def classify(text: str) -> bytes:
    """One byte for each character of `text` (which holds no lone surrogate)."""
    if text.isascii():
        return text.encode("ascii")
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    if points.max() >= _PLANES:
        is_mark = (points >= 0xE0100) & (points < 0xE01F0)
        points = np.where(points < _PLANES, points, _PLANES + is_mark)
    return _table()[points].tobytes()


@cache
def compile_pattern(pattern: str) -> re.Pattern[bytes]:
    r"""An expression over classes from one over text. It may use \p{L}, \p{Lu} …, \p{M}, \p{N}, \p{P}, \p{S}, their
    complements \P{…}, \s, \S, ASCII, and for blocks of this module \p{Wide}, \p{Kana_Han}, \p{Quote}, \p{Full_Width}.

    What the expression leaves unmatched is matched as well, each stretch as a whole: `findall` yields all of a text.
    """
    inside = False
    parts, at = [], 0
    for term in _TERM.finditer(pattern):
        parts.append(pattern[at : term.start()])
        at = term.end()
        kind, name, space = term.groups()
        if term[0] in ("[", "]"):
            inside = term[0] == "["
            parts.append(term[0])
        elif kind or space:
            negated = (kind or space) in ("P", "S")
            members = _members(name or "Space")
            if inside:
                assert not negated, f"a complement within a class in {pattern}"
                parts.append(members)
            else:
                parts.append(f"[{'^' if negated else ''}{members}]")
        else:
            parts.append(term[0])
    whole = "".join([*parts, pattern[at:]])
    return re.compile(f"{whole}|(?:(?!{whole}).)+".encode("latin-1"), re.DOTALL)


def _members(name: str) -> str:
    """The bytes of a class, as they stand between brackets."""
    if name in _NAMED:
        return "".join(f"\\x{0x80 | block << 4:02x}-\\x{0x8F | block << 4:02x}" for block in _NAMED[name])
    wanted = {number for category, number in _CATEGORIES.items() if category.startswith(name)}
    if name == "Space":
        wanted = {_SPACE}
    if not wanted:
        raise ValueError(f"no class {name!r}")
    ascii_part = {code for code in range(128) if _category(chr(code)) in wanted}
    codes = ascii_part | {0x80 | block << 4 | number for block in range(8) for number in wanted}
    return "".join(f"\\x{code:02x}" for code in sorted(codes))


def _category(character: str) -> int:
    if character in "\t\n\v\f\r " or ord(character) in _SPACES:
        return _SPACE
    return _number(unicodedata.category(character))


def _number(category: str) -> int:
    return _CATEGORIES.get(category, _CATEGORIES.get(category[0], _OTHER))


@cache
def _table() -> npt.NDArray[np.uint8]:
    """uint8[_PLANES + 2]: the class of every character; the last two are of others and of marks beyond those planes."""
    numbers = {a + b: _number(a + b) for a in "CLMNPSZ" for b in "cdefiklmnopstu"}
    categories = map(unicodedata.category, map(chr, range(_PLANES)))
    table = np.frombuffer(bytes(map(numbers.__getitem__, categories)) + bytes((_OTHER, _CATEGORIES["M"])), np.uint8)
    table = table | np.uint8(0x80)
    table[list(_SPACES)] = 0x80 | _SPACE
    for block, first, last in _BLOCKS:
        table[first : last + 1] = table[first : last + 1] & 0x8F | block << 4
    table[:128] = np.arange(128)
    return table
