"""Classes of all characters: the Unicode character database in, src/headrace/llm/tokenizer/unicode.txt out.

    pip install unicodedata2==15.1.0 && python tools/unicode_classes.py

The version is that of llama.cpp. A table of our own makes the same tokens under every Python, whose tables differ.
The file has a line for each stretch of characters of one class: the first character in hexadecimal, and the class.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import unicodedata2

OUT = Path(__file__).resolve().parents[1] / "src" / "headrace" / "llm" / "tokenizer" / "unicode.txt"
VERSION = "15.1.0"

# As in headrace.llm.tokenizer.classes.
CLASSES = {"Lu": 2, "Ll": 3, "Lt": 4, "Lm": 5, "Lo": 6, "M": 7, "N": 8, "P": 9, "S": 10}
WHITE_SPACE = {*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}


def class_of(code: int) -> int:
    if code in WHITE_SPACE:
        return 1
    category = unicodedata2.category(chr(code))
    return CLASSES.get(category, CLASSES.get(category[0], 0))


def main() -> None:
    if unicodedata2.unidata_version != VERSION:
        raise SystemExit(f"expected unicodedata2 {VERSION}, got {unicodedata2.unidata_version}")
    runs = [(next(codes), kind) for kind, codes in groupby(range(0x110000), class_of)]
    OUT.write_text("".join(f"{first:x} {kind}\n" for first, kind in runs))
    print(f"{OUT}: {len(runs)} stretches, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
