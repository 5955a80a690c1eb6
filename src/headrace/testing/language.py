"""A tiny language model for tests: a seed in, a GGUF file of a Llama with random weights and a byte tokenizer out.

It loads in milliseconds. Its greedy text is printable ASCII without meaning that never ends by itself: the rows of the
output for all other tokens are zero.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from headrace.testing.gguf import write_gguf

__all__ = ["CHAT_TEMPLATE", "END_ID", "save_language_model"]

WIDTH, N_LAYERS, N_HEADS, N_KV_HEADS, HIDDEN = 64, 2, 4, 2, 128

CHAT_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif -%}"
    "{%- for message in messages -%}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor -%}"
    "<|im_end|>\n"
    "{%- endfor -%}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif -%}"
)

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_ID = 258
"""Of "<|im_end|>", which ends an answer."""

MERGES = ("Ġ t", "h e", "Ġt he", "i n", "Ġ a", "e r")


def save_language_model(path: Path, *, seed: int = 0, context: int = 512, kind: str = "Q8_0") -> Path:
    """Write the model to `path`, its matrices as the tensor type `kind`, and return it."""
    random = np.random.default_rng(seed)
    tokens = [*_byte_names(), *SPECIALS, *(merge.replace(" ", "") for merge in MERGES)]

    def matrix(rows: int, cols: int, scale: float = 1.0) -> tuple[str, Any]:
        return kind, (random.standard_normal((rows, cols)) * scale / np.sqrt(cols)).astype(np.float32)

    def ones(n: int) -> tuple[str, Any]:
        return "F32", np.ones(n, np.float32)

    _, output = matrix(len(tokens), WIDTH, 6.0)
    speakable = [32 <= byte < 127 for byte in range(256)] + [False] * len(SPECIALS) + [True] * len(MERGES)
    output[~np.array(speakable)] = 0
    tensors = {"token_embd.weight": matrix(len(tokens), WIDTH, 8.0), "output.weight": (kind, output)}
    tensors["output_norm.weight"] = ones(WIDTH)
    kv_width = WIDTH // N_HEADS * N_KV_HEADS
    for layer in range(N_LAYERS):
        shapes = {
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (kv_width, WIDTH),
            "attn_v": (kv_width, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_gate": (HIDDEN, WIDTH),
            "ffn_up": (HIDDEN, WIDTH),
            "ffn_down": (WIDTH, HIDDEN),
        }
        tensors |= {f"blk.{layer}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        tensors |= {f"blk.{layer}.{name}.weight": ones(WIDTH) for name in ("attn_norm", "ffn_norm")}
    return write_gguf(path, _metadata(tokens, context), tensors)


def _metadata(tokens: list[str], context: int) -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": N_LAYERS,
        "llama.context_length": context,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": HIDDEN,
        "llama.attention.head_count": N_HEADS,
        "llama.attention.head_count_kv": N_KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": WIDTH // N_HEADS,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([3 if token in SPECIALS else 1 for token in tokens], np.int32),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": END_ID,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _byte_names() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary: itself where it is visible, else one from
    U+0100 on."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) if byte in visible else chr(256 + hidden.index(byte)) for byte in range(256)]
