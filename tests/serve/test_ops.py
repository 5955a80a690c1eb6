import sys
from typing import Literal

import pytest

from headrace.core.context import Context
from headrace.errors import ConfigError
from headrace.serve.config import StageConfig
from headrace.serve.infer import Infer
from headrace.serve.ops import OPS, StageFactory
from headrace.serve.protocol import Payload
from headrace.testing.stage import check_options


class Sized:
    def __init__(
        self,
        size: tuple[int, int],
        scale: float = 1.0,
        mode: Literal["fit", "fill"] = "fit",
        *,
        names: list[str] | None = None,
    ) -> None:
        if size[0] < 1:
            raise ValueError("size must be positive")
        self.options = (size, scale, mode, names)

    def process(self, payload, ctx):
        return payload


class Anything:
    def __init__(self, **options: float) -> None:
        self.options = options

    def process(self, payload, ctx):
        return payload


class NotAStage:
    pass


def create(config):
    return StageFactory(None).create(config)


@pytest.fixture
def op(monkeypatch):
    """Make this test module importable under a plain name, as an installed package is; gives `op(attribute)`."""
    monkeypatch.setitem(sys.modules, "installed_stages", sys.modules[__name__])
    return lambda attribute: f"installed_stages:{attribute}"


def test_every_registered_op_exists_and_has_a_process():
    from headrace.serve.ops import _import

    for name, entry in OPS.items():
        assert callable(_import(entry).process), name


def test_options_are_checked_and_converted_by_signature(op):
    stage = create(StageConfig(op=op("Sized"), options={"size": [3, 4], "scale": 2, "names": ["a"]}))
    assert stage.options == ((3, 4), 2.0, "fit", ["a"])
    assert create(StageConfig(op=op("Anything"), options={"a": 1})).options == {"a": 1.0}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "stage 's': option 'size' is missing"),
        ({"size": [1, 2], "sclae": 1}, "stage 's': unknown option 'sclae'; expected 'size', 'scale', 'mode', 'names'"),
        ({"size": "big"}, "stage 's': option 'size': expected array, got str; got 'big'"),
        ({"size": [1, "2"]}, "stage 's': option 'size': expected int, got str - at size[1]; got [1, '2']"),
        (
            {"size": [1, 2], "mode": "fil"},
            "stage 's': option 'mode': invalid enum value 'fil'; expected 'fill' or 'fit'; got 'fil'",
        ),
        ({"size": [0, 2]}, "stage 's': ValueError: size must be positive"),
    ],
)
def test_a_wrong_option_names_stage_key_expected_and_got(op, options, says):
    with pytest.raises(ConfigError) as caught:
        create(StageConfig(op=op("Sized"), name="s", options=options))
    assert str(caught.value) == says


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("image.decoed", "no op 'image.decoed'; expected \"module:Class\" or one of"),
        ("no_such_module_here:X", "ModuleNotFoundError: No module named 'no_such_module_here'"),
        ("installed_stages:Missing", "AttributeError"),
        ("installed_stages:NotAStage", "NotAStage has no method `process`"),
        ("installed_stages:OPS", "is a mappingproxy; expected a class or a Python function"),
        ("subprocess:Popen", "Popen has no method `process`"),
        ("os:system", "is a builtin_function_or_method; expected a class or a Python function"),
        ("a:b:c", 'expected "module:attribute"'),
    ],
)
def test_a_wrong_op_is_told(op, name, says):
    with pytest.raises(ConfigError, match="stage ") as caught:
        create(StageConfig(op=name))
    assert says in str(caught.value)


def test_infer_is_an_op_and_says_which_model_it_needs():
    stage = create(StageConfig(op="infer", options={"model": "m", "inputs": {"x": "image"}}))
    assert isinstance(stage, Infer)
    assert stage.needs == ("m",)
    check_options("infer", {"model": "m"}, [{}, {"model": 3}, {"model": ""}, {"model": "m", "inputs": {"x": 1}}])


def test_user_functions_take_their_options_by_keyword(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from .helper import END\n"
        "def shout(payload, ctx, *, times: int = 1):\n    payload.text += END * times\n    return payload\n"
    )
    (tmp_path / "helper.py").write_text("END = '!'\n")
    modules = set(sys.modules)
    factory = StageFactory(tmp_path)
    stage = factory.create(StageConfig(op="mine:shout", options={"times": 3}))
    assert stage.process(Payload(text="hi"), Context()).text == "hi!!!"
    assert factory.create(StageConfig(op="mine:shout")).process(Payload(text="hi"), Context()).text == "hi!"
    with pytest.raises(ConfigError, match="unknown option 'payload'; expected 'times'"):
        factory.create(StageConfig(op="mine:shout", options={"payload": 1}))
    with pytest.raises(ConfigError, match="option 'times': expected int, got str; got '3'"):
        factory.create(StageConfig(op="mine:shout", options={"times": "3"}))
    factory.close()
    assert set(sys.modules) == modules


def test_coroutine_functions_stay_coroutines(tmp_path):
    import inspect

    (tmp_path / "mine.py").write_text("async def later(payload, ctx, *, k: int = 1):\n    return payload\n")
    factory = StageFactory(tmp_path)
    for options in ({}, {"k": 2}):
        assert inspect.iscoroutinefunction(factory.create(StageConfig(op="mine:later", options=options)).process)
    factory.close()


def test_a_misspelt_module_is_told_where_it_was_looked_for(tmp_path):
    (tmp_path / "stages.py").write_text("")
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").write_text("import not_a_package_at_all")
    factory = StageFactory(tmp_path)
    for op, says in {
        "stage:Parse": f"No module named 'stage', neither in {tmp_path} nor installed; did you mean 'stages'?",
        "helper.text:Parse": f"neither in {tmp_path} nor installed; did you mean 'helpers'?",
        "quite_different:Parse": f"No module named 'quite_different', neither in {tmp_path} nor installed",
        "helpers:Parse": "No module named 'not_a_package_at_all'",
    }.items():
        with pytest.raises(ConfigError) as caught:
            factory.create(StageConfig(op=op))
        assert str(caught.value).endswith(says)
    factory.close()


def test_broken_user_code_is_a_config_error_with_its_cause(tmp_path):
    (tmp_path / "mine.py").write_text("1/0")
    with pytest.raises(ConfigError, match="stage 'mine:x': 'mine:x': ZeroDivisionError") as caught:
        StageFactory(tmp_path).create(StageConfig(op="mine:x"))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
