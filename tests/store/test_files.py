import hashlib
import io

import pytest

from headrace.errors import IntegrityError
from headrace.store.files import copy_stream, hash_file, open_regular
from headrace.store.progress import Silent


@pytest.mark.parametrize("size_bytes", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_000])
def test_a_copy_is_the_same_bytes_and_their_hash(tmp_path, size_bytes):
    content = hashlib.shake_128(b"x").digest(size_bytes)
    with Silent().step("") as step:
        entry = copy_stream(io.BytesIO(content), tmp_path, "a/b", size_bytes, step)
        assert hash_file(tmp_path / "a/b", step) == (entry.size_bytes, entry.sha256)
    assert (tmp_path / "a/b").read_bytes() == content
    assert (entry.path, entry.size_bytes, entry.sha256) == ("a/b", size_bytes, hashlib.sha256(content).hexdigest())


def test_a_stream_longer_than_announced_is_cut_off(tmp_path):
    class Endless(io.RawIOBase):
        def read(self, size=-1):
            return b"x" * size

    with (
        pytest.raises(IntegrityError, match="a: holds more than the 5000000 bytes announced"),
        Silent().step("") as step,
    ):
        copy_stream(Endless(), tmp_path, "a", 5_000_000, step)
    assert (tmp_path / "a").stat().st_size <= 5_000_000


def test_an_existing_file_is_never_written_over(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(FileExistsError), Silent().step("") as step:
        copy_stream(io.BytesIO(b"new"), tmp_path, "a", 3, step)
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_link_is_not_opened(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "link").symlink_to("a")
    for name in ("link", "absent"):
        with pytest.raises(IntegrityError, match=f"{name}: cannot be read"):
            open_regular(tmp_path / name)
    with pytest.raises(IntegrityError, match="expected a regular file"):
        open_regular(tmp_path)
