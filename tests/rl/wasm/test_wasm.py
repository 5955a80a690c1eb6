"""Sandboxed environments: the particle module against the compiled environment, and modules that misbehave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.errors import InvalidInput, LoadFailed, StageFailed, Unavailable
from headrace.rl.envs.definition import describe
from headrace.rl.envs.particles import Particles
from headrace.rl.envs.plain import PlainEnv
from headrace.rl.spec import Box, Discrete, EnvSpec
from headrace.rl.wasm import PARTICLES, WasmEnv

SPEC = EnvSpec("test/Counter-v0", Box(-np.inf, np.inf, shape=(1,)), Discrete(3), 0, None)

COUNTER = """
(module
  (memory (export "memory") 1)
  (global (export "__heap_base") i32 (i32.const 1024))
  (func (export "state_bytes") (param i32) (result i32) {size})
  (func (export "reset") (param $state i32) (param i32) (param i64) (param i32) (param i32) (param $obs i32) {reset})
  (func (export "step") (param $state i32) (param i32) (param i64) (param i32) (param i32) (param $actions i32)
    (param $obs i32) (param i32) (param $reward i32) (param i32) (param i32) (param i32) {step}))
"""
SIZE = "(i32.mul (local.get 0) (i32.const 4))"
RESET = "(i32.store (local.get $state) (i32.const 0)) (f32.store (local.get $obs) (f32.const 0))"
STEP = """
(i32.store (local.get $state) (i32.add (i32.load (local.get $state)) (i32.load (local.get $actions))))
(f32.store (local.get $obs) (f32.convert_i32_s (i32.load (local.get $state))))
(f32.store (local.get $reward) (f32.const 1))
"""


def _env(folder: Path, size: str = SIZE, reset: str = RESET, step: str = STEP, **limits: int) -> WasmEnv:
    path = folder / "env.wat"
    path.write_text(COUNTER.format(size=size, reset=reset, step=step))
    return WasmEnv(path, SPEC, **limits)


def test_the_particle_module_gives_the_numbers_of_the_python_environment() -> None:
    definition = describe(Particles)
    batch = WasmEnv(PARTICLES, definition.spec).batch(2, seed=5, autoreset=0)
    plain = PlainEnv(definition, seed=5, number=1)
    np.testing.assert_allclose(batch.reset()[1], plain.reset(), rtol=1e-6)
    actions = np.array([[0.0, 0.0], [0.7, -1.0]], np.float32)
    obs, rewards, terminated, truncated = batch.step(actions)
    expected, reward, *_ = plain.step(actions[1])
    np.testing.assert_allclose(obs[1], expected, rtol=1e-5, atol=1e-6)
    assert rewards[1] == pytest.approx(reward, rel=1e-6)
    assert not (terminated | truncated).any()


def test_episodes_end_and_begin_as_the_batch_wants() -> None:
    spec = describe(Particles).spec
    still = np.zeros((1, 2), np.float32)
    for autoreset in (0, 1, 2):
        batch = WasmEnv(PARTICLES, spec).batch(1, autoreset=autoreset)
        first = batch.reset().copy()
        flags = [int(batch.step(still)[3][0]) for _ in range(spec.max_steps)]
        assert flags == [0] * (spec.max_steps - 1) + [1]
        last = batch["obs"].copy()
        if autoreset == 1:
            last, new = batch["final_obs"].copy(), last
            assert not np.array_equal(new, last)
        assert not np.array_equal(last, first)
        obs, reward, _, truncated = batch.step(still)
        if autoreset == 2:
            assert reward[0] == 0
            assert truncated[0] == 0
            assert not np.array_equal(obs, last)
        if autoreset == 0:
            assert truncated[0] == 1
            assert reward[0] == 0


def test_actions_count_and_are_checked(tmp_path: Path) -> None:
    batch = _env(tmp_path).batch(1)
    assert batch.reset().tolist() == [[0.0]]
    for total in (2, 4, 6):
        obs, reward, *_ = batch.step(np.array([2]))
        assert obs.tolist() == [[total]]
        assert reward.tolist() == [1.0]
    for wrong in ([1, 1], [[1]], [0.5], ["a"]):
        with pytest.raises(InvalidInput, match=r"test/Counter-v0: actions: expected int32\[1\], got"):
            batch.step(np.array(wrong))
    assert batch.step([1])[0].tolist() == [[7.0]]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"step": "(loop $on (br $on))"}, "step of 1 environments: .*fuel"),
        ({"step": "(unreachable)"}, "step of 1 environments: .*unreachable"),
        ({"step": "(i32.store (i32.const -8) (i32.const 1))"}, "step of 1 environments: .*out of bounds"),
        ({"reset": "(loop $on (br $on))"}, "reset of 1 environments: .*fuel"),
    ],
)
def test_what_misbehaves_ends_its_batch_alone(tmp_path: Path, parts: dict[str, str], words: str) -> None:
    env = _env(tmp_path, fuel=100_000, **parts)
    batch = env.batch(1)
    call = batch.reset if "reset" in parts else lambda: batch.step([0])
    with pytest.raises(StageFailed, match=words):
        call()
    with pytest.raises(Unavailable, match="failed before"):
        batch.reset()
    assert env.batch(1)["obs"].shape == (1, 1)


def test_memory_is_limited(tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match="of which 1000000 are allowed"):
        _env(tmp_path, size="(i32.const 2000000)", memory_bytes=1_000_000).batch(1)
    with pytest.raises(StageFailed, match="environments take"):
        _env(tmp_path, size="(i32.const -5)").batch(1)
    greedy = _env(tmp_path, step="(drop (memory.grow (i32.const 1000))) (i32.store (memory.size) (i32.const 1))",
                  memory_bytes=1_000_000).batch(1)  # fmt: skip
    greedy.reset()
    greedy.step([0])
    assert greedy._memory.data_len(greedy._store) < 1_000_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(module)", "exports no 'memory'; it has nothing"),
        ('(module (import "env" "clock" (func)))', "imports nothing, it wants env.clock"),
        ("(module (memory", "no WebAssembly module"),
        (
            COUNTER.format(size="(i32.const 4)", reset="", step="").replace("(param i64)", "(param i32)"),
            "reset: expected",
        ),
    ],
)
def test_files_that_are_no_environments(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "env.wat"
    path.write_text(text)
    with pytest.raises(LoadFailed, match=words):
        WasmEnv(path, SPEC)
    with pytest.raises(LoadFailed, match="no WebAssembly module"):
        WasmEnv(tmp_path / "none.wasm", SPEC)
