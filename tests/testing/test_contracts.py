"""The contract suites must catch what they promise to catch, or they prove nothing."""

import asyncio

import numpy as np
import pytest

from headrace.errors import InvalidInput, LoadFailed, NotFound, Unavailable
from headrace.serve.protocol import Payload, TensorSpec
from headrace.serve.tensors import check_tensors
from headrace.store.edit import Fetched
from headrace.store.sources.file import FileSource
from headrace.testing.backend import check_backend, check_failed_load
from headrace.testing.source import check_source
from headrace.testing.stage import check_stage

SAMPLE = {"x": np.ones((2, 3), np.float32)}


class Good:
    inputs = outputs = ()
    thread_safe = True
    _loaded = False

    def load(self):
        self.inputs = (TensorSpec("x", np.dtype(np.float32), (-1, 3)),)
        self.outputs = (TensorSpec("y", np.dtype(np.float32), (-1, 3)),)
        self._loaded = True

    def warm(self):
        pass

    def infer(self, tensors):
        if not self._loaded:
            raise Unavailable("not loaded")
        check_tensors(self.inputs, tensors)
        return {"y": tensors["x"] * 2}

    def drain(self):
        pass

    def free(self):
        self._loaded = False


class ChangesInput(Good):
    def infer(self, tensors):
        answer = super().infer(tensors)
        tensors["x"] += 1
        return answer


class WrongDtype(Good):
    def infer(self, tensors):
        return {"y": super().infer(tensors)["y"].astype(np.float64)}


class SharedAnswer(Good):
    _answer = None

    def infer(self, tensors):
        fresh = super().infer(tensors)["y"]
        if self._answer is None:
            self._answer = fresh
        return {"y": self._answer}


class Unchecked(Good):
    def infer(self, tensors):
        if not self._loaded:
            raise Unavailable("not loaded")
        return {"y": np.float32(tensors.get("x", np.ones((2, 3))).real * 2)}


class ForgetsToFree(Good):
    def free(self):
        pass


class FreesOnce(Good):
    def free(self):
        if not self._loaded:
            raise RuntimeError("double free")
        self._loaded = False


class SharedState(Good):
    alive = True

    def load(self):
        super().load()
        SharedState.alive = True

    def infer(self, tensors):
        if not SharedState.alive:
            raise RuntimeError("another instance freed me")
        return super().infer(tensors)

    def free(self):
        super().free()
        SharedState.alive = False


class NotThreadSafe(Good):
    _busy = False

    def infer(self, tensors):
        import time

        if self._busy:
            raise RuntimeError("two at once")
        self._busy = True
        time.sleep(0.001)
        self._busy = False
        return super().infer(tensors)


def test_a_good_backend_passes():
    check_backend(Good, SAMPLE)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (ChangesInput, "changed its input 'x'"),
        (WrongDtype, "output 'y' is float64, declared float32"),
        (SharedAnswer, "two calls share one array"),
        (Unchecked, "an absent tensor must raise InvalidInput"),
        (ForgetsToFree, "infer after free must raise Unavailable"),
        (FreesOnce, "double free"),
        (SharedState, "another instance freed me|infer after free"),
        (NotThreadSafe, "infer from several threads"),
    ],
)
def test_a_bad_backend_is_caught(kind, says):
    with pytest.raises((AssertionError, RuntimeError), match=says):
        check_backend(kind, SAMPLE)


def test_a_load_that_must_fail_and_does_not_is_caught():
    with pytest.raises(AssertionError, match="must raise LoadFailed"):
        check_failed_load(Good)

    class Silent(Good):
        def load(self):
            raise LoadFailed("no")

    check_failed_load(Silent, "no")
    with pytest.raises(AssertionError, match="must mention 'file'"):
        check_failed_load(Silent, "file")


class Upper:
    def process(self, payload, ctx):
        if not payload.text:
            raise InvalidInput("text is empty")
        payload.text = payload.text.upper()
        return payload


class OneArgument:
    def process(self, payload):
        return payload


class KeepsThePayload(Upper):
    kept = None

    def process(self, payload, ctx):
        self.kept = self.kept or payload
        return self.kept


class MixesRequests(Upper):
    async def process(self, payload, ctx):
        self.text = getattr(self, "text", "") + payload.text
        await asyncio.sleep(0)
        payload.text = self.text
        return payload


class BlamesItself(Upper):
    def process(self, payload, ctx):
        payload.text = payload.text[0] + payload.text[1:]
        return payload


def test_a_good_stage_passes_and_gives_its_answer():
    assert check_stage(Upper(), lambda: Payload(text="a"), refuses=[Payload]).text == "A"


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (object, "object has no method `process`|expected a stage"),
        (OneArgument, r"must take \(payload, ctx\)"),
        (KeepsThePayload, "share one payload"),
        (MixesRequests, "changed each other's answer"),
        (BlamesItself, r"StageFailed: .*blames the caller"),
    ],
)
def test_a_bad_stage_is_caught(kind, says):
    with pytest.raises(AssertionError, match=says):
        check_stage(kind(), lambda: Payload(text="a"), refuses=[Payload])


def test_the_sources_contract(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.onnx").write_bytes(b"abc")
    uri = str(tmp_path / "m")
    check_source(lambda: FileSource(uri), absent=lambda: FileSource(str(tmp_path / "none")))

    class Lies(FileSource):
        def fetch(self, target, progress, /):
            fetched = super().fetch(target, progress)
            (target / "model.onnx").write_bytes(b"abd")
            return fetched

    class Hides(FileSource):
        def fetch(self, target, progress, /):
            fetched = super().fetch(target, progress)
            (target / "more").write_bytes(b"")
            return Fetched(fetched.source, fetched.files)

    with pytest.raises(AssertionError, match="the digest is not that of the file"):
        check_source(lambda: Lies(uri))
    with pytest.raises(AssertionError, match="differ"):
        check_source(lambda: Hides(uri))
    with pytest.raises(AssertionError, match="must raise NotFound"):
        check_source(lambda: FileSource(uri), absent=lambda: FileSource(uri))
    with pytest.raises(NotFound):
        check_source(lambda: FileSource(str(tmp_path / "none")))
