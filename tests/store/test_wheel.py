import base64
import hashlib
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import IntegrityError, InvalidInput, NotFound
from headrace.store.names import safe_path
from headrace.store.progress import Silent
from headrace.store.sources.wheel import extract, select

FILES = {
    "demo/__init__.py": b"raise SystemExit('never run')",
    "demo/data/det.onnx": b"detector" * 500_000,
    "demo/data/rec.onnx": b"recogniser",
    "demo/data/sub/labels.txt": b"a\nb\n",
    "other/det.onnx": b"another",
}


@pytest.fixture
def take(tmp_path, build_wheel):
    """Build a wheel with the given peculiarities, extract patterns, and return what was written."""

    def run(*patterns, files=FILES, **peculiar):
        wheel = build_wheel(tmp_path, files, **peculiar)
        target = tmp_path / "out" / "target"
        target.mkdir(parents=True)
        entries = extract(wheel, list(patterns), target, Silent())
        written = {p.relative_to(target).as_posix(): p.read_bytes() for p in target.rglob("*") if p.is_file()}
        assert {e.path: (e.size_bytes, e.sha256) for e in entries} == {
            path: (len(content), hashlib.sha256(content).hexdigest()) for path, content in written.items()
        }
        return written

    return run


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["demo/data/det.onnx"], {"det.onnx": "demo/data/det.onnx"}),
        (["rec.onnx"], {"rec.onnx": "demo/data/rec.onnx"}),
        (["data/det.onnx"], {"det.onnx": "demo/data/det.onnx"}),
        (["demo/data/sub"], {"labels.txt": "demo/data/sub/labels.txt"}),
        (["demo/data/*.onnx"], {"det.onnx": "demo/data/det.onnx", "rec.onnx": "demo/data/rec.onnx"}),
        (["demo/*/labels.txt"], {"data/sub/labels.txt": "demo/data/sub/labels.txt"}),
        (["rec.onnx", "labels.txt"], {"rec.onnx": "demo/data/rec.onnx", "labels.txt": "demo/data/sub/labels.txt"}),
        (
            ["demo/data/"],
            {
                "det.onnx": "demo/data/det.onnx",
                "rec.onnx": "demo/data/rec.onnx",
                "sub/labels.txt": "demo/data/sub/labels.txt",
            },
        ),
    ],
)
def test_only_what_is_wanted_is_written(take, patterns, expected):
    assert take(*patterns) == {path: FILES[name] for path, name in expected.items()}


@pytest.mark.parametrize(
    ("pattern", "close"),
    [
        ("demo/data/dte.onnx", "demo/data/det.onnx"),
        ("det.onnx", "demo/data/det.onnx, other/det.onnx"),
        ("labels.tx", "demo/data/sub/labels.txt"),
        ("demo/*.gguf", "demo/"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is_close(take, pattern, close):
    with pytest.raises(NotFound, match=r"holds no .*; close: ") as caught:
        take(pattern)
    assert close in str(caught.value)


def test_two_files_of_one_name_are_refused(take):
    with pytest.raises(InvalidInput, match=r"both be installed as 'det\.onnx'"):
        take("demo/data/det.onnx", "other/det.onnx")


@pytest.mark.parametrize("name", ["../evil", "x/../../evil", "/evil", "x/./evil", "x//evil"])
def test_names_that_climb_out_are_refused(take, tmp_path, name):
    with pytest.raises(IntegrityError, match="is refused"):
        take("*evil", files={name: b"x"})
    assert not list(tmp_path.rglob("evil"))


def test_hostile_names_that_nobody_wants_do_no_harm(take, tmp_path):
    assert take("a/ok", files={"../evil": b"x", "a/ok": b"y"}) == {"ok": b"y"}
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("mode", [0o120777, 0o020666, 0o010644])
def test_links_and_devices_are_refused(take, tmp_path, mode):
    with pytest.raises(IntegrityError, match="link or device"):
        take("a/x", files={"a/x": b"/etc/passwd"}, attributes={"a/x": mode})
    assert not list((tmp_path / "out").rglob("x"))


def test_a_link_followed_by_a_file_through_it_is_refused(take):
    files = {"a/d": b"/tmp", "a/d/x": b"payload"}
    with pytest.raises(IntegrityError, match="link or device"):
        take("a", files=files, attributes={"a/d": 0o120777})


def row(name, content, size=None):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content) if size is None else size}"


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        ("a/x,,", "RECORD gives no sha256"),
        ("a/x,md5=abc,1", "RECORD gives no sha256"),
        (row("a/x", b"w"), "expected sha256 [0-9a-f]{64}, got"),
        (row("a/x", b"x", 2), "RECORD says 2 bytes, the archive 1"),
        (row("a/x", b"x", "?"), "RECORD cannot be read"),
        ("a/x,sha256=?,1", "RECORD cannot be read|expected sha256"),
        ("\x00", "RECORD"),
    ],
)
def test_the_wheels_own_record_is_believed_over_its_bytes(take, recorded, message):
    with pytest.raises(IntegrityError, match=message):
        take("a/x", files={"a/x": b"x"}, record={"a/x": recorded})


def test_a_wheel_without_record_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as archive:
        archive.writestr("a/x", b"x")
    with pytest.raises(IntegrityError, match="expected one"):
        extract(tmp_path / "w.whl", ["a/x"], tmp_path, Silent())


def test_a_member_that_is_there_twice_is_refused(take):
    with pytest.raises(IntegrityError, match="there twice"):
        take("demo/data/rec.onnx", duplicate="demo/data/rec.onnx")


def test_every_damaged_byte_of_the_data_is_found(tmp_path, build_wheel):
    content = bytes(range(256)) * 4
    wheel = build_wheel(tmp_path, {"a/x": content})
    raw = wheel.read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        start = archive.getinfo("a/x").header_offset + 30 + len("a/x")
        size = archive.getinfo("a/x").compress_size
    for offset in range(start, start + size, 7):
        damaged = bytearray(raw)
        damaged[offset] ^= 0x10
        wheel.write_bytes(damaged)
        target = tmp_path / f"target{offset}"
        target.mkdir()
        try:
            extract(wheel, ["a/x"], target, Silent())
        except IntegrityError:
            continue
        # A flipped bit may decode to the same bytes; then nothing is wrong with them.
        assert (target / "x").read_bytes() == content


@pytest.mark.parametrize("cut", [0, 10, 100, -30, -1])
def test_a_truncated_wheel_is_refused(tmp_path, build_wheel, cut):
    wheel = build_wheel(tmp_path, {"a/x": b"x" * 1000})
    wheel.write_bytes(wheel.read_bytes()[:cut])
    with pytest.raises(IntegrityError, match="not a sound wheel"):
        extract(wheel, ["a/x"], tmp_path, Silent())


def test_more_than_the_limit_is_refused_before_anything_is_written(take, tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.store.sources.wheel._LARGEST_TOTAL", 999)
    with pytest.raises(IntegrityError, match="the files wanted are 1000 bytes, more than 999"):
        take("a", files={"a/x": b"x" * 400, "a/y": b"x" * 600})
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


@given(
    st.lists(st.text("ab./*", min_size=1, max_size=8), min_size=1, max_size=6, unique=True),
    st.lists(st.text("ab./*[]?", min_size=1, max_size=8), min_size=1, max_size=3),
)
def test_whatever_is_selected_is_safe_and_known(names, patterns):
    try:
        chosen = select(names, patterns, "w")
    except (NotFound, InvalidInput, IntegrityError):
        return
    assert set(chosen.values()) <= set(names)
    assert not any(safe_path(path) for path in chosen)
