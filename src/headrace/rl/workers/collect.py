"""Rollouts from environments in worker processes: a policy in, the same `Trajectory` as from compiled ones out.

    env = ProcessVectorEnv.make("LunarLander-v3", 16, autoreset_mode="SameStep")
    collector = WorkerCollector(env, n_steps=128)
    trajectory = collector.collect(weights)            # the native network, or any `Actor`

Every environment takes its T steps at its own pace: with `min_ready` below their number, the policy acts as soon as so
many are ready, and slow ones hold up nobody until the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.core.context import Context
from headrace.errors import DeadlineExceeded, InvalidInput
from headrace.rl.normalise import Moments, Normaliser, RewardScaler
from headrace.rl.policy import Floats, MlpSpec, Policy, Weights, mlp_for
from headrace.rl.spec import Box
from headrace.rl.trajectory import EpisodeStats, Trajectory
from headrace.rl.workers.actors import Actor, NativeActor
from headrace.rl.workers.flatten import env_spec, flat_rows
from headrace.rl.workers.vector import ProcessVectorEnv

__all__ = ["Actor", "WorkerCollector"]

_SLICE_S = 0.1  # how soon a cancelled context is noticed


class WorkerCollector:
    """`n_steps` steps of all environments of `env`, which must have `autoreset_mode="SameStep"`.

    Args:
        env: Not closed by the collector. Observations are flattened (`flat_rows`); actions are Discrete, MultiDiscrete
            or Box.
        spec: The native network's, for `Weights`; default: `mlp_for(collector.env_spec)`.
        seed: Of the environments' first episodes and of the native network's draws.
        min_ready: How many environments the policy waits for; default: all, which makes runs reproducible.
        normalise_obs, normalise_rewards, gamma, obs_limit, reward_limit, update_moments, greedy, clip_actions: As for
            `headrace.rl.rollout.Collector`.

    Raises `InvalidInput` where environment, policy and settings do not fit.
    """

    def __init__(
        self,
        env: ProcessVectorEnv,
        spec: MlpSpec | None = None,
        *,
        n_steps: int,
        seed: int = 0,
        min_ready: int | None = None,
        normalise_obs: bool = True,
        normalise_rewards: bool = False,
        gamma: float = 0.99,
        obs_limit: float = 10.0,
        reward_limit: float = 10.0,
        update_moments: bool = True,
        greedy: bool = False,
        clip_actions: bool = True,
    ) -> None:
        pool = env.pool
        if pool.autoreset != "SameStep":
            raise InvalidInput(f"collector: expected autoreset_mode 'SameStep', got {pool.autoreset!r}")
        least = pool.n_envs if min_ready is None else min_ready
        if n_steps < 1 or not 1 <= least <= pool.n_envs:
            raise InvalidInput(
                f"collector: expected n_steps >= 1 and min_ready 1 … {pool.n_envs}, got {n_steps}, {least}"
            )
        self.env, self.env_spec = env, env_spec(pool.spaces)
        fitting = mlp_for(self.env_spec)
        self.spec = fitting if spec is None else spec
        if (self.spec.obs_size, self.spec.head) != (fitting.obs_size, fitting.head):
            raise InvalidInput(
                f"collector: {self.env_spec.id} wants a policy of {fitting.obs_size} inputs and {fitting.head}, "
                f"got {self.spec.obs_size} and {self.spec.head}"
            )
        self.n_envs, self.n_steps, self.seed, self.greedy = env.num_envs, n_steps, seed, greedy
        self._least, self._update = least, update_moments
        self._normalises, self._obs_limit = normalise_obs, obs_limit
        self._clips = clip_actions and isinstance(self.env_spec.action, Box)
        self._moments = Moments.zeros(self.spec.obs_size)
        self._scaler = RewardScaler(self.n_envs, gamma, limit=reward_limit) if normalise_rewards else None
        self._policy = Policy(self.spec)
        self._raw = np.empty((n_steps, self.n_envs, self.spec.obs_size), np.float32)
        self._next = np.empty((self.n_envs, self.spec.obs_size), np.float32)  # not acted upon yet
        self._begins = np.ones(self.n_envs, np.bool_)
        self._own: Trajectory | None = None
        self._steps = 0
        self._begun = False

    def reset(self, seed: int) -> None:
        """Begin new episodes with the next collect; moments stay."""
        self.seed, self._begun, self._steps = seed, False, 0

    def collect(
        self, policy: Weights | Floats | Actor, *, out: Trajectory | None = None, ctx: Context | None = None
    ) -> Trajectory:
        """Take the steps; `out` (default: the collector's own) is overwritten and returned.

        Episodes that a fault cut are truncated; `stats` leaves them out. After an error all episodes begin anew.
        Raises what `ProcessVectorEnv.recv` raises, and the error of `ctx` when that ends.
        """
        if out is None:
            out = self._own = self._own or Trajectory.empty(self.spec, self.n_envs, self.n_steps)
        version = 0
        if isinstance(policy, (Weights, np.ndarray)):
            flat, version = policy.read() if isinstance(policy, Weights) else (policy, 0)
            actor: Actor = NativeActor(self._policy, flat, self.seed, self.greedy)
        else:
            actor = policy
        begun, self._begun = self._begun, False
        if not begun:
            self.env.reset(seed=self.seed)
            self._next[:] = flat_rows(self.env.pool.board.obs, slice(None))
            self._begins[:] = True
        bad_before = self.env.tally.faults["bad_value"]
        normaliser = Normaliser.of(self._moments, self._obs_limit) if self._normalises else None
        returns, lengths = self._run(actor, normaliser, out, ctx)
        if self._update and self._normalises:
            self._moments.update(self._raw)
        self._scale(out)
        bad = self.env.tally.faults["bad_value"] - bad_before
        out.version, out.first_step = version, self._steps
        out.stats = EpisodeStats(np.array(returns, np.float64), np.array(lengths, np.int64), bad)
        self._steps += self.n_steps
        self._begun = True
        return out

    def _run(
        self, actor: Actor, normaliser: Normaliser | None, out: Trajectory, ctx: Context | None
    ) -> tuple[list[float], list[int]]:
        pool, board = self.env.pool, self.env.pool.board
        returns: list[float] = []
        lengths: list[int] = []
        taken = np.zeros(self.n_envs, np.int64)
        ids = np.arange(pool.n_envs)
        while True:
            rows = self.env.rows(ids)
            going = ids[taken[rows[:: pool.agents]] < self.n_steps]
            if len(going):
                self._act(actor, normaliser, out, going, taken)
            if not pool.busy:
                break
            ids = np.sort(self._receive(ctx))
            rows = self.env.rows(ids)
            at = (taken[rows], rows)
            terminated, truncated = board.terminated[rows], board.truncated[rows]
            out.rewards[at] = board.rewards[rows]
            out.terminated[at], out.truncated[at] = terminated, truncated
            out.final_values[at] = 0.0
            cut = rows[truncated]
            if len(cut):
                final = flat_rows(board.final, cut)
                out.final_values[taken[cut], cut] = actor.value(normaliser(final) if normaliser else final, cut)
            self._next[rows], self._begins[rows] = flat_rows(board.obs, rows), terminated | truncated
            _, faults = pool.take_infos()
            if pool.agents > 1 and not board.alive[rows].all():
                raise InvalidInput(
                    "collector: an agent left a running episode; a trajectory has no place for its absence"
                )
            for row in rows[terminated | truncated].tolist():
                if row // pool.agents not in faults:
                    returns.append(float(board.returns[row]))
                    lengths.append(int(board.lengths[row]))
            taken[rows] += 1
        everybody = np.arange(self.n_envs)
        out.last_values[:] = actor.value(normaliser(self._next) if normaliser else self._next, everybody)
        return returns, lengths

    def _act(
        self, actor: Actor, normaliser: Normaliser | None, out: Trajectory, ids: npt.NDArray[np.intp], taken: Any
    ) -> None:
        rows = self.env.rows(ids)
        at = (taken[rows], rows)
        raw = self._next[rows]
        self._raw[at] = raw
        obs = normaliser(raw) if normaliser is not None else raw
        decision = actor.act(obs, rows, self._steps + taken[rows], self._begins[rows])
        out.obs[at] = obs
        out.actions[at], out.log_probs[at], out.values[at] = decision
        self.env.send(self._native_actions(decision.actions), None if len(ids) == self.env.pool.n_envs else ids)

    def _native_actions(self, actions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Actions as drawn, [m][K], as the environments' space has them."""
        space: Any = self.env.single_action_space
        if self._clips:
            actions = np.clip(actions, space.low.ravel(), space.high.ravel())
        return actions.reshape(len(actions), *space.shape).astype(space.dtype)

    def _receive(self, ctx: Context | None) -> npt.NDArray[np.intp]:
        pool = self.env.pool
        wanted = min(self._least, pool.busy)
        while True:
            if ctx is None:
                return np.asarray(pool.recv(wanted), np.intp)
            ctx.check()
            try:
                return np.asarray(pool.recv(wanted, _SLICE_S), np.intp)
            except DeadlineExceeded:
                continue

    def _scale(self, out: Trajectory) -> None:
        if self._scaler is None:
            return
        if self._update:
            for rewards, terminated, truncated in zip(out.rewards, out.terminated, out.truncated, strict=True):
                self._scaler.update(rewards, terminated | truncated)
        out.rewards[:] = self._scaler(out.rewards)

    @property
    def moments(self) -> tuple[Moments, Moments]:
        """Copies of the statistics of observations and of discounted returns."""
        returns = Moments.zeros(1) if self._scaler is None else self._scaler.moments.copy()
        return self._moments.copy(), returns

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Statistics, returns so far and the number of steps. The environments' own state stays in their processes."""
        observations, returns = self.moments
        running = np.zeros(self.n_envs) if self._scaler is None else self._scaler.returns.copy()
        state = {"steps": np.array([self._steps]), "returns": running}
        for kind, moments in (("obs", observations), ("return", returns)):
            state |= {
                f"{kind}_count": np.array([moments.count]),
                f"{kind}_mean": moments.mean,
                f"{kind}_m2": moments.m2,
            }
        return state

    def load_state_dict(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on with these statistics, in new episodes. `InvalidInput` names what is missing or does not fit."""
        for name, own in self.state_dict().items():
            got = state.get(name)
            if got is None or got.shape != own.shape or got.dtype != own.dtype:
                told = "nothing" if got is None else f"{got.dtype}{list(got.shape)}"
                raise InvalidInput(f"collector state: {name}: expected {own.dtype}{list(own.shape)}, got {told}")

        def moments(kind: str) -> Moments:
            return Moments(float(state[f"{kind}_count"][0]), state[f"{kind}_mean"], state[f"{kind}_m2"]).copy()

        self._moments = moments("obs")
        if self._scaler is not None:
            self._scaler.moments, self._scaler.returns = moments("return"), np.zeros(self.n_envs)
        self._steps, self._begun = int(state["steps"][0]), False
