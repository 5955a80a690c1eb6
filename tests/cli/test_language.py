"""`headrace generate` and `headrace chat` over a tiny model, as scripts call them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.testing.language import END_ID, save_language_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_language_model(tmp_path_factory.mktemp("language") / "tiny.gguf", context=60_000)


@pytest.fixture
def run(model: Path):
    """`run("generate", …)` is the standard output; `fails=True` asks for an error and gives that."""

    def call(command: str, *args: str, stdin: str | None = None, fails: bool = False) -> str:
        result = CliRunner().invoke(app, [command, str(model), *args, "--threads", "1"], input=stdin)
        if fails:
            assert result.exception is not None
            return str(result.exception)
        assert result.exception is None, result.exception
        return result.stdout

    return call


def test_the_prompt_is_an_argument_or_standard_input(run) -> None:
    text = run("generate", "Hello", "--max-tokens", "12")
    assert len(text) > 8
    assert text == run("generate", "-", "--max-tokens", "12", stdin="Hello")
    assert text == run("generate", "--max-tokens", "12", stdin="Hello")
    assert text == run("generate", "Hello", "--max-tokens", "12", "--no-stream")


def test_json_tells_everything(run) -> None:
    answer = json.loads(run("generate", "Hello", "--max-tokens", "6", "--json", "--logprobs", "2", "-n", "2"))
    assert [one["finish_reason"] for one in answer["answers"]] == ["length", "length"]
    assert answer["completion_tokens"] == 12
    assert answer["tokens_per_s"] > 0
    for one in answer["answers"]:
        assert "".join(logprob["text"] for logprob in one["logprobs"]) == one["text"]
        assert [logprob["token"] for logprob in one["logprobs"]] == one["tokens"]
        assert all(len(logprob["top"]) == 2 for logprob in one["logprobs"])


def test_every_sampling_option_reaches_the_engine(run) -> None:
    plain = run("generate", "Hello", "--max-tokens", "30")
    assert run("generate", "Hello", "--max-tokens", "30", "--temperature", "1", "--top-k", "1") == plain
    drawn = ("generate", "Hello", "--max-tokens", "30", "--temperature", "1", "--seed", "5")
    assert run(*drawn) == run(*drawn) != plain
    assert run(*drawn, "--min-p", "1") == plain
    assert run(*drawn, "--top-p", "0.000001") == plain
    assert run("generate", "Hello", "--logit-bias", f"{END_ID}=100") == "\n"
    assert run("generate", "Hello", "--logit-bias", f"{END_ID}=100", "--ignore-eos", "--max-tokens", "5") != plain
    assert (
        run("generate", "Hello", "--max-tokens", "30", "--stop", plain[3:5]) == plain[: plain.index(plain[3:5])] + "\n"
    )
    assert run("generate", "Hello", "--max-tokens", "30", "--lookup", "4") == plain
    for option in ("--repetition-penalty", "--presence-penalty", "--frequency-penalty"):
        assert run("generate", "Hello", "--max-tokens", "30", option, "1.8") != plain


def test_the_answer_can_be_bound_to_a_form(run, tmp_path: Path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text('{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}')
    grammar.write_text('start: "yes" | "no"')
    assert re.fullmatch(r"[0-9]{3}\n", run("generate", "Hello", "--regex", "[0-9]{3}"))
    assert run("generate", "Hello", "--grammar", str(grammar)) in ("yes\n", "no\n")
    assert run("generate", "Hello", "--json-schema", str(schema), "--max-tokens", "9").startswith("{")
    assert run("generate", "Hello", "--json-schema", "-", "--max-tokens", "9").startswith("{")
    as_text = ("generate", "Hello", "--json-schema", schema.read_text(), "--max-tokens", "9")
    assert run(*as_text) == run("generate", "Hello", "--json-schema", str(schema), "--max-tokens", "9")


def test_why_it_ended_is_told(model: Path) -> None:
    def errors(*args: str) -> str:
        result = CliRunner().invoke(app, ["generate", str(model), "Hello", *args])
        assert result.exception is None, result.exception
        return result.stderr

    assert "cut" in errors("--regex", "[0-9]{9}", "--max-tokens", "2")
    assert "cut" in errors("--regex", "[0-9]{9}", "--max-tokens", "2", "--json")
    assert errors("--max-tokens", "2") == errors("--regex", "[0-9]{2}") == ""
    assert "finish reason: length, length" in errors("--max-tokens", "2", "-n", "2", "--stats")


def test_an_answer_of_no_stated_length_takes_the_room_there_is(run) -> None:
    answer = json.loads(run("generate", "Hello", "--context", "64", "--ignore-eos", "--json"))
    assert answer["prompt_tokens"] + answer["completion_tokens"] == 64
    long = ("generate", "Hello " * 100, "--context", "64")
    assert run(*long, fails=True).startswith("prompt: ")
    answer = json.loads(run(*long, "--truncate", "--ignore-eos", "--json"))
    assert answer["completion_tokens"] == 32
    assert "max_tokens" in run("generate", "Hello", "--context", "64", "--max-tokens", "64", fails=True)


def test_a_line_break_at_the_end_of_the_input_is_no_part_of_it(run) -> None:
    def tokens(stdin: str) -> int:
        return json.loads(run("generate", "--max-tokens", "1", "--json", stdin=stdin))["prompt_tokens"]

    assert tokens("Hello\n") == tokens("Hello\r\n") == tokens("Hello")
    assert tokens("Hello\n\n") == tokens("Hello\n") + 1


def test_the_cache_says_where_the_weights_came_from(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.chdir(model.parent)
    assert CliRunner().invoke(app, ["generate", model.name, "Hello", "--max-tokens", "1"]).exit_code == 0
    (row,) = json.loads(CliRunner().invoke(app, ["cache", "--json"]).stdout)["weights"]
    assert row["model"] == str(model.resolve())


@pytest.fixture
def repo(model: Path, tmp_path: Path) -> Path:
    """A repository that has the model under the name `tiny`."""
    version = tmp_path / "models" / "tiny" / "1"
    version.mkdir(parents=True)
    (version / "tiny.gguf").symlink_to(model)
    (version.parent / "current").symlink_to("1")
    return tmp_path / "models"


def test_what_headrace_toml_says_of_a_model_counts(repo: Path) -> None:
    def run(command: str, *args: str) -> tuple[str, str]:
        result = CliRunner().invoke(app, [command, "tiny", *args, "--repo", str(repo)], input="Hello")
        return result.stdout, str(result.exception or "")

    config = repo / "tiny" / "headrace.toml"
    plain = run("tokenize", "--chat")
    config.write_text(
        'backend = "llm"\n[llm]\nthreads = 1\nmax_context = 40\nchat_template = "{{ messages[0].content }}"\n'
    )
    told = json.loads(run("generate", "--chat", "--ignore-eos", "--json")[0])
    assert told["prompt_tokens"] + told["completion_tokens"] == 40
    own = json.loads(run("generate", "--chat", "--ignore-eos", "--json", "--context", "48")[0])
    assert own["prompt_tokens"] + own["completion_tokens"] == 48
    assert run("tokenize", "--chat") != plain
    config.write_text('backend = "llm"\n[llm]\nmax_contxt = 40\n')
    for command in ("generate", "chat", "tokenize"):
        error = run(command)[1]
        assert str(config) in error
        assert "max_context" in error


def test_a_chat_template_is_used_where_asked(run) -> None:
    plain = run("generate", "Hello", "--max-tokens", "8")
    chat = run("generate", "Hello", "--chat", "--max-tokens", "8")
    assert len({plain, chat, run("generate", "Hello", "--chat", "--system", "Be brief.", "--max-tokens", "8")}) == 3


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("",), "at least one token"),
        (("Hello", "--temperature", "999"), "temperature: expected a number from 0 to 100"),
        (("Hello", "--system", "x"), "--system goes with --chat"),
        (("Hello", "--logprobs", "1"), "--logprobs goes with --json"),
        (("Hello", "--logit-bias", "a=b"), "expected TOKEN=BIAS"),
        (("Hello", "--logit-bias", "99999=1"), "expected token ids below"),
        (("Hello", "--regex", "a", "--json-schema", "-"), "exclude each other"),
        (("Hello", "--regex", "(("), "grammar"),
        (("Hello", "--json-schema", "/no/such/file"), "/no/such/file: cannot be read"),
        (("Hello " * 100, "--context", "64", "--max-tokens", "8"), "expected a prompt of at most"),
        (("Hello", "--context", "100000"), "context"),
    ],
)
def test_what_is_wrong_is_said(run, args: tuple[str, ...], says: str) -> None:
    assert says in run("generate", *args, fails=True)


def test_what_is_no_utf_8_is_refused(model: Path) -> None:
    result = CliRunner().invoke(app, ["generate", str(model)], input=b"x\xe9")
    assert "expected UTF-8 text, got byte 0xe9" in str(result.exception)


def test_a_model_that_is_not_there_is_told(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["generate", "nothing", "Hello", "--repo", str(tmp_path)])
    assert "'nothing' is no file or folder" in str(result.exception)
    assert "--repo or HEADRACE_REPO" in str(result.exception)


def test_a_long_prompt_can_be_cut(run) -> None:
    answer = json.loads(run("generate", "Hello " * 100, "--context", "64", "--max-tokens", "8", "--truncate", "--json"))
    assert answer["truncated_tokens"] > 0
    assert answer["prompt_tokens"] == 56


def test_each_line_of_a_pipe_is_a_question(run) -> None:
    options = ("--temperature", "0", "--max-tokens", "10")
    answers = run("chat", *options, stdin="Hello\n\nAnd then?\n").splitlines()
    assert len(answers) == 2
    assert run("chat", *options, stdin="And then?\n").splitlines() != answers[1:], "the second knows of the first"
