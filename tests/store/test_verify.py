import os
import socket

import pytest

from headrace.errors import IntegrityError
from headrace.store.verify import verify, walk_files

FILES = {"model.onnx": b"weights" * 1000, "sub/labels.txt": b"cat\ndog\n"}


@pytest.fixture
def version_dir(repository, install):
    return repository.root / "m" / install("m", FILES)


def test_a_sound_version_passes_also_through_its_link(version_dir):
    assert {entry.path for entry in verify(version_dir).files} == set(FILES)
    assert verify(version_dir.parent / "current").version == version_dir.name


@pytest.mark.parametrize("path", sorted(FILES))
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_one_flipped_bit_is_found(version_dir, path, where):
    content = bytearray((version_dir / path).read_bytes())
    content[{"first": 0, "middle": len(content) // 2, "last": -1}[where]] ^= 1
    (version_dir / path).write_bytes(content)
    with pytest.raises(IntegrityError, match=r"expected sha256 [0-9a-f]{64}, got [0-9a-f]{64}") as caught:
        verify(version_dir)
    assert path in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"), [(lambda b: b[:-1], "7000 bytes, got 6999"), (lambda b: b + b"x", "7001")]
)
def test_a_wrong_size_is_found(version_dir, change, message):
    path = version_dir / "model.onnx"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(IntegrityError, match=message):
        verify(version_dir)


def test_a_missing_file_is_found(version_dir):
    (version_dir / "sub/labels.txt").unlink()
    with pytest.raises(IntegrityError, match=r"labels\.txt: missing; expected 8 bytes"):
        verify(version_dir)


def test_an_extra_file_is_found_but_not_pythons_cache(version_dir):
    (version_dir / "__pycache__").mkdir()
    (version_dir / "__pycache__/m.cpython-311.pyc").write_bytes(b"x")
    verify(version_dir)
    (version_dir / "sub/extra").write_bytes(b"")
    with pytest.raises(IntegrityError, match=r"sub/extra: not listed"):
        verify(version_dir)


@pytest.mark.parametrize("target", ["/etc/hostname", "../../../outside", "missing", "loop", "sub"])
def test_links_that_lead_out_nowhere_or_to_folders_are_refused(version_dir, target):
    (version_dir.parent.parent.parent / "outside").write_bytes(b"secret")
    path = version_dir / ("loop" if target == "loop" else "model.onnx")
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    with pytest.raises(IntegrityError, match="the link leads"):
        verify(version_dir)


def test_a_linked_folder_is_refused(version_dir, tmp_path):
    (version_dir / "sub/labels.txt").rename(tmp_path / "labels.txt")
    (version_dir / "sub").rmdir()
    (version_dir / "sub").symlink_to(tmp_path)
    with pytest.raises(IntegrityError, match="leads out of"):
        verify(version_dir)


def test_a_link_inside_is_hashed_like_the_file_behind_it(version_dir):
    (version_dir / "sub/labels.txt").rename(version_dir / "__pycache__")
    (version_dir / "sub/labels.txt").symlink_to("../__pycache__")
    verify(version_dir)
    (version_dir / "__pycache__").write_bytes(b"cat\nd0g\n")
    with pytest.raises(IntegrityError, match=r"labels\.txt: expected sha256"):
        verify(version_dir)


def test_pipes_sockets_and_devices_are_refused_without_blocking(version_dir):
    path = version_dir / "model.onnx"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(IntegrityError, match="device, pipe or socket"):
        verify(version_dir)
    path.unlink()
    (version_dir / "manifest.json").rename(version_dir / "old")
    os.mkfifo(version_dir / "manifest.json")
    with pytest.raises(IntegrityError, match="missing"):
        verify(version_dir)


def test_a_socket_is_refused(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        with pytest.raises(IntegrityError, match="device, pipe or socket"):
            list(walk_files(tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a device")
def test_a_device_is_refused(version_dir):
    path = version_dir / "model.onnx"
    path.unlink()
    try:
        os.mknod(path, 0o20600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("this container may not make devices")
    with pytest.raises(IntegrityError, match="device, pipe or socket"):
        verify(version_dir)


def test_a_manifest_of_another_version_is_refused(version_dir):
    other = version_dir.rename(version_dir.with_name("other"))
    with pytest.raises(IntegrityError, match="describes version"):
        verify(other)
