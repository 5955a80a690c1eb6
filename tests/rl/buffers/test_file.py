"""Replay memories on disk: what was saved comes back and goes on; damage is seen; a failed save leaves the last one."""

import subprocess
import sys

import numpy as np
import pytest

from headrace.errors import IntegrityError, InvalidInput, NotFound
from headrace.rl.buffers import Field, PrioritisedReplay, ReplayBuffer

FIELDS = (Field("obs", (3,)), Field("n", (), np.int64), Field("done", (), np.bool_))


def rows(first, n):
    numbers = np.arange(first, first + n)
    return {"obs": np.repeat(numbers[:, None], 3, 1).astype(np.float32), "n": numbers, "done": numbers % 2 == 0}


def same(left, right):
    return (
        all(np.array_equal(left[name], right[name]) for name in left.rows)
        and np.array_equal(left.slots, right.slots)
        and np.array_equal(left.sequences, right.sequences)
        and np.array_equal(left.weights, right.weights)
    )


@pytest.fixture
def saved(tmp_path):
    buffer = ReplayBuffer(FIELDS, 50, seed=9)
    buffer.push(**rows(0, 70))
    buffer.save(tmp_path / "memory")
    return tmp_path / "memory"


@pytest.mark.parametrize("pushed", [0, 1, 30, 50, 77, 1000])
def test_a_buffer_goes_on_from_its_file(pushed, tmp_path):
    buffer = ReplayBuffer(FIELDS, 50, seed=3)
    if pushed:
        buffer.push(**rows(0, pushed))
        buffer.sample(10)
    path = tmp_path / "memory"
    assert buffer.save(path) == min(pushed, 50)
    loaded = ReplayBuffer.load(path)
    assert (loaded.capacity, loaded.fields, len(loaded)) == (50, FIELDS, min(pushed, 50))
    assert loaded.window == buffer.window
    for both in (buffer, loaded):
        both.push(**rows(pushed, 5))
    for _ in range(5):
        assert same(buffer.sample(20), loaded.sample(20))
    assert loaded.name != buffer.name
    assert [file.name for file in tmp_path.iterdir()] == ["memory"]


def test_priorities_go_on_too(tmp_path):
    buffer = PrioritisedReplay(FIELDS, 40, seed=3, alpha=0.9, epsilon=0.1)
    buffer.push(**rows(0, 55))
    for number in range(5):
        buffer.update_priorities(buffer.sample(16), np.linspace(0, 3 + number, 16, dtype=np.float32))
    buffer.save(tmp_path / "memory")
    loaded = PrioritisedReplay.load(tmp_path / "memory", name=None)
    assert (loaded.alpha, loaded.epsilon) == (0.9, 0.1)
    for both in (buffer, loaded):
        both.push(**rows(55, 3))
    for number in range(10):
        batches = [both.sample(16, beta=0.1 * number) for both in (buffer, loaded)]
        assert same(*batches)
        for both, batch in zip((buffer, loaded), batches, strict=True):
            both.update_priorities(batch, np.linspace(0, 7, 16, dtype=np.float32))
    loaded.check_integrity()


def test_large_buffers_are_saved_in_many_chunks(tmp_path):
    fields = [Field("x", (1000,)), Field("n", (), np.int64)]
    buffer = ReplayBuffer(fields, 3000)
    numbers = np.arange(3500)
    buffer.push(x=np.repeat(numbers[:, None], 1000, 1).astype(np.float32), n=numbers)
    assert buffer.save(tmp_path / "memory") == 3000
    loaded = ReplayBuffer.load(tmp_path / "memory")
    batch = loaded.gather(np.arange(500, 3500) % 3000)
    assert (batch["n"] == np.arange(500, 3500)).all()
    assert (batch["x"] == batch["n"][:, None]).all()


def test_any_changed_missing_or_added_byte_is_seen(saved):
    good = saved.read_bytes()
    places = [*range(60), *range(60, len(good), 97), len(good) - 1]
    for place in places:
        saved.write_bytes(good[:place] + bytes([good[place] ^ 0x20]) + good[place + 1 :])
        with pytest.raises(IntegrityError):
            ReplayBuffer.load(saved)
        saved.write_bytes(good[:place])
        with pytest.raises(IntegrityError):
            ReplayBuffer.load(saved)
    saved.write_bytes(good + b"x")
    with pytest.raises(IntegrityError):
        ReplayBuffer.load(saved)
    saved.write_bytes(good)
    assert len(ReplayBuffer.load(saved)) == 50


def test_foreign_files_and_other_kinds(saved, tmp_path):
    with pytest.raises(NotFound, match="nowhere"):
        ReplayBuffer.load(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="no priorities"):
        PrioritisedReplay.load(saved)
    buffer = PrioritisedReplay(FIELDS, 4)
    buffer.save(saved)
    with pytest.raises(InvalidInput, match="priorities"):
        ReplayBuffer.load(saved)
    saved.write_bytes(b"not a replay memory")
    with pytest.raises(IntegrityError, match="not a saved replay memory"):
        ReplayBuffer.load(saved)


def test_a_disk_that_fills_up_leaves_the_file_of_before(saved):
    """The process may write no more than 20 kB to a file; its memory needs more."""
    before = saved.read_bytes()
    code = f"""if True:
        import resource, numpy as np
        from headrace.rl.buffers import Field, ReplayBuffer
        buffer = ReplayBuffer([Field("x", (100,))], 1000)
        buffer.push(x=np.ones((1000, 100), np.float32))
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            buffer.save({str(saved)!r})
        except OSError as error:
            print(error.errno, buffer.sample(1)["x"].sum())
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["27", "100.0"], done.stderr
    assert saved.read_bytes() == before
    assert [file.name for file in saved.parent.iterdir()] == [saved.name]
