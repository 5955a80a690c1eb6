"""What llama.cpp makes of a few hundred texts: two GGUF files in, tests/golden/data/tokens.json out.

Run it where `llama-cpp-python` is installed, with the files of the recipes smollm2 and gemma3-270m:

    python tools/golden_tokens.py models/smollm2/current/*.gguf models/gemma3-270m/current/*.gguf

Texts come from a fixed seed: many scripts, code, numbers, runs of white space, control characters, joined emoji, and
texts that look like special tokens. For each model the ids with special tokens left alone and, where that differs,
parsed.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
from pathlib import Path

import llama_cpp

OUT = Path(__file__).resolve().parents[1] / "tests" / "golden" / "data" / "tokens.json"
COUNT = 320

RANGES = {
    "ascii": [(0x20, 0x7E)],
    "latin": [(0xC0, 0x24F), (0x1E00, 0x1EFF)],
    "cyrillic, greek": [(0x400, 0x52F), (0x370, 0x3FF)],
    "chinese": [(0x4E00, 0x9FFF)],
    "japanese": [(0x3040, 0x30FF)],
    "korean": [(0xAC00, 0xD7A3)],
    "arabic, hebrew": [(0x600, 0x6FF), (0x590, 0x5F4)],
    "thai": [(0xE00, 0xE5B)],
    "indic": [(0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF)],
    "emoji": [(0x1F300, 0x1FAFF), (0x2600, 0x27BF)],
    "punctuation": [(0x2000, 0x206F), (0x3000, 0x303F), (0xFF00, 0xFFEF)],
    "symbols": [(0x2190, 0x23FF), (0x20A0, 0x20BF), (0x1D400, 0x1D7FF)],
    "numbers": [(0x660, 0x669), (0x966, 0x96F), (0x2150, 0x218F), (0x2460, 0x24FF)],
    "marks": [(0x300, 0x36F), (0x20D0, 0x20F0)],
    "controls": [(0, 0x1F), (0x7F, 0x9F)],
    "private, none": [(0xE000, 0xE0FF), (0xF0000, 0xF00FF), (0x10FFF0, 0x10FFFF)],
}
BLANKS = [" ", "  ", "     ", "\t", "\t\t", "\n", "\n\n\n", "\r\n", " \n", "\u00a0", "\u3000", "\u2028", "\v", " " * 40]
LIKE_SPECIALS = [
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "im_end|>", "<file_sep>", "<repo_name>"),
    *("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<unused12>", "<unused", "<table>", "<b>", "<<s>>"),
    *("[multimodal]", "<0x41>", "<unk>", "\u2581", "\u2581\u2581x", "\u0120", "\u010a", "<start_of_image>"),
]
PLAIN = """The quick brown fox don't I'll we've they're it's 'tis rock'n'roll WE'LL COVID-19 iPhone 3.14159 1,234,567
naïve résumé Straße привет мир κόσμε 你好世界 日本語テスト 안녕하세요 مرحبا שלום สวัสดี नमस्ते বাংলা தமிழ் 👍🏽 x²+y² ½²①Ⅷ ﬁ
$12.50 50% a_b-c.d/e\\f@g 0xFF;//comment https://example.com/?q=1&r=%20 \U0001d407\U0001d422 𠮷野家 e\u0301"""
WORDS = [
    *PLAIN.split(),
    *("\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f3f3\ufe0f\u200d\U0001f308", "two words"),
    *("def f(x):\n    return x**2\n", "for(int i=0;i<n;++i){\n\ta[i]+=1;\n}", '{"k": [1, 2.5e-3, null]}'),
    *(
        "<div class='a'>x</div>",
        "SELECT * FROM t;\r\n",
        "\U00011f50\U00011f51",
        "\U0002ed1c's",
        "<b>bold</b>\n\n\n<td>",
    ),
]
CHATS = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Two  spaces,\n\na line. "}],
    [
        {"role": "user", "content": "Что такое 2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "谢谢 👍"},
    ],
]
FAMILIES = ("chatml", "gemma", "llama3", "phi3")


def text(draw: random.Random) -> str:
    parts = []
    for _ in range(draw.choice([1, 2, 4, 7])):
        kind = draw.random()
        if kind < 0.4:
            parts.append(draw.choice(WORDS))
        elif kind < 0.55:
            parts.append(draw.choice(BLANKS))
        elif kind < 0.7:
            parts.append(draw.choice(LIKE_SPECIALS))
        else:
            ranges = RANGES[draw.choice(list(RANGES))]
            parts.append("".join(chr(draw.randint(*draw.choice(ranges))) for _ in range(draw.choice([1, 2, 5]))))
    return draw.choice(["", "", " "]).join(parts)


class Reference:
    """A model's vocabulary in llama.cpp."""

    def __init__(self, path: str) -> None:
        self.llama = llama_cpp.Llama(path, vocab_only=True, verbose=False)
        self.vocab = llama_cpp.llama_model_get_vocab(self.llama._model.model)
        self.ids = (llama_cpp.llama_token * (1 << 16))()

    def encode(self, text: str, *, parse: bool) -> list[int]:
        raw = text.encode()
        count = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), self.ids, len(self.ids), True, parse)
        return list(self.ids[:count])

    def ends(self) -> list[int]:
        return [i for i in range(self.llama.n_vocab()) if llama_cpp.llama_vocab_is_eog(self.vocab, i)]

    def chat(self, messages: list[dict[str, str]]) -> str:
        """The file's own template, run by llama-cpp-python."""
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        formatter = Jinja2ChatFormatter(self.llama.metadata["tokenizer.chat_template"], "", "")
        return formatter(messages=messages).prompt


def built_in(family: str, messages: list[dict[str, str]]) -> str:
    """llama.cpp's own template of a family."""
    chat = (llama_cpp.llama_chat_message * len(messages))()
    for entry, message in zip(chat, messages, strict=True):
        entry.role, entry.content = message["role"].encode(), message["content"].encode()
    buffer = ctypes.create_string_buffer(1 << 16)
    size = llama_cpp.llama_chat_apply_template(family.encode(), chat, len(messages), True, buffer, len(buffer))
    return buffer.raw[:size].decode()


def main() -> None:
    draw = random.Random(20261130)
    texts = ["", *BLANKS, *LIKE_SPECIALS, *WORDS]
    texts += [text(draw) for _ in range(COUNT - len(texts))]
    golden: dict[str, object] = {"texts": texts, "chats": CHATS}
    for name, path in zip(("smollm2", "gemma3-270m"), sys.argv[1:], strict=True):
        reference = Reference(path)
        plain = [reference.encode(one, parse=False) for one in texts]
        parsed = [reference.encode(one, parse=True) for one in texts]
        golden[name] = {
            "ends": reference.ends(),
            "plain": plain,
            "parsed": {str(i): ids for i, ids in enumerate(parsed) if ids != plain[i]},
        }
        if "tokenizer.chat_template" in reference.llama.metadata:
            prompts = [reference.chat(chat) for chat in CHATS]
            golden[name] |= {"prompts": prompts, "prompt_ids": [reference.encode(p, parse=True) for p in prompts]}
    golden["built_in"] = {family: [built_in(family, chat) for chat in CHATS] for family in FAMILIES}
    OUT.write_text(json.dumps(golden, ensure_ascii=True, separators=(",", ":")) + "\n", "utf-8")
    print(f"{OUT}: {len(texts)} texts, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
