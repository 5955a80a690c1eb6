"""The compiled extension, re-exported under one name so that the rest of the package never touches `_ext`."""

from headrace._native._ext import cpu_features

__all__ = ["cpu_features"]
