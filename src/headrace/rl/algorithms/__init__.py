"""Ways to learn, one a file, behind one protocol: `headrace.rl.algorithms.algorithm`."""
