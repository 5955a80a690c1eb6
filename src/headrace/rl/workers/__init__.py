"""Any Gymnasium or PettingZoo parallel environment, in worker processes over shared memory; faults are replaced.

`vector` has the vector environments and `collect` the rollouts for learners; both need the `rl` extra.
"""
