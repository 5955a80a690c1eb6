"""The reinforcement-learning plane: environments and a policy in, trajectories and a better policy out."""
