"""What an address to listen on says: whether only this machine reaches it, and why it could not be bound."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket

__all__ = ["is_loopback", "why_not_bound"]


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def why_not_bound(error: OSError) -> str:
    """The system's reason alone: the event loop's text repeats the address."""
    if error.errno is None or isinstance(error, socket.gaierror):  # whose numbers are not the system's
        return error.strerror or str(error)
    reason = os.strerror(error.errno).lower()
    return f"{reason}; choose another with --port" if error.errno == errno.EADDRINUSE else reason
