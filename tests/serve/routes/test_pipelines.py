import json

from headrace.serve.codec.message import Request
from headrace.serve.codec.router import Router
from headrace.serve.routes.pipelines import pipeline_routes


class Answers:
    """Stands for the connection: keeps what a handler answers."""

    peer = "local"

    def __init__(self):
        self.bodies = []

    def respond(self, request, response):
        self.bodies.append(json.loads(b"".join(response.body)))


async def test_the_pipelines_that_are_ready_are_listed(disk, opened):
    disk.loose("m", "1", 2)
    disk.pipeline("p")
    stage = '[[stage]]\nop = "infer"\nwith = { model = "m" }\n'
    disk.config("q", f'description = "twice"\nconsumes = "text"\n{stage * 2}')
    disk.pipeline("waiting", model="absent")
    route, params = Router(pipeline_routes(await opened(), 100)).find("GET", "/v1/pipelines")
    answers = Answers()
    route.handler(Request(answers, b"GET", b"/v1/pipelines", {}, True, b""), params)
    assert answers.bodies == [
        {
            "pipelines": [
                {"name": "p", "consumes": "bytes", "description": "", "stages": 1},
                {"name": "q", "consumes": "text", "description": "twice", "stages": 2},
            ]
        }
    ]
