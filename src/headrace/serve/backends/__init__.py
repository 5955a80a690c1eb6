"""One file per way of running a model."""
