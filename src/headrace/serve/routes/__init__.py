"""The HTTP surface, one file per group of endpoints; each group is a function from what it needs to its routes."""
