"""Stages that turn tensors into answers."""
