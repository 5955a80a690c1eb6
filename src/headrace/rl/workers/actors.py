"""Who decides in a rollout: observations in, actions, their log-probabilities and values out."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.rl.policy import Decision, Floats, Policy, views

__all__ = ["Actor", "NativeActor"]


class Actor(Protocol):
    """A policy in Python, e.g. of a torch learner.

    `obs` float32[m][D], normalised; `rows` int64[m], ascending: whose they are; `steps` int64[m]: the number of the
    step since the reset; `begins` bool[m]: which are the first of an episode, where a recurrent policy forgets.
    """

    def act(
        self, obs: Floats, rows: npt.NDArray[np.intp], steps: npt.NDArray[np.int64], begins: npt.NDArray[np.bool_]
    ) -> Decision: ...

    def value(self, obs: Floats, rows: npt.NDArray[np.intp]) -> Floats:
        """V of observations that are not acted upon: the last of truncated episodes, and those after the last step."""


class NativeActor:
    """The native network with parameters that stay. What it draws depends on row and step, not on who is ready when."""

    def __init__(self, policy: Policy, parameters: Floats, seed: int, greedy: bool = False) -> None:
        views(policy.spec, parameters)
        self._policy, self._parameters, self._seed, self._greedy = policy, parameters, seed, greedy

    def act(
        self, obs: Floats, rows: npt.NDArray[np.intp], steps: npt.NDArray[np.int64], begins: npt.NDArray[np.bool_]
    ) -> Decision:
        # The native call numbers the rows it is given in order, all of one step: one call for each such run.
        together = rows[-1] - rows[0] == len(rows) - 1 and (steps == steps[0]).all()
        breaks = np.flatnonzero([] if together else (np.diff(rows) != 1) | (np.diff(steps) != 0)) + 1
        parts = [
            self._policy.act(
                self._parameters,
                obs[first:last],
                greedy=self._greedy,
                seed=self._seed,
                first_env=int(rows[first]),
                step=int(steps[first]),
            )
            for first, last in zip([0, *breaks.tolist()], [*breaks.tolist(), len(rows)], strict=True)
        ]
        return (
            parts[0]
            if len(parts) == 1
            else Decision(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        )

    def value(self, obs: Floats, rows: npt.NDArray[np.intp]) -> Floats:
        return self._policy.forward(self._parameters, np.ascontiguousarray(obs))[1]
