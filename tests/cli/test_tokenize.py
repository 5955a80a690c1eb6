"""`headrace tokenize`: text to tokens and back, as a line for people or JSON for scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.testing.language import END_ID, save_language_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_language_model(tmp_path_factory.mktemp("language") / "tiny.gguf")


@pytest.fixture
def run(model: Path):
    def call(*args: str, stdin: str | bytes | None = None) -> Any:
        return CliRunner().invoke(app, ["tokenize", str(model), *args], input=stdin)

    return call


def test_each_token_has_a_line_and_the_count_goes_to_stderr(run) -> None:
    result = run("the é")
    lines = result.stdout.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines] == ["'t'", "'he'", "' '", "'\\xc3'", "'\\xa9'"]
    assert result.stderr == "5 tokens\n"


def test_json_is_one_object(run) -> None:
    told = json.loads(run("a\n", "--json").stdout)
    assert told == {"count": 2, "ids": told["ids"], "pieces": ["a", "\n"]}


def test_special_tokens_are_parsed_where_asked(run) -> None:
    assert json.loads(run("<|im_end|>", "--special", "--json").stdout)["ids"] == [END_ID]
    assert "special" in run("<|im_end|>", "--special").stdout
    assert END_ID not in json.loads(run("<|im_end|>", "--json").stdout)["ids"]


def test_a_chat_is_shown_as_the_model_sees_it(run) -> None:
    ids = json.loads(run("--chat", "hi", "--system", "Be brief.", "--json").stdout)["ids"]
    text = run("--decode", " ".join(map(str, ids))).stdout
    assert text == ("<|im_start|>system\nBe brief.<|im_end|><|im_start|>user\nhi<|im_end|><|im_start|>assistant\n\n")


@pytest.mark.parametrize("form", ["{} {}", "{},{}", "[{}, {}]\n", "{}\n{}"])
def test_ids_become_text(run, form: str) -> None:
    ids = json.loads(run("hi", "--json").stdout)["ids"]
    assert run("--decode", form.format(*ids)).stdout == "hi\n"
    assert run("--decode", stdin=form.format(*ids)).stdout == "hi\n"
    assert json.loads(run("--decode", form.format(*ids), "--json").stdout) == {"count": 2, "text": "hi"}


def test_standard_input_is_taken_as_it_is(run) -> None:
    assert json.loads(run("--json", stdin="a\n").stdout) == json.loads(run("a\n", "--json").stdout)
    assert json.loads(run("-", "--json", stdin="").stdout)["ids"] == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--decode", "1 x"), "expected token ids such as 504 1223, got 'x'"),
        (("--decode", "99999"), "token id 99999: expected one from 0 to"),
        (("--decode", "1", "--chat"), "--decode does not go with"),
        (("--chat", "x", "--bare"), "--chat does not go with"),
        (("x", "--system", "y"), "--system goes with --chat"),
    ],
)
def test_what_cannot_be_is_told(run, args: tuple[str, ...], message: str) -> None:
    assert message in str(run(*args).exception)


def test_standard_input_that_is_no_text_is_told(run) -> None:
    assert "expected UTF-8 text" in str(run(stdin=b"\xff\xfe").exception)
