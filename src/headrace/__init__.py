"""Headrace: train, quantise and serve models on one box.

Importing the package is cheap: nothing but the version and the error tree is loaded until a plane is used.
"""

from importlib.metadata import version as _version

__all__ = ["__version__"]

__version__ = _version("headrace")
