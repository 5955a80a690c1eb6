"""The only place where planes meet."""
