"""Rollouts: a compiled environment and a policy in, trajectories out, at the speed of native code without the GIL.

    collector = Collector(make_env("headrace/CartPole-v1"), n_envs=1024, n_steps=128)
    weights = Weights(initial(collector.spec, seed=0))
    trajectory = collector.collect(weights)

Threads share the environments by shards; what comes out does not depend on how many there are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace import _native
from headrace.core.context import Context
from headrace.errors import Cancelled, InvalidInput, StageFailed
from headrace.rl.normalise import Moments
from headrace.rl.policy import Floats, Gaussian, MlpSpec, Weights, mlp_for, n_parameters, native_arguments, views
from headrace.rl.spec import Box, EnvSpec
from headrace.rl.trajectory import EpisodeStats, Trajectory

__all__ = ["BadValues", "Collector", "EpisodeStats", "NativeEnv", "Trajectory"]

BadValues: TypeAlias = Literal["stop", "drop", "clip"]


class NativeEnv(Protocol):
    """What a collector needs of an environment; `headrace.rl.envs.CompiledEnv` has it."""

    reset_address: int
    step_address: int

    @property
    def spec(self) -> EnvSpec: ...
    def state_bytes(self, n: int, /) -> int: ...


class Collector:
    """N environments and the policy that acts in them. One thread collects at a time.

    Args:
        env: Compiled environment; kept alive.
        spec: The policy; default: `mlp_for(env.spec)`.
        n_envs, n_steps: N and T of the trajectories.
        seed: Of environments and of drawn actions. Same seed, same trajectories, whatever `threads` and `shard`.
        threads: Default: one per usable CPU.
        normalise_obs: By running mean and deviation. Those are frozen while a collect runs and take in its observations
            after it; V of final observations is of the same statistics. The first collect sees raw observations.
        normalise_rewards: Divide by the running deviation of returns discounted by `gamma`, this collect included.
        obs_limit, reward_limit: Normalised numbers are clipped to +-limit.
        update_moments: False leaves the statistics as they are (evaluation).
        greedy: Take the most probable action, or the mean.
        bad_values: What happens at a NaN or an infinity: "stop" raises; "drop" cuts the episode there, counts it
            nowhere, gives that step the reward 0 and begins the next one; "clip" takes NaN as 0 (in an observation: as
            its mean) and an infinity as the limit. All are counted in `EpisodeStats.faults`.
        clip_actions: Actions of a Gaussian head are clipped to a Box's bounds on their way to the environment.
        shard: Environments a thread takes at once, a multiple of 64; default: by what fits in a core's cache.
        isa: Instruction set, e.g. "avx2"; default: `$HEADRACE_ISA`, else the best there is.

    Raises `InvalidInput` where policy and environment do not fit each other or a setting is out of range.
    """

    def __init__(
        self,
        env: NativeEnv,
        spec: MlpSpec | None = None,
        *,
        n_envs: int,
        n_steps: int,
        seed: int = 0,
        threads: int | None = None,
        normalise_obs: bool = True,
        normalise_rewards: bool = False,
        gamma: float = 0.99,
        obs_limit: float = 10.0,
        reward_limit: float = 10.0,
        update_moments: bool = True,
        greedy: bool = False,
        bad_values: BadValues = "stop",
        clip_actions: bool = True,
        shard: int = 0,
        isa: str = "",
    ) -> None:
        if n_envs < 1 or n_steps < 1 or shard < 0 or (threads is not None and threads < 1):
            raise InvalidInput(
                f"collector: expected n_envs, n_steps and threads of at least 1 and shard of at least 0, got "
                f"{n_envs}, {n_steps}, {threads} and {shard}"
            )
        fitting = mlp_for(env.spec)
        self.env = env
        self.spec = fitting if spec is None else spec
        if (self.spec.obs_size, self.spec.head) != (fitting.obs_size, fitting.head):
            raise InvalidInput(
                f"collector: {env.spec.id} wants a policy of {fitting.obs_size} inputs and {fitting.head}, "
                f"got {self.spec.obs_size} and {self.spec.head}"
            )
        self.n_envs, self.n_steps = n_envs, n_steps
        space = env.spec.action
        clips = clip_actions and isinstance(space, Box) and isinstance(self.spec.head, Gaussian)
        low, high = (space.low.ravel().tolist(), space.high.ravel().tolist()) if clips else ([], [])  # type: ignore[union-attr]
        self._native = _native.Collector(
            *native_arguments(self.spec),
            env.reset_address,
            env.step_address,
            getattr(env, "restart_address", 0),
            env.state_bytes(n_envs),
            n_envs,
            n_steps,
            threads or len(os.sched_getaffinity(0)),
            shard,
            normalise_obs,
            normalise_rewards,
            update_moments,
            greedy,
            obs_limit,
            reward_limit,
            gamma,
            1e-8,
            bad_values,
            low,
            high,
            isa,
        )
        self._snapshot = np.empty(n_parameters(self.spec), np.float32)
        self._state: dict[str, npt.NDArray[Any]] = self._native.state_views()
        self._own: Trajectory | None = None
        self.reset(seed)

    def reset(self, seed: int) -> None:
        """Begin episode 0 of every environment and count steps from 0; the moments stay."""
        if not 0 <= seed < 1 << 64:
            raise InvalidInput(f"collector: expected a seed in 0 … 2^64 - 1, got {seed}")
        self._native.reset(seed)

    def collect(
        self, weights: Weights | Floats, *, out: Trajectory | None = None, ctx: Context | None = None
    ) -> Trajectory:
        """Take T steps in every environment with the parameters that are current now.

        `out` (default: the collector's own) is overwritten and returned. After an error the collector must be reset.

        Raises `StageFailed` that names environment, step and action for a NaN or an infinity from the environment,
        `InvalidInput` for parameters that do not fit or are not finite, the error of `ctx` when that ends, which is
        looked at between steps.
        """
        if out is None:
            out = self._own = self._own or Trajectory.empty(self.spec, self.n_envs, self.n_steps)
        if isinstance(weights, Weights):
            _, version = weights.read(self._snapshot)
        else:
            views(self.spec, weights)
            self._snapshot[...], version = weights, 0
        if ctx is not None:
            ctx.check()
        self._native.clear_cancel()
        undo = ctx.on_cancel(lambda _: self._native.cancel()) if ctx is not None else None
        first_step = int(self._state["step"][0])
        try:
            outcome = self._native.collect(
                self._snapshot, out.obs, out.actions.reshape(-1).view(np.uint8), out.log_probs, out.values,
                out.rewards, out.terminated, out.truncated, out.final_values, out.last_values,
                None if ctx is None else ctx.remaining_s(),
            )  # fmt: skip
        finally:
            if undo is not None:
                undo()
        if outcome == "fault":
            raise StageFailed(self.env.spec.id, _told(self._fault()))
        if outcome == "cancelled":
            if ctx is not None:
                ctx.check()
            raise Cancelled("collect was cancelled")
        out.version, out.first_step, out.stats = version, first_step, self._drain()
        return out

    @property
    def fault(self) -> str:
        """The first NaN or infinity of the last collect in words, or ""; for "drop" and "clip"."""
        return _told(fault) if (fault := self._fault()) else ""

    @property
    def moments(self) -> tuple[Moments, Moments]:
        """Copies of the statistics of observations and of discounted returns."""
        s = self._state
        found = (Moments(float(s[f"{k}_count"][0]), s[f"{k}_mean"], s[f"{k}_m2"]).copy() for k in ("obs", "return"))
        return next(found), next(found)

    def set_moments(self, observations: Moments, returns: Moments | None = None) -> None:
        """Normalise by these from now on, e.g. those of another collector. `InvalidInput` for another size."""
        for kind, moments in (("obs", observations), ("return", returns)):
            if moments is None:
                continue
            if moments.mean.shape != self._state[f"{kind}_mean"].shape:
                raise InvalidInput(f"moments: expected {self._state[f'{kind}_mean'].shape}, got {moments.mean.shape}")
            for name, value in (("count", moments.count), ("mean", moments.mean), ("m2", moments.m2)):
                self._state[f"{kind}_{name}"][...] = value

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of all that the next collect depends on: environments, random numbers, moments, running episodes."""
        return {name: array.copy() for name, array in self._state.items()}

    def load_state_dict(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on where `state` was taken, bit for bit. `InvalidInput` names what is missing or does not fit."""
        for name, own in self._state.items():
            got = state.get(name)
            if got is None or got.shape != own.shape or got.dtype != own.dtype:
                told = "nothing" if got is None else f"{got.dtype}{list(got.shape)}"
                raise InvalidInput(f"collector state: {name}: expected {own.dtype}{list(own.shape)}, got {told}")
        for name, own in self._state.items():
            own[...] = state[name]
        self._native.resume()

    def _fault(self) -> dict[str, Any]:
        fault: Any = self._native.fault
        return fault or {}

    def _drain(self) -> EpisodeStats:
        count = self._native.n_episodes
        returns, lengths = np.empty(count), np.empty(count, np.int64)
        self._native.episodes(returns, lengths)
        return EpisodeStats(returns, lengths, self._native.n_faults)


def _told(fault: Mapping[str, Any]) -> str:
    where = "reward" if fault["in_reward"] else f"observation[{fault['index']}]"
    action = ", ".join(f"{number:g}" for number in fault["action"])
    return (
        f"environment {fault['env']}, step {fault['step']} (step {fault['episode_step']} of its episode), "
        f"action [{action}]: {where} is {fault['value']}"
    )
