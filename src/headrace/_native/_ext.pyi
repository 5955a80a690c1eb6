"""Headrace native core"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, overload

import numpy
import numpy.typing
from numpy.typing import NDArray

def cpu_features() -> list[str]:
    """
    Names of the SIMD features of this processor that the kernels ask about.
    """

def supported_isas() -> list[str]:
    """Instruction sets kernels may use here, worst first."""

def choose_isa(wanted: str = "") -> str:
    """
    The named instruction set, or the best one for ''; ConfigError if it cannot run here.
    """

def best_isa() -> str:
    """choose_isa of the environment variable HEADRACE_ISA."""

class SharedSegment:
    """A named piece of memory shared between processes."""

    @staticmethod
    def create(name: str, size: int) -> SharedSegment: ...
    @staticmethod
    def attach(name: str) -> SharedSegment: ...
    @staticmethod
    def sweep() -> list[str]:
        """Unlink the segments of dead owners; returns their names."""

    def array(self) -> Annotated[NDArray[numpy.uint8], {"shape": (None,)}]:
        """The bytes as a uint8 array, no copy."""

    def unlink(self) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def owner(self) -> bool: ...

class SpscRing:
    @overload
    def __init__(self, segment: SharedSegment, slots: int, slot_bytes: int) -> None: ...
    @overload
    def __init__(self, segment: SharedSegment) -> None: ...
    @staticmethod
    def bytes_for(slots: int, slot_bytes: int) -> int: ...
    def try_push(self, message: object) -> bool: ...
    def push(self, message: object, timeout_s: float | None = None) -> None: ...
    def push_many(self, messages: Sequence[object], timeout_s: float | None = None) -> int: ...
    def try_pop(self) -> bytes | None: ...
    def pop(self, timeout_s: float | None = None) -> bytes: ...
    def pop_many(self, limit: int, timeout_s: float | None = None) -> list[bytes]: ...
    def _reserve(self, timeout_s: float | None = None) -> Annotated[NDArray[numpy.uint8], {"shape": (None,)}]: ...
    def _commit(self, length: int) -> None: ...
    def _abandon(self) -> None: ...
    def _peek(
        self, timeout_s: float | None = None
    ) -> Annotated[NDArray[numpy.uint8], {"shape": (None,), "writable": False}]: ...
    def _release(self) -> None: ...
    def close(self) -> None: ...
    def __len__(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def slots(self) -> int: ...
    @property
    def slot_bytes(self) -> int: ...

class MpmcRing:
    @overload
    def __init__(self, segment: SharedSegment, slots: int, slot_bytes: int) -> None: ...
    @overload
    def __init__(self, segment: SharedSegment) -> None: ...
    @staticmethod
    def bytes_for(slots: int, slot_bytes: int) -> int: ...
    def try_push(self, message: object) -> bool: ...
    def push(self, message: object, timeout_s: float | None = None) -> None: ...
    def push_many(self, messages: Sequence[object], timeout_s: float | None = None) -> int: ...
    def try_pop(self) -> bytes | None: ...
    def pop(self, timeout_s: float | None = None) -> bytes: ...
    def pop_many(self, limit: int, timeout_s: float | None = None) -> list[bytes]: ...
    def _reserve(self, timeout_s: float | None = None) -> Annotated[NDArray[numpy.uint8], {"shape": (None,)}]: ...
    def _commit(self, length: int) -> None: ...
    def _abandon(self) -> None: ...
    def _peek(
        self, timeout_s: float | None = None
    ) -> Annotated[NDArray[numpy.uint8], {"shape": (None,), "writable": False}]: ...
    def _release(self) -> None: ...
    def close(self) -> None: ...
    def __len__(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    @property
    def slots(self) -> int: ...
    @property
    def slot_bytes(self) -> int: ...

class Lease:
    def _bytes(self) -> Annotated[NDArray[numpy.uint8], {"shape": (None,)}]: ...
    def _drop(self) -> None: ...
    def release(self) -> None: ...
    @property
    def pointer(self) -> int: ...
    @property
    def views(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def released(self) -> bool: ...

class BufferPool:
    def __init__(self, limit_bytes: int, debug: bool) -> None: ...
    def lease(self, nbytes: int, alignment: int, timeout_s: float | None) -> Lease: ...
    def stats(self) -> dict[str, int]: ...
    def trim(self) -> None: ...
    @staticmethod
    def size_class(nbytes: int) -> int: ...

class ThreadPool:
    def __init__(self, threads: int, cpus: Sequence[int]) -> None: ...
    def trace(self, chunks: int) -> list[int]: ...
    def parallel_for(self, begin: int, end: int, grain: int, fn: Callable[[int, int], object]) -> None: ...
    def __len__(self) -> int: ...

def parse_json_numbers(text: object, out: object) -> None:
    """
    Fill the C-contiguous array `out` from a JSON array of numbers, flat or nested as its shape.
    """

def format_json_numbers(array: object) -> bytes:
    """A C-contiguous array as one flat JSON array of numbers."""

class TokenSampler:
    def __init__(
        self,
        vocab: int,
        prompt: Annotated[NDArray[numpy.int32], {"shape": (None,), "order": "C", "device": "cpu", "writable": False}],
        *,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        typical_p: float,
        repetition_penalty: float,
        presence_penalty: float,
        frequency_penalty: float,
        bias: Sequence[tuple[int, float]],
        seed: int,
        index: int,
        logprobs: int,
    ) -> None: ...
    def accept(self, token: int) -> None: ...
    @property
    def position(self) -> int: ...

def sample_rows(
    samplers: Sequence[TokenSampler],
    logits: numpy.typing.NDArray[numpy.float32],
    rows: Sequence[int],
    masks: Sequence[numpy.typing.NDArray[numpy.uint32] | None],
) -> list[tuple[int, int, float, tuple[tuple[int, float], ...]]]:
    """
    For each sampler (status, token, logprob, alternatives), without the GIL.

    Status 1: the row holds a NaN or +inf; 2: every token is forbidden.
    """

def packed_bytes(type: str, weight_bits: int, rows: int, cols: int) -> int: ...
def pack(
    type: str,
    weight_bits: int,
    source: Annotated[NDArray[numpy.uint8], {"shape": (None,), "order": "C", "device": "cpu", "writable": False}],
    rows: int,
    cols: int,
    out: Annotated[NDArray[numpy.uint8], {"shape": (None,), "order": "C", "device": "cpu"}],
) -> float: ...

class Program:
    def __init__(
        self,
        isa: str,
        threads: int,
        max_tokens: int,
        n_pages: int,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        int8: bool,
        fine: float,
    ) -> None: ...
    def add_buffer(self, width: int) -> int: ...
    def add_matrix(
        self,
        data: Annotated[NDArray[numpy.uint8], {"shape": (None,), "order": "C", "device": "cpu", "writable": False}],
        type: str,
        weight_bits: int,
        rows: int,
        cols: int,
        multiplier: float,
    ) -> int: ...
    def add_vector(
        self,
        values: Annotated[NDArray[numpy.float32], {"shape": (None,), "order": "C", "device": "cpu", "writable": False}],
    ) -> int: ...
    def add_rotation(self, inv_freq: Sequence[float], interleaved: bool, scale: float) -> int: ...
    def embed(self, table: int, scale: float, out: int) -> None: ...
    def linear(
        self, x: int, norm: int, eps: float, weights: Sequence[int], biases: Sequence[int], out: int, accumulate: bool
    ) -> None: ...
    def gated(self, x: int, norm: int, eps: float, gate: int, up: int, gelu: bool, out: int) -> None: ...
    def attention(
        self,
        qkv: int,
        out: int,
        layer: int,
        n_heads: int,
        scale: float,
        softcap: float,
        window: int,
        rotation: int,
        q_norm: int,
        k_norm: int,
        eps: float,
    ) -> None: ...
    def add_norm(self, x: int, y: int, norm: int, eps: float) -> None: ...
    def add(self, x: int, y: int) -> None: ...
    def logits(self, x: int, norm: int, eps: float, head: int, softcap: float) -> None: ...
    def finish(self) -> None: ...
    def step(
        self,
        tokens: Annotated[NDArray[numpy.int32], {"shape": (None,), "order": "C", "device": "cpu", "writable": False}],
        positions: Annotated[
            NDArray[numpy.int32], {"shape": (None,), "order": "C", "device": "cpu", "writable": False}
        ],
        starts: Annotated[NDArray[numpy.int32], {"shape": (None,), "order": "C", "device": "cpu", "writable": False}],
        block_tables: Annotated[
            NDArray[numpy.int32], {"shape": (None, None), "order": "C", "device": "cpu", "writable": False}
        ],
        prompt_tokens: int,
        rows: Annotated[NDArray[numpy.int32], {"shape": (None,), "order": "C", "device": "cpu", "writable": False}],
        argmax: Annotated[NDArray[numpy.int32], {"shape": (None,), "order": "C", "device": "cpu"}],
        logits: Annotated[NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu"}],
    ) -> None: ...
    def hidden(
        self,
        tokens: Annotated[NDArray[numpy.int32], {"shape": (None,), "order": "C", "device": "cpu", "writable": False}],
        positions: Annotated[
            NDArray[numpy.int32], {"shape": (None,), "order": "C", "device": "cpu", "writable": False}
        ],
        starts: Annotated[NDArray[numpy.int32], {"shape": (None,), "order": "C", "device": "cpu", "writable": False}],
        block_tables: Annotated[
            NDArray[numpy.int32], {"shape": (None, None), "order": "C", "device": "cpu", "writable": False}
        ],
        prompt_tokens: int,
        rows: Annotated[NDArray[numpy.int32], {"shape": (None,), "order": "C", "device": "cpu", "writable": False}],
        out: Annotated[NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu"}],
    ) -> None: ...
    def copy_page(self, source: int, target: int) -> None: ...
    @property
    def prompts_differ(self) -> bool: ...
    @property
    def page_bytes(self) -> int: ...
    def close(self) -> None: ...

class MlpPolicy:
    def __init__(
        self, obs_size: int, hidden: Sequence[int], activation: str, gaussian: bool, sizes: Sequence[int], isa: str
    ) -> None: ...
    @property
    def n_parameters(self) -> int: ...
    def forward(
        self,
        parameters: Annotated[
            NDArray[numpy.float32], {"shape": (None,), "order": "C", "device": "cpu", "writable": False}
        ],
        obs: Annotated[
            NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu", "writable": False}
        ],
        logits: Annotated[NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu"}],
        values: Annotated[NDArray[numpy.float32], {"shape": (None,), "order": "C", "device": "cpu"}],
    ) -> None: ...
    def act(
        self,
        parameters: Annotated[
            NDArray[numpy.float32], {"shape": (None,), "order": "C", "device": "cpu", "writable": False}
        ],
        obs: Annotated[
            NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu", "writable": False}
        ],
        seed: int,
        first_env: int,
        step: int,
        greedy: bool,
        actions: Annotated[NDArray[numpy.uint8], {"order": "C", "device": "cpu"}],
        log_probs: Annotated[NDArray[numpy.float32], {"shape": (None,), "order": "C", "device": "cpu"}],
        values: Annotated[NDArray[numpy.float32], {"shape": (None,), "order": "C", "device": "cpu"}],
    ) -> None: ...

class Weights:
    def __init__(self, size: int) -> None: ...
    def publish(
        self,
        flat: Annotated[NDArray[numpy.float32], {"shape": (None,), "order": "C", "device": "cpu", "writable": False}],
    ) -> int: ...
    def read_into(
        self, flat: Annotated[NDArray[numpy.float32], {"shape": (None,), "order": "C", "device": "cpu"}]
    ) -> int: ...
    @property
    def version(self) -> int: ...
    def __len__(self) -> int: ...

class Collector:
    def __init__(
        self,
        obs_size: int,
        hidden: Sequence[int],
        activation: str,
        gaussian: bool,
        sizes: Sequence[int],
        reset: int,
        step: int,
        restart: int,
        state_bytes: int,
        envs: int,
        steps: int,
        threads: int,
        shard: int,
        normalise_obs: bool,
        normalise_reward: bool,
        update_moments: bool,
        greedy: bool,
        obs_limit: float,
        reward_limit: float,
        gamma: float,
        epsilon: float,
        bad_values: str,
        action_low: Sequence[float],
        action_high: Sequence[float],
        isa: str,
    ) -> None: ...
    def reset(self, seed: int) -> None: ...
    def collect(
        self,
        parameters: Annotated[
            NDArray[numpy.float32], {"shape": (None,), "order": "C", "device": "cpu", "writable": False}
        ],
        obs: Annotated[NDArray[numpy.float32], {"shape": (None, None, None), "order": "C", "device": "cpu"}],
        actions: Annotated[NDArray[numpy.uint8], {"order": "C", "device": "cpu"}],
        log_probs: Annotated[NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu"}],
        values: Annotated[NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu"}],
        rewards: Annotated[NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu"}],
        terminated: Annotated[NDArray[numpy.uint8], {"shape": (None, None), "order": "C", "device": "cpu"}],
        truncated: Annotated[NDArray[numpy.uint8], {"shape": (None, None), "order": "C", "device": "cpu"}],
        final_values: Annotated[NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu"}],
        last_values: Annotated[NDArray[numpy.float32], {"shape": (None,), "order": "C", "device": "cpu"}],
        timeout_s: float | None,
    ) -> str: ...
    def cancel(self) -> None: ...
    def clear_cancel(self) -> None: ...
    def episodes(
        self,
        totals: Annotated[NDArray[numpy.float64], {"shape": (None,), "order": "C", "device": "cpu"}],
        lengths: Annotated[NDArray[numpy.int64], {"shape": (None,), "order": "C", "device": "cpu"}],
    ) -> None: ...
    @property
    def n_episodes(self) -> int: ...
    @property
    def n_faults(self) -> int: ...
    @property
    def fault(self) -> object: ...
    def state_views(self) -> dict: ...
    def resume(self) -> None: ...

def gae(
    rewards: Annotated[
        NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu", "writable": False}
    ],
    values: Annotated[
        NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu", "writable": False}
    ],
    terminated: Annotated[
        NDArray[numpy.uint8], {"shape": (None, None), "order": "C", "device": "cpu", "writable": False}
    ],
    truncated: Annotated[
        NDArray[numpy.uint8], {"shape": (None, None), "order": "C", "device": "cpu", "writable": False}
    ],
    final_values: Annotated[
        NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu", "writable": False}
    ],
    last_values: Annotated[
        NDArray[numpy.float32], {"shape": (None,), "order": "C", "device": "cpu", "writable": False}
    ],
    gamma: float,
    lam: float,
    advantages: Annotated[NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu"}],
    returns: Annotated[NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu"}],
) -> None: ...
def vtrace(
    rewards: Annotated[
        NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu", "writable": False}
    ],
    values: Annotated[
        NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu", "writable": False}
    ],
    terminated: Annotated[
        NDArray[numpy.uint8], {"shape": (None, None), "order": "C", "device": "cpu", "writable": False}
    ],
    truncated: Annotated[
        NDArray[numpy.uint8], {"shape": (None, None), "order": "C", "device": "cpu", "writable": False}
    ],
    final_values: Annotated[
        NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu", "writable": False}
    ],
    last_values: Annotated[
        NDArray[numpy.float32], {"shape": (None,), "order": "C", "device": "cpu", "writable": False}
    ],
    log_rhos: Annotated[
        NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu", "writable": False}
    ],
    gamma: float,
    lam: float,
    clip_rho: float,
    clip_c: float,
    clip_pg_rho: float,
    targets: Annotated[NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu"}],
    advantages: Annotated[NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu"}],
) -> None: ...
def n_step(
    rewards: Annotated[
        NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu", "writable": False}
    ],
    values: Annotated[
        NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu", "writable": False}
    ],
    terminated: Annotated[
        NDArray[numpy.uint8], {"shape": (None, None), "order": "C", "device": "cpu", "writable": False}
    ],
    truncated: Annotated[
        NDArray[numpy.uint8], {"shape": (None, None), "order": "C", "device": "cpu", "writable": False}
    ],
    final_values: Annotated[
        NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu", "writable": False}
    ],
    last_values: Annotated[
        NDArray[numpy.float32], {"shape": (None,), "order": "C", "device": "cpu", "writable": False}
    ],
    gamma: float,
    n: int,
    returns: Annotated[NDArray[numpy.float32], {"shape": (None, None), "order": "C", "device": "cpu"}],
) -> None: ...

class Learner:
    def __init__(
        self,
        obs_size: int,
        hidden: Sequence[int],
        activation: str,
        gaussian: bool,
        sizes: Sequence[int],
        seed: int,
        threads: int,
        isa: str = "",
    ) -> None: ...
    def load(
        self,
        parameters: Annotated[NDArray[numpy.float32], {"shape": (None,), "order": "C", "device": "cpu"}],
        first_moments: Annotated[NDArray[numpy.float32], {"shape": (None,), "order": "C", "device": "cpu"}],
        second_moments: Annotated[NDArray[numpy.float32], {"shape": (None,), "order": "C", "device": "cpu"}],
        steps: int,
        updates: int,
    ) -> None:
        """Take over the state of an optimiser."""

    def save(
        self,
        parameters: numpy.typing.NDArray[numpy.float32],
        first_moments: numpy.typing.NDArray[numpy.float32],
        second_moments: numpy.typing.NDArray[numpy.float32],
    ) -> tuple[int, int]:
        """
        Write the state into three arrays float32[n_parameters]; gives (steps, updates).
        """

    def update(
        self,
        obs: numpy.typing.NDArray[numpy.float32],
        actions: numpy.typing.NDArray[numpy.int32] | numpy.typing.NDArray[numpy.float32],
        log_probs: numpy.typing.NDArray[numpy.float32],
        values: numpy.typing.NDArray[numpy.float32],
        advantages: numpy.typing.NDArray[numpy.float32],
        returns: numpy.typing.NDArray[numpy.float32],
        *,
        epochs: int,
        minibatches: int,
        ratio: bool,
        clip: float,
        value_clip: float,
        normalise_advantages: bool,
        value_coef: float,
        entropy_coef: float,
        max_grad_norm: float,
        target_kl: float,
        learning_rate: float,
        beta1: float,
        beta2: float,
        epsilon: float,
    ) -> dict[str, Any]:
        """
        Run all epochs over obs[count][D], actions[count][K] and columns of `count`, without the GIL; gives
        mean losses. An error leaves the parameters as they were.
        """

class EnvTeam:
    """
    Threads that run the three functions of a compiled environment over their shards of a batch.
    One call at a time; the addresses must stay good.
    """

    def __init__(self, reset: int, restart: int, step: int, n: int, threads: int) -> None: ...
    def reset(
        self,
        state: Annotated[NDArray[numpy.uint8], {"order": "C", "device": "cpu"}],
        seed: int,
        obs: Annotated[NDArray[numpy.float32], {"order": "C", "device": "cpu"}],
    ) -> None: ...
    def restart(
        self,
        state: Annotated[NDArray[numpy.uint8], {"order": "C", "device": "cpu"}],
        seed: int,
        mask: Annotated[NDArray[numpy.uint8], {"order": "C", "device": "cpu", "writable": False}],
        obs: Annotated[NDArray[numpy.float32], {"order": "C", "device": "cpu"}],
    ) -> None: ...
    def step(
        self,
        state: Annotated[NDArray[numpy.uint8], {"order": "C", "device": "cpu"}],
        seed: int,
        actions: Annotated[NDArray, {"order": "C", "writable": False}],
        obs: Annotated[NDArray[numpy.float32], {"order": "C", "device": "cpu"}],
        final_obs: Annotated[NDArray[numpy.float32], {"order": "C", "device": "cpu"}],
        reward: Annotated[NDArray[numpy.float32], {"order": "C", "device": "cpu"}],
        terminated: Annotated[NDArray[numpy.uint8], {"order": "C", "device": "cpu"}],
        truncated: Annotated[NDArray[numpy.uint8], {"order": "C", "device": "cpu"}],
        autoreset: int,
    ) -> None: ...
    @property
    def threads(self) -> int: ...

class ReplayMemory:
    @overload
    def __init__(
        self, segment: SharedSegment, field_bytes: Sequence[int], capacity: int, note: str, first: int
    ) -> None: ...
    @overload
    def __init__(self, segment: SharedSegment) -> None: ...
    @staticmethod
    def bytes_for(field_bytes: Sequence[int], capacity: int, note_bytes: int) -> int: ...
    def _describe(self, fields: list[tuple[str, str, int, str, list[int]]]) -> None: ...
    def push(self, **rows: object) -> int: ...
    def _sample(self, out: dict[str, Any], slots: object, sequences: object, seed: int, number: int) -> None: ...
    def _gather(self, out: dict[str, Any], slots: object, sequences: object) -> int: ...
    def clear(self) -> None: ...
    def __len__(self) -> int: ...
    def _stats(self) -> tuple[int, int, int]: ...
    def _window(self) -> tuple[int, int]: ...
    def _check(self) -> tuple[int, int, int, int]: ...
    @property
    def note(self) -> str: ...
    @property
    def capacity(self) -> int: ...
    @property
    def slot_bytes(self) -> int: ...

class ReplayPriorities:
    def __init__(self, memory: ReplayMemory, alpha: float, epsilon: float) -> None: ...
    def sample(
        self,
        out: dict[str, Any],
        slots: object,
        sequences: object,
        weights: object,
        seed: int,
        number: int,
        beta: float,
    ) -> None: ...
    def update(self, slots: object, sequences: object, priorities: object) -> int: ...
    def leaves(
        self, out: Annotated[NDArray[numpy.float64], {"shape": (None,), "order": "C", "device": "cpu"}]
    ) -> None: ...
    def restore(
        self,
        leaves: Annotated[NDArray[numpy.float64], {"shape": (None,), "order": "C", "device": "cpu"}],
        newest: float,
    ) -> None: ...
    def check_integrity(self) -> None: ...
    @property
    def newest(self) -> float: ...

class ReplayNStep:
    def __init__(
        self, memory: ReplayMemory, roles: Sequence[int], finals: Sequence[str], streams: int, n: int, gamma: float
    ) -> None: ...
    def push(self, terminated: object, truncated: object, active: object = None, **step: object) -> int: ...
    def discard(self, stream: int) -> None: ...
    def _save(
        self,
        images: Annotated[NDArray[numpy.uint8], {"shape": (None,), "order": "C", "device": "cpu"}],
        returns: Annotated[NDArray[numpy.float64], {"shape": (None,), "order": "C", "device": "cpu"}],
        starts: Annotated[NDArray[numpy.int64], {"shape": (None,), "order": "C", "device": "cpu"}],
        counts: Annotated[NDArray[numpy.int64], {"shape": (None,), "order": "C", "device": "cpu"}],
    ) -> None: ...
    def _restore(
        self,
        images: Annotated[NDArray[numpy.uint8], {"shape": (None,), "order": "C", "device": "cpu"}],
        returns: Annotated[NDArray[numpy.float64], {"shape": (None,), "order": "C", "device": "cpu"}],
        starts: Annotated[NDArray[numpy.int64], {"shape": (None,), "order": "C", "device": "cpu"}],
        counts: Annotated[NDArray[numpy.int64], {"shape": (None,), "order": "C", "device": "cpu"}],
    ) -> None: ...
    @property
    def streams(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def _image_bytes(self) -> int: ...
