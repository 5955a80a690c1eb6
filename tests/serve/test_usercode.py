import sys
import threading

import pytest

from headrace.errors import ConfigError
from headrace.serve.usercode import UserCode, split_entry


@pytest.fixture
def folder(tmp_path):
    def write(**files):
        for name, text in files.items():
            path = tmp_path / f"{name}.py"
            path.write_text(text)
        return UserCode(tmp_path)

    before = set(sys.modules), list(sys.path), list(sys.meta_path)
    yield write
    assert (set(sys.modules), list(sys.path), list(sys.meta_path)) == before


def test_dataclasses_packages_and_late_imports_work(folder, tmp_path):
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "__init__.py").write_text("from .part import VALUE\n")
    (tmp_path / "kit" / "part.py").write_text("from ..base import BASE\nVALUE = BASE + 1\n")
    code = folder(
        base="BASE = 1\n",
        main=(
            "from dataclasses import dataclass\n"
            "@dataclass\nclass Point:\n    x: int = 3\n"
            "def late():\n    from .kit import VALUE\n    return VALUE\n"
        ),
    )
    assert code.load("main:Point")().x == 3
    assert code.load("main:late")() == 2
    assert code.load("kit.part:VALUE") == 2
    code.close()
    code.close()


def test_modules_are_shared_within_a_folder_and_apart_between_loads(folder):
    one = folder(main="LOG = []\n")
    two = UserCode(one.directory)
    assert one.load("main:LOG") is one.load("main:LOG")
    assert one.load("main:LOG") is not two.load("main:LOG")
    one.close()
    assert two.load("main:LOG") == []
    two.close()


def test_a_folder_does_not_shadow_the_standard_library(folder):
    code = folder(json="X = 1\n", main="import json\nDUMPS = json.dumps\n")
    assert code.load("main:DUMPS")([1]) == "[1]"
    assert code.load("json:X") == 1
    code.close()


def test_nothing_above_the_folder_can_be_imported(folder, tmp_path):
    (tmp_path.parent / "outside.py").write_text("X = 1\n")
    code = folder(main="from ..outside import X\n")
    with pytest.raises(ImportError, match="beyond top-level"):
        code.load("main:X")
    code.close()


def test_many_threads_load_their_own(folder):
    code = folder(main="VALUE = 3\n")
    seen = []

    def work():
        mine = UserCode(code.directory)
        seen.append(mine.load("main:VALUE"))
        mine.close()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [3] * 8


@pytest.mark.parametrize("entry", ["", "a", "a:", ":b", "a:b:c", "a-b:c", "../a:b", "a/b:c", "a:b c", "a..b:c"])
def test_entries_that_are_not_module_and_attribute_are_told(entry):
    with pytest.raises(ConfigError, match='expected "module:attribute"'):
        split_entry(entry)
