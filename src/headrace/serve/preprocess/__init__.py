"""Stages that turn raw input into tensors."""
