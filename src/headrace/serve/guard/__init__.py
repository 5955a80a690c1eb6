"""Checks before any model sees a request."""
