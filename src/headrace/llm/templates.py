"""Chat templates for checkpoints that have none: a tokenizer flows in, the template of its family comes out.

Each family is known by a special token that only it has. Templates take a system message in the form the family has
learnt; where it has none, in front of the first question.
"""

from __future__ import annotations

from headrace.llm.tokenizer import Tokenizer

__all__ = ["default_template"]

_CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}
"""

_GEMMA = """\
{{ bos_token }}
{%- set ns = namespace(system='') %}
{% for message in messages %}
{% if message['role'] == 'system' %}
{% set ns.system = ns.system + message['content'] | trim + '\\n\\n' %}
{% else %}
{% set role = 'model' if message['role'] == 'assistant' else 'user' %}
{{ '<start_of_turn>' + role + '\\n' + ns.system + message['content'] | trim + '<end_of_turn>\\n' }}
{%- set ns.system = '' %}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
{{ '<start_of_turn>model\\n' }}
{%- endif %}
"""

_LLAMA3 = """\
{{ bos_token }}
{%- for message in messages %}
{% set role = 'ipython' if message['role'] == 'tool' else message['role'] %}
{{ '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

_PHI3 = """\
{% for message in messages %}
{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|assistant|>\\n' }}
{%- endif %}
"""

_INSTRUCT = """\
{{ bos_token }}
{%- set ns = namespace(system='') %}
{% for message in messages %}
{% if message['role'] == 'system' %}
{% set ns.system = ns.system + message['content'] + '\\n\\n' %}
{% elif message['role'] == 'assistant' %}
{{ ' ' + message['content'] | trim + eos_token }}
{%- else %}
{{ '[INST] ' + ns.system + message['content'] + ' [/INST]' }}
{%- set ns.system = '' %}
{% endif %}
{% endfor %}
"""

_FAMILIES = (
    ("<|im_start|>", _CHATML),
    ("<start_of_turn>", _GEMMA),
    ("<|start_header_id|>", _LLAMA3),
    ("<|assistant|>", _PHI3),
    ("[INST]", _INSTRUCT),
)


def default_template(tokenizer: Tokenizer) -> str:
    """The template of the family whose special tokens the tokenizer has; ChatML where it has none of them."""
    names = tokenizer.vocabulary.names
    return next((template for token, template in _FAMILIES if token in names), _CHATML)
