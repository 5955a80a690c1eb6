import pytest

from headrace.errors import NotFound
from headrace.serve.codec.router import MethodNotAllowed, Route, Router


def handler(request, params):
    return None


@pytest.fixture
def router():
    paths = [
        ("GET", "/"),
        ("GET", "/v2"),
        ("GET", "/v2/models/stats"),
        ("GET", "/v2/models/{model}"),
        ("POST", "/v2/models/{model}/infer"),
        ("POST", "/v2/models/{model}/versions/{version}/infer"),
        ("DELETE", "/v2/models/{model}"),
    ]
    return Router([Route(method, path, handler, {}) for method, path in paths])


@pytest.mark.parametrize(
    ("method", "path", "pattern", "params"),
    [
        ("GET", "/", "/", {}),
        ("HEAD", "/v2", "/v2", {}),
        ("GET", "/v2/", "/v2", {}),
        ("GET", "/v2/models/stats", "/v2/models/stats", {}),
        ("GET", "/v2/models/a%2Fb", "/v2/models/{model}", {"model": "a/b"}),
        ("POST", "/v2/models/m/infer", "/v2/models/{model}/infer", {"model": "m"}),
        (
            "POST",
            "/v2/models/m/versions/7/infer",
            "/v2/models/{model}/versions/{version}/infer",
            {"model": "m", "version": "7"},
        ),
    ],
)
def test_finds_the_route_and_its_parameters(router, method, path, pattern, params):
    route, found = router.find(method, path)
    assert (route.path, found) == (pattern, params)


@pytest.mark.parametrize("path", ["/nope", "/v2/models", "/v2/models//infer", "/v2/models/m/nope"])
def test_unknown_paths_are_not_found(router, path):
    with pytest.raises(NotFound):
        router.find("POST", path)


def test_a_wrong_method_names_the_right_ones(router):
    with pytest.raises(MethodNotAllowed, match="DELETE, GET") as error:
        router.find("PUT", "/v2/models/m")
    assert error.value.allowed == ("DELETE", "GET")
