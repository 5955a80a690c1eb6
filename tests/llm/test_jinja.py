"""Templates of strangers: what real ones use works, and nothing they may contain hangs, floods or reaches Python."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.errors import InvalidInput, LoadFailed, StageFailed
from headrace.llm import bounds
from headrace.llm.jinja import compile_template

HOSTILE = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = 1 %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{{ 'a' * 1000000000 }}",
    "{{ 1000000000 * 'a' }}",
    "{{ [1] * 1000000000 }}",
    "{{ 2 ** 1000000000 }}",
    "{{ 'x' | replace('', 'y' * 100000) | replace('', 'y' * 100000) }}",
    "{{ ('x' * 1000000).replace('x', 'y' * 100000) }}",
    "{{ ('y' * 100000).join(['x'] * 100000) }}",
    "{{ (['x'] * 100000) | join('y' * 100000) }}",
    "{{ ('x\n' * 100000) | indent(9000) }}",
    "{{ 'x'.ljust(1000000000) }}",
    "{{ 'x'.center(10000000000) }}",
    "{{ '1'.zfill(1000000000) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 1000000000) }}",
    "{{ '{x:>100000000}'.format_map({'x': 1}) }}",
    "{{ [1] | batch(1000000000, 0) | list }}",
    "{{ messages | tojson(indent=1000000000) }}",
    "{{ 1.5 | round(1000000000) }}",
    "{{ strftime_now('%Y' * 1000) }}",
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "{{ ([[1] * 1000] * 20000) | sum(start=[]) }}",
    "{{ [[1]] | sum(start=[]) }}",
    "{{ (['a' * 100000] * 100000) | join }}",
    "{{ (['a' * 1000] * 100) | map('upper') | join('b' * 1000000) }}",
    "{{ ('b' * 1000000).join(range(1000) | map('string')) }}",
    "{{ ('a' * 10000).translate({97: 'b' * 300000}) }}",
    "{{ 'a'.encode() * 10000000 }}",
    "{{ (1).to_bytes(1000000000, 'big') }}",
    "{% set x = 'x' * 10000000 %}{{ '%(a)s%(a)s' % {'a': x} }}",
    "{% set x = 'x' * 10000000 %}{{ '{0}{0}'.format(x) }}",
    "{{ {}.fromkeys(range(1000), 'x' * 1000000) }}",
    "{% set v = {1: 'x' * 10000000} %}{{ [v.values()] * 2 }}",
    "{% set v = {1: 'x' * 10000000} %}{{ [v.keys().mapping] * 2 }}",
    "{{ ([10 ** 4000] * 10000) | tojson }}",
    "{% autoescape true %}{{ '&' * 10000000 }}{{ '&' * 10000000 }}{% endautoescape %}",
    "{% set tick = 1 %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
]

DEEP = [
    "{% set a = [1] * 3000 %}{% set b = [a] * 60000 %}{{ USE }}",
    "{% set b = namespace(x=[1]) %}{% for i in range(60) %}{% set b.x = [b.x, b.x] %}{% endfor %}{% set b = b.x %}",
    "{% set b = namespace(x=(1,)) %}{% for i in range(60) %}{% set b.x = (b.x, b.x) %}{% endfor %}{% set b = b.x %}",
    "{% set b = namespace(x=1) %}{% for i in range(60) %}{% set b.x = {1: b.x, 2: b.x} %}{% endfor %}{% set b = b.x %}",
    "{% for b in [1] | batch(10000, 'x' * 10000000) %}{{ USE }}{% endfor %}",
    "{% macro f() %}{% set b = varargs %}{{ USE }}{% endmacro %}{% set x = 'x' * 10000000 %}{{ f(x, x) }}",
]
"""Values in values; small where they lie, large where they are used."""
USES = ["b", "b | string", "b | tojson", "b | join", "b ~ ''", "'%s' % (b,)", "'{}'.format(b)", "b | upper", "[b, 1]"]

HOARDS = [
    "{% for i in range(200) %}{{ 'x' * 1000000 }}{% endfor %}",
    "{% for i in range(200) %}" + "x" * 200000 + "{{ 'y' * 800000 }}{% endfor %}",
    "{% for i in range(1000) %}" + "x" * 200000 + "{% endfor %}",
    "{% for i in range(1000) %}{{ '" + "x" * 200000 + "' }}{% endfor %}",
]
"""Text that a block or a macro keeps until it ends."""
KEEPS = [
    "{% set kept %}HOARD{% endset %}",
    "{% macro f() %}HOARD{% endmacro %}{% set kept = f() %}",
    "{% filter length %}HOARD{% endfilter %}",
    "{% macro f() %}{{ caller() | length }}{% endmacro %}{% call f() %}HOARD{% endcall %}",
]

ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ ''['__class__'] }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'a': 1}) }}",
    "{{ self._TemplateReference__context.environment }}",
    "{{ raise_exception.__globals__ }}",
    "{{ range(1000000000) | list }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
]


def _render(source: str, **variables: object) -> str:
    return compile_template(source, "test")({"messages": [{"role": "user", "content": "hi é"}], **variables})


@pytest.mark.parametrize("source", HOSTILE)
def test_no_template_goes_out_of_bounds(monkeypatch, source):
    monkeypatch.setattr(bounds, "MAX_STEPS", 20_000)
    with pytest.raises(StageFailed, match="chat template"):
        _render(source)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("source", DEEP)
def test_values_in_values_count_each_time(source, use):
    source = source.replace("{{ USE }}", f"{{{{ {use} }}}}") if "USE" in source else f"{source}{{{{ {use} }}}}"
    with pytest.raises(StageFailed, match="makes a value of more than"):
        _render(source)


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("hoard", HOARDS, ids=range(len(HOARDS)))
def test_text_is_bounded_where_it_is_kept(hoard, keep):
    with pytest.raises(StageFailed, match="in all"):
        _render(keep.replace("HOARD", hoard))


@pytest.mark.parametrize(
    "make", ["'%d' % i + x", "i ~ x", "x[i:]", "x | replace('x', 'y', 1)", "x.replace('x', 'y', 1)"]
)
def test_all_values_together_are_bounded(make):
    source = "{% set ns = namespace(all=[]) %}{% set x = 'x' * 1000000 %}{% for i in range(1000) %}{% set y = MAKE %}"
    with pytest.raises(StageFailed, match="in all"):
        _render(source.replace("MAKE", make) + "{% endfor %}")


@pytest.mark.parametrize("compare", ["b == c", "b is eq(c)", "'xz' in b", "'xz' is in(b)"])
def test_time_is_bounded_where_one_expression_takes_it_all(monkeypatch, compare):
    monkeypatch.setattr(bounds, "MAX_SECONDS", 0.05)
    for _ in range(2):
        compare = "(" + " or ".join([compare] * 20) + ")"
    with pytest.raises(StageFailed, match="steps or"):
        _render("{% set a = 'x' * 8000000 %}{% set b = a ~ 'y' %}{% set c = a ~ 'z' %}{{ " + compare + " }}")


def test_memory_that_is_not_there_is_the_templates_fault(monkeypatch):
    def no_memory(self, value):
        raise MemoryError

    monkeypatch.setattr(bounds.Bounds, "made", no_memory)
    with pytest.raises(StageFailed, match="more memory than there is"):
        _render("{{ 'a' ~ 'b' }}")


def test_time_is_bounded_whatever_a_step_takes(monkeypatch):
    monkeypatch.setattr(bounds, "MAX_SECONDS", 0.01)
    with pytest.raises(StageFailed, match="steps or"):
        _render("{% set s = 'x' * 1000 %}{% for i in range(99999) %}{% if s.upper() %}{% endif %}{% endfor %}")


@pytest.mark.parametrize("source", ESCAPES)
def test_no_template_reaches_python(source):
    """It is refused, or shows nothing."""
    with contextlib.suppress(InvalidInput, LoadFailed):
        assert _render(source) == ""


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for m in messages %}{{ m['role'] ~ ': ' ~ m.content | trim }}{% endfor %}", "user: hi é"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "hi é"}]'),
        ("{{ {'a': '<b>'} | tojson(indent=1) }}", '{\n "a": "<b>"\n}'),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13"),
        ("{% for x in [1, 2] %}{{ loop.index0 }}{{ loop.last }}{{ loop.previtem }}{% endfor %}", "0False1True1"),
        ("{% macro f(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, b=3) }}", "1213"),
        ("{% set ns = namespace(n=0) %}{% for x in [1, 2] %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}", "3"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | first }}", "hi é"),
        ("{{ 'a</think>b'.split('</think>')[-1].lstrip() }}{{ 'x'.startswith('x') }}", "bTrue"),
        ("{{ messages[::-1][0].content[1:] }}{{ messages[0] is mapping }}{{ 'x' is string }}", "i éTrueTrue"),
        ("{{ '%s-%d' % ('a', 3) }}{{ '{} {}'.format(1, 2) }}{{ 'a b' | replace(' ', '_') }}", "a-31 2a_b"),
        ("{{ [3, 1] | sort | join(', ') }}{{ {'k': 1} | items | list }}{{ 'x' | upper | length }}", "1, 3[('k', 1)]1"),
        ("{{ missing | default('d') }}{{ missing is defined }}{{ 1000000000 | string }}", "dFalse1000000000"),
        ("{{ 1700000000 + 1 }}", "1700000001"),
        ("{{ [1, 2.5] | sum }}{{ messages | map(attribute='content') | map('length') | sum(start=1) }}", "3.55"),
        ("{{ ', '.join(messages | map(attribute='role')) }}{{ 'a' in ['a'] }}{{ (1, 2)[1:] }}", "userTrue(2,)"),
        ("{{ ('ab' * 600000) | replace('a', 'c') | length }}{{ ('ab' * 600000) | indent | length }}", "12000001200000"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x }}{% filter upper %}b{{ x }}{% endfilter %}", "a1BA1"),
    ],
)
def test_what_real_templates_use_works(source, text):
    assert _render(source) == text


def test_the_time_can_be_asked():
    assert _render("{{ strftime_now('%Y') }}") in (time.strftime("%Y"), str(int(time.strftime("%Y")) - 1))


NONE = ["{% if %}", "{{ x", "{{ x | nothing }}", "{{ " + "(" * 3000 + ")" * 3000 + " }}", "x" * (2 << 20)]


@pytest.mark.parametrize("source", NONE, ids=range(len(NONE)))
def test_what_is_no_template_is_refused(source):
    with pytest.raises(LoadFailed, match="test: "):
        compile_template(source, "test")


def test_messages_a_template_was_not_written_for_are_the_callers_fault():
    with pytest.raises(InvalidInput, match=r"fails on the messages: .* has no attribute 'x'"):
        _render("{{ messages[0].content.x.y }}")


def test_threads_share_a_template():
    render = compile_template("{% for i in range(n) %}{{ i }}{% endfor %}", "test")
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda n: render({"n": n}), range(200))) == [
            "".join(map(str, range(n))) for n in range(200)
        ]
