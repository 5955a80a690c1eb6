from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.cgroup import Limits, limits
from headrace.core.machine import Cache, HugePages, NumaNode, machine, parse_cpu_list


@pytest.fixture
def tree(tmp_path):
    """A function that lays files of /proc and /sys under one root."""

    def lay(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path

    return lay


def test_an_empty_machine_is_described_too(tmp_path):
    found = machine(tmp_path / "nothing")
    assert (found.memory_bytes, found.caches, found.numa, found.limits) == (0, (), (), Limits())
    assert found.huge_pages == HugePages("", 0, 0, 0)
    assert found.cores >= 1


def test_this_machine_is_described():
    found = machine()
    assert found.usable_cpus >= 1
    assert found.memory_bytes > found.available_bytes > 0


def test_two_sockets_with_threads_and_shared_caches(tree):
    files = {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Fast Chip\n",
        "proc/meminfo": "MemTotal: 2048 kB\nMemAvailable: 1024 kB\nHugePages_Total: 4\nHugePages_Free: 3\n"
        "Hugepagesize: 2048 kB\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "sys/devices/system/node/node0/cpulist": "0-1\n",
        "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:    1024 kB\n",
        "sys/devices/system/node/node1/cpulist": "2-3\n",
    }
    for cpu in range(4):
        base = f"sys/devices/system/cpu/cpu{cpu}"
        files[f"{base}/topology/physical_package_id"] = str(cpu // 2)
        files[f"{base}/topology/core_id"] = "0"
        files[f"{base}/cache/index0/level"] = "2\n"
        files[f"{base}/cache/index0/type"] = "Unified\n"
        files[f"{base}/cache/index0/size"] = "512K\n"
        files[f"{base}/cache/index0/shared_cpu_list"] = "0-1\n" if cpu < 2 else "2-3\n"
        files[f"{base}/cache/index1/level"] = "odd\n"
    found = machine(tree(files))
    assert (found.cpu_model, found.sockets, found.cores) == ("Fast Chip", 2, 2)
    assert found.caches == (Cache(2, "unified", 512 * 1024, 2),)
    assert found.numa == (NumaNode(0, (0, 1), 1024 * 1024), NumaNode(1, (2, 3), 0))
    assert found.huge_pages == HugePages("madvise", 2048 * 1024, 4, 3)
    assert (found.memory_bytes, found.available_bytes) == (2048 * 1024, 1024 * 1024)


@pytest.mark.parametrize(
    ("cpuinfo", "model"),
    [
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd40\n", "implementer 0x41 part 0xd40"),
        ("processor : 0\nModel\t\t: Small Board\n", "Small Board"),
        (b"model name : \xff\xfe\n", "��"),
    ],
)
def test_processors_without_a_plain_name(tree, cpuinfo, model):
    assert machine(tree({"proc/cpuinfo": cpuinfo})).cpu_model == model


def test_the_tightest_limit_of_all_levels_counts(tree):
    v2 = {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
        "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/a/b/memory.max": "max\n",
        "sys/fs/cgroup/a/memory.max": "2000000\n",
        "sys/fs/cgroup/memory.max": "1000000\n",
    }
    assert limits(tree(v2)) == Limits(1.5, 1_000_000)


def test_version_one_and_a_path_from_outside_the_container(tree):
    v1 = {
        "proc/self/cgroup": "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "500000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    assert limits(tree(v1)) == Limits(0.5, 500_000)


def test_version_one_without_limits(tree):
    v1 = {
        "proc/self/cgroup": "4:memory:/\n3:cpu:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    assert limits(tree(v1)) == Limits()


@given(st.text(max_size=60))
def test_any_cgroup_file_is_read_without_an_error(tmp_path_factory, text):
    root = tmp_path_factory.getbasetemp() / "any"
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(text, "utf-8")
    assert limits(Path(root)) == Limits()


def test_cpu_lists():
    assert parse_cpu_list("0-3,8,10-11\n") == (0, 1, 2, 3, 8, 10, 11)
    assert parse_cpu_list("") == parse_cpu_list("a,-") == ()
