"""Bytes on the wire to payloads and back."""
