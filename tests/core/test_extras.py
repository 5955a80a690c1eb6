import sys

import pytest

from headrace.core.extras import require
from headrace.errors import MissingExtra


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A function that makes an importable package of the given source and forgets it afterwards."""

    def make(name, source):
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    before = set(sys.modules)
    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_what_is_installed_is_imported():
    assert require("json", "any").loads("1") == 1
    assert require("os.path", "any").__name__ in ("posixpath", "ntpath")


@pytest.mark.parametrize("module", ["headrace_absent_package", "headrace_absent_package.inner"])
def test_what_is_absent_is_named_with_its_remedy(module):
    with pytest.raises(MissingExtra, match=r"pip install 'headrace\[vision\]'") as caught:
        require(module, "vision")
    assert caught.value.extra == "vision"
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_package_that_lacks_something_itself_keeps_its_own_error(package):
    name = package("headrace_test_broken", "import headrace_absent_package")
    with pytest.raises(ModuleNotFoundError, match="headrace_absent_package"):
        require(name, "vision")


def test_a_package_that_fails_on_import_keeps_its_own_error(package):
    name = package("headrace_test_failing", "raise OSError('no such library')")
    with pytest.raises(OSError, match="no such library"):
        require(name, "vision")
