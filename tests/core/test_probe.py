import dataclasses
import platform

import pytest

from headrace.core.cgroup import Limits
from headrace.core.probe import cpu
from headrace.errors import ConfigError


def test_this_processor_is_described(monkeypatch):
    monkeypatch.delenv("HEADRACE_ISA", raising=False)
    found = cpu()
    assert found.architecture == platform.machine()
    assert found.isas[0] == "scalar"
    assert found.isa == found.isas[-1]
    assert found.usable_cpus >= found.threads >= 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.isa = "scalar"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the x86 flags of /proc/cpuinfo")
def test_features_agree_with_the_kernel_s_list():
    with open("/proc/cpuinfo") as lines:
        flags = next(line for line in lines if line.startswith("flags")).split()
    names = {
        "avx512vnni": "avx512_vnni",
        "avx512bf16": "avx512_bf16",
        "avx512fp16": "avx512_fp16",
        "avx-vnni": "avx_vnni",
    }
    names |= {"amx-tile": "amx_tile", "amx-int8": "amx_int8", "amx-bf16": "amx_bf16"}
    same = ["avx2", "fma", "f16c", "avx512f", "avx512dq", "avx512bw", "avx512vl"]
    expected = {ours for ours, theirs in (names | {name: name for name in same}).items() if theirs in flags}
    assert set(cpu().features) == expected


def test_the_environment_chooses_the_instruction_set(monkeypatch):
    for isa in cpu().isas:
        monkeypatch.setenv("HEADRACE_ISA", isa)
        assert cpu().isa == isa
    monkeypatch.setenv("HEADRACE_ISA", "mmx")
    with pytest.raises(
        ConfigError, match=r"isa or HEADRACE_ISA: 'mmx' is no known instruction set; expected one of: scalar"
    ):
        cpu()
    monkeypatch.setenv("HEADRACE_ISA", "neon" if platform.machine() == "x86_64" else "avx2")
    with pytest.raises(ConfigError, match="not supported by this processor"):
        cpu()


def test_threads_follow_the_control_group(tmp_path):
    found = cpu(tmp_path)  # nothing to read there
    assert (found.model == platform.processor(), found.caches, found.limits) == (True, (), Limits())
    eight = dataclasses.replace(found, usable_cpus=8)
    assert eight.threads == 8
    assert dataclasses.replace(eight, limits=Limits(cpus=2.5)).threads == 2
    assert dataclasses.replace(eight, limits=Limits(cpus=0.1)).threads == 1
