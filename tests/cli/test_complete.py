import os
import subprocess
import sys

import pytest

from headrace.store.pull import pull_model
from headrace.store.versions import ModelStore


@pytest.fixture
def complete(tmp_path):
    """What bash is given for a command line whose last word is to be completed, run in a folder with a repository."""
    (tmp_path / "net.onnx").write_bytes(b"net")
    for version in ("v1", "v2"):
        (tmp_path / "net.onnx").write_bytes(version.encode())
        pull_model(ModelStore(tmp_path / "models"), str(tmp_path / "net.onnx"), version=version)

    def run(*words):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
        environment |= {
            "_HEADRACE_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(["headrace", *words]),
            "COMP_CWORD": str(len(words)),
        }
        done = subprocess.run(
            [os.path.join(os.path.dirname(sys.executable), "headrace")],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stderr == ""
        return done.stdout.split()

    return run


def test_values_are_proposed(complete):
    assert complete("models", "switch", "n") == ["net"]
    assert complete("models", "switch", "net", "v") == ["v1", "v2"]
    assert complete("models", "remove", "net:") == ["net:v1", "net:v2"]
    assert complete("pull", "o") == ["ocr"]
    assert complete("pull", "./") == ["./models/", "./net.onnx"]
    assert complete("infer", "n") == ["net"]
    assert complete("bench", "llm", "n") == ["net"]
    assert complete("infer", "net", "--type", "audio/w") == ["audio/wav"]


def test_environments_algorithms_and_runs_are_proposed(complete, tmp_path):
    assert complete("train", "headrace/Cart") == ["headrace/CartPole-v1"]
    assert complete("sweep", "headrace/Cart") == ["headrace/CartPole-v1"]
    assert complete("train", "--algo", "d") == ["dqn"]
    (tmp_path / "runs" / "pole").mkdir(parents=True)
    (tmp_path / "runs" / "pole" / "last.ckpt").touch()
    assert complete("eval", "policy", "r") == ["runs/"]
    assert complete("eval", "policy", "runs/") == ["runs/pole"]
    assert complete("rollout", "runs/pole/") == ["runs/pole/last.ckpt"]
    assert complete("rollout", "headrace/Cart") == ["headrace/CartPole-v1"]
    assert complete("curve", "runs/p") == ["runs/pole"]
    assert complete("publish", "runs/p") == ["runs/pole"]
    assert complete("eval", "policy", "gone/") == []


def test_what_cannot_be_found_proposes_nothing_and_raises_nothing(complete):
    assert complete("models", "switch", "gone", "v") == []
    assert complete("models", "switch", "--repo", "elsewhere", "n") == []
    assert complete("models", "--repo", "elsewhere", "switch", "n") == []
    assert complete("models", "remove", "../x:") == []
    assert complete("pull", "no/such/") == []
