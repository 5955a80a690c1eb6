"""Method and path to handler: a tree of path segments, `{name}` matching any one segment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias
from urllib.parse import unquote

import msgspec

from headrace.errors import InvalidInput, NotFound
from headrace.serve.codec.message import ErrorResponse, Request, error_response

__all__ = ["Handler", "MethodNotAllowed", "Route", "Router"]

Handler: TypeAlias = Callable[[Request, dict[str, str]], object]
"""Takes the request and the path's parameters; answers by `request.respond`, or returns a coroutine that does."""


class MethodNotAllowed(InvalidInput):
    http_status, grpc_status = 405, "UNIMPLEMENTED"

    def __init__(self, message: str, allowed: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allowed = allowed


class Route(msgspec.Struct, frozen=True):
    """One endpoint; `operation` is its OpenAPI operation object."""

    method: str
    path: str
    handler: Handler
    operation: dict[str, object]
    control: bool = False
    """Changes what the server serves; guarded by the control token."""
    error_response: ErrorResponse = error_response


class Node:
    """One path segment: what may follow, and the routes that end here."""

    __slots__ = ("children", "routes", "wildcard")

    def __init__(self) -> None:
        self.children: dict[str, Node] = {}
        self.wildcard: Node | None = None
        self.routes: dict[str, tuple[Route, tuple[str, ...]]] = {}


class Router:
    """Finds the route of a request in time proportional to the number of path segments."""

    def __init__(self, routes: list[Route]) -> None:
        self.routes = routes
        self._root = Node()
        for route in routes:
            node, names = self._root, []
            for segment in route.path.strip("/").split("/"):
                if segment.startswith("{"):
                    names.append(segment[1:-1])
                    node.wildcard = node.wildcard or Node()
                    node = node.wildcard
                else:
                    node = node.children.setdefault(segment, Node())
            node.routes[route.method] = (route, tuple(names))

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route and its path parameters. Raises `NotFound` (404) or `MethodNotAllowed` (405)."""
        node = self._root
        values: list[str] = []
        for segment in path.strip("/").split("/"):
            child = node.children.get(segment)
            if child is None:
                child = node.wildcard
                if child is None or not segment:
                    raise NotFound(f"no such path: {path}")
                values.append(unquote(segment))
            node = child
        found = node.routes.get("GET" if method == "HEAD" else method)
        if found is None:
            if not node.routes:
                raise NotFound(f"no such path: {path}")
            allowed = tuple(sorted(node.routes))
            raise MethodNotAllowed(f"{method} is not allowed on {path}; allowed: {', '.join(allowed)}", allowed)
        return found[0], dict(zip(found[1], values, strict=True))
