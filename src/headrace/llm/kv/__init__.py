"""Pages of keys and values: who holds them, which are shared, which go first."""
