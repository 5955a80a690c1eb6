"""Rows in, rows out: arrays of any layout, errors that name the field, other processes by name."""

import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

from headrace.errors import Conflict, IntegrityError, InvalidInput, NotFound, Unavailable
from headrace.rl.buffers import Field, ReplayBuffer

FIELDS = (
    Field("obs", (3, 2)),
    Field("action", (), np.int32),
    Field("reward", (), np.float64),
    Field("pixels", (5,), np.uint8),
    Field("done", (), np.bool_),
    Field("phase", (2,), np.complex64),
    Field("half", (3,), np.float16),
    Field("big", (), np.uint64),
)


def rows(first, n, fields=FIELDS):
    """n rows whose every value follows from first, first + 1 …"""
    made = {}
    for field in fields:
        numbers = np.arange(first, first + n).reshape(n, *[1] * len(field.shape))
        within = np.arange(int(np.prod(field.shape, initial=1))).reshape(field.shape)
        made[field.name] = ((numbers * 7 + within) % 101).astype(field.dtype)
    return made


def equal(batch, expected):
    return all(
        np.array_equal(batch[name], value) and batch[name].dtype == value.dtype for name, value in expected.items()
    )


def oldest_first(buffer):
    return np.arange(*buffer.window) % buffer.capacity


def test_the_newest_rows_stay_and_come_back_as_they_went_in():
    buffer = ReplayBuffer(FIELDS, 50)
    first = 0
    for n in (1, 5, 44, 1, 30, 50, 130):
        assert buffer.push(**rows(first, n)) == n
        first += n
        held = min(first, 50)
        assert len(buffer) == held
        assert buffer.window == (first - held, first)
        batch = buffer.gather(oldest_first(buffer))
        assert equal(batch, rows(first - held, held))
        assert batch.sequences.tolist() == list(range(first - held, first))
        assert buffer.check_integrity() == (held, 50 - held, 0, 0)
    assert buffer.stats == (0, 0, 0)


def test_every_row_drawn_is_a_row_that_was_pushed():
    buffer = ReplayBuffer(FIELDS, 64, seed=5)
    buffer.push(**rows(0, 100))
    batch = buffer.sample(1000)
    assert set(batch.sequences.tolist()) == set(range(36, 100))
    every = rows(0, 100)
    assert equal(batch, {name: value[batch.sequences] for name, value in every.items()})
    assert (batch.slots == batch.sequences % 64).all()
    assert (batch.weights == 1).all()
    assert len(batch) == 1000


def test_draws_depend_on_the_seed_and_on_which_draw_it_is():
    made = []
    for seed in (1, 1, 2):
        buffer = ReplayBuffer([Field("x")], 100, seed=seed)
        buffer.push(x=np.arange(100, dtype=np.float32))
        made.append([buffer.sample(20).sequences.tolist() for _ in range(3)])
    assert made[0] == made[1] != made[2]
    assert made[0][0] != made[0][1] != made[0][2]


def test_single_rows_other_dtypes_and_other_layouts_are_taken():
    buffer = ReplayBuffer([Field("obs", (3, 2)), Field("n", (), np.int32)], 10)
    buffer.push(obs=np.ones((3, 2), np.float32), n=np.int32(7))
    buffer.push(obs=[[1, 2], [3, 4], [5, 6]], n=3)
    wide = np.arange(24, dtype=np.float64).reshape(4, 3, 2)
    buffer.push(obs=wide, n=np.arange(4))
    turned = np.arange(24, dtype=np.float32).reshape(4, 2, 3).transpose(0, 2, 1)
    buffer.push(obs=turned, n=np.arange(8, dtype=np.int32)[::2])
    batch = buffer.gather(np.arange(10))
    assert batch["n"].tolist() == [7, 3, 0, 1, 2, 3, 0, 2, 4, 6]
    assert (batch["obs"][0] == 1).all()
    assert batch["obs"][1].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert np.array_equal(batch["obs"][2:6], wide)
    assert np.array_equal(batch["obs"][6:], turned)


def test_reversed_and_repeated_rows_are_read_where_they_lie():
    buffer = ReplayBuffer([Field("x", (2,))], 10)
    array = np.arange(8, dtype=np.float32).reshape(4, 2)
    buffer.push(x=array[::-1])
    buffer.push(x=np.broadcast_to(array[1], (3, 2)))
    assert buffer.gather(np.arange(7))["x"].tolist() == [*array[::-1].tolist(), *[array[1].tolist()] * 3]


def test_rows_come_straight_into_arrays_of_the_caller():
    buffer = ReplayBuffer([Field("obs", (2,)), Field("n", (), np.int64)], 10)
    buffer.push(obs=np.arange(20, dtype=np.float32).reshape(10, 2), n=np.arange(10))
    record = np.zeros(6, np.dtype([("n", "i8"), ("obs", "f4", (2,))]))
    batch = buffer.new_batch(6)
    batch.rows.update(obs=record["obs"], n=record["n"])
    assert buffer.sample(out=batch) is batch
    assert record["n"].tolist() == batch.sequences.tolist()
    assert (record["obs"][:, 0] == 2 * record["n"]).all()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"obs": np.zeros((4, 3), np.float32)}, r"'obs': expected float32\[n, 2\] or float32\[2\], got .*\(4, 3\)"),
        ({"obs": np.zeros((3, 2), np.float32)}, r"'n': expected 3 rows as in the first field, got .*\(4,\)"),
        ({"obs": np.zeros(2, np.float32)}, r"'n': expected a single row"),
        ({"obs": np.zeros((4, 2), np.complex64)}, r"'obs': expected float32\[n, 2\], got complex64"),
        ({"n": np.zeros(4, np.float32)}, r"'n': expected int32\[n\], got float32"),
        ({"n": "four"}, r"'n': expected int32\[n\], got str"),
        ({"n": None}, r"'n': expected int32\[n\], got NoneType"),
        ({"n": [1, [2, 3]]}, r"'n': expected int32\[n\], got list"),
        ({"more": np.zeros(4)}, r"expected the fields obs, n; there is no 'more'"),
        ({"n": ...}, r"'n': expected int32\[n\], got"),
    ],
)
def test_arrays_that_do_not_fit_are_named_and_nothing_is_pushed(change, match):
    buffer = ReplayBuffer([Field("obs", (2,)), Field("n", (), np.int32)], 10)
    good = {"obs": np.zeros((4, 2), np.float32), "n": np.zeros(4, np.int32)}
    with pytest.raises(InvalidInput, match=match):
        buffer.push(**{**good, **change})
    with pytest.raises(InvalidInput, match=r"'n': expected int32\[n\], got nothing"):
        buffer.push(obs=good["obs"])
    assert len(buffer) == 0
    buffer.push(**good)
    assert len(buffer) == 4


def test_batches_that_do_not_fit_are_named():
    buffer = ReplayBuffer([Field("x", (2,))], 10)
    with pytest.raises(Unavailable, match="nothing was pushed yet"):
        buffer.sample(1)
    buffer.push(x=np.ones((10, 2), np.float32))
    for rows_, match in [
        (np.zeros((4, 2)), r"'x': expected a writable array float32\[n, 2\] with contiguous rows, got float64"),
        (np.zeros((3, 2), np.float32), "'x': expected 4 rows"),
        (np.zeros((2, 4), np.float32).T, "contiguous rows"),
        (np.broadcast_to(np.zeros(2, np.float32), (4, 2)), "writable"),
    ]:
        batch = buffer.new_batch(4)
        batch.rows["x"] = rows_
        with pytest.raises(InvalidInput, match=match):
            buffer.sample(out=batch)
    with pytest.raises(InvalidInput, match="expected a batch of 5 rows, got one of 4"):
        buffer.sample(5, out=buffer.new_batch(4))
    with pytest.raises(InvalidInput, match="expected a number of rows"):
        buffer.sample()
    with pytest.raises(InvalidInput, match=r"slots\[1\]: expected 0..9, got 10"):
        buffer.gather(np.array([0, 10]))
    assert len(buffer.sample(0)) == 0


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ReplayBuffer([], 10), "expected 1..32"),
        (lambda: ReplayBuffer([Field("x"), Field("x")], 10), "each name once"),
        (lambda: ReplayBuffer([Field("x")], 0), "capacity"),
        (lambda: ReplayBuffer([Field(f"x{i}") for i in range(33)], 10), "expected 1..32"),
        (lambda: Field("not a name"), "identifier"),
        (lambda: Field("x", (0,)), "at least 1"),
        (lambda: Field("x", (), object), "numbers"),
        (lambda: Field("x", (), ">f4"), "numbers of this machine"),
        (lambda: Field("x", (), "no such"), "no dtype"),
    ],
)
def test_fields_and_capacities_that_cannot_be(make, match):
    with pytest.raises(InvalidInput, match=match):
        make()


def test_a_buffer_is_found_by_its_name_and_goes_with_its_owner():
    buffer = ReplayBuffer(FIELDS, 16)
    buffer.push(**rows(0, 4))
    other = ReplayBuffer.attach(buffer.name)
    assert other.fields == buffer.fields
    other.push(**rows(4, 4))
    assert equal(buffer.gather(np.arange(8)), rows(0, 8))
    assert pickle.loads(pickle.dumps(buffer)).name == buffer.name
    with pytest.raises(Conflict):
        ReplayBuffer(FIELDS, 16, name=buffer.name)
    name = buffer.name
    buffer.unlink()
    with pytest.raises(NotFound):
        ReplayBuffer.attach(name)
    assert equal(other.gather(np.arange(8)), rows(0, 8))


def test_something_else_under_the_name_is_refused():
    from headrace.core import ring, shm

    segment = shm.create(None, 1 << 16)
    with pytest.raises(IntegrityError, match="no such header"):
        ReplayBuffer.attach(segment.name)
    queue = ring.MpmcRing.create(slots=64, slot_bytes=64)
    with pytest.raises(IntegrityError):
        ReplayBuffer.attach(queue.name)


def test_clear_forgets_and_the_sequence_goes_on():
    buffer = ReplayBuffer([Field("x")], 8)
    buffer.push(x=np.arange(5, dtype=np.float32))
    buffer.clear()
    assert len(buffer) == 0
    assert buffer
    assert buffer.gather(np.arange(8)).sequences.tolist() == [-1] * 8
    buffer.push(x=np.float32(9))
    assert (buffer.sample(50)["x"] == 9).all()
    assert buffer.window == (5, 6)


def test_threads_push_and_sample_at_once():
    """Batches large enough to be copied without the GIL; every row's numbers belong together."""
    buffer = ReplayBuffer([Field("a", (100,), np.int64), Field("b", (100,), np.int64)], 500)
    stop = threading.Event()
    wrong = []

    def produce(start):
        number = start
        while not stop.is_set():
            block = np.repeat(np.arange(number, number + 400), 100).reshape(400, 100)
            buffer.push(a=block, b=-block)
            number += 400

    threads = [threading.Thread(target=produce, args=(k << 32,)) for k in range(2)]
    for thread in threads:
        thread.start()
    try:
        while len(buffer) < 500:
            pass
        for _ in range(60):
            batch = buffer.sample(300)
            a, b = batch["a"], batch["b"]
            if not ((a == a[:, :1]).all() and (b == -a).all()):
                wrong.append(batch)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert buffer.check_integrity().finished == 500


def test_importing_and_using_buffers_needs_no_extra():
    code = """if True:
        import sys
        sys.modules.update(dict.fromkeys(["torch", "numba", "gymnasium"]))
        from headrace.rl.buffers import Field, ReplayBuffer
        buffer = ReplayBuffer([Field("x")], 4)
        buffer.push(x=1.0)
        print(buffer.sample(1)["x"][0])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout.strip(), done.returncode) == ("1.0", 0), done.stderr
