"""Classes of characters: text flows in, out comes one byte a character, on which regular expressions are quick.

ASCII stands for itself. Any other character becomes 0x80 | block << 4 | category, so that a Unicode class such as
\\p{L} is a handful of byte ranges whatever the script, and `re` needs no tables of its own.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["classify", "compile_pattern"]

_CLASSES = Path(__file__).with_name("unicode.txt")
"""Of Unicode 15.1, made by tools/unicode_classes.py."""
_PLANES = 0x40000  # all letters, numbers and symbols; beyond lie marks and private use
_CATEGORIES = {"White": 1, "Lu": 2, "Ll": 3, "Lt": 4, "Lm": 5, "Lo": 6, "M": 7, "N": 8, "P": 9, "S": 10}
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
            members = _members(name or "White")
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
    if not wanted:
        raise ValueError(f"no class {name!r}")
    ascii_part = {code for code, number in enumerate(_ascii()) if number in wanted}
    codes = ascii_part | {0x80 | block << 4 | number for block in range(8) for number in wanted}
    return "".join(f"\\x{code:02x}" for code in sorted(codes))


def _kinds() -> npt.NDArray[np.uint8]:
    """uint8[_PLANES + 2]: the category of every character; the last two are of others and of marks beyond."""
    words = _CLASSES.read_text("ascii").split()
    firsts = [int(word, 16) for word in words[::2]]
    whole = np.repeat(np.array(words[1::2], np.uint8), np.diff([*firsts, 0x110000]))
    return np.append(whole[:_PLANES], np.array([0, _CATEGORIES["M"]], np.uint8))


@cache
def _ascii() -> bytes:
    return _kinds()[:128].tobytes()


@cache
def _table() -> npt.NDArray[np.uint8]:
    """uint8[_PLANES + 2]: the class of every character."""
    table = _kinds() | np.uint8(0x80)
    for block, first, last in _BLOCKS:
        table[first : last + 1] = table[first : last + 1] & 0x8F | block << 4
    table[:128] = np.arange(128)
    return table
