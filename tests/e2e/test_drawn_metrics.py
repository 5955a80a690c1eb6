"""A running server exports every metric that the shipped dashboard and alert rules name."""

from __future__ import annotations

import re


def test_a_running_server_exports_what_is_drawn(server, checkout):
    assert server.infer()[0] == 200
    assert server.request("POST", "/v1/pipelines/shout", b"hello", {"Content-Type": "text/plain"})[0] == 200
    status, _, scrape = server.request("GET", "/metrics")
    assert status == 200
    families = dict(re.findall(r"^# TYPE (\S+) (\S+)$", scrape.decode(), flags=re.MULTILINE))
    samples = set(re.findall(r"^([a-z_]+)(?:\{| )", scrape.decode(), flags=re.MULTILINE))
    deploy = checkout / "deploy"
    shipped = [*deploy.glob("grafana/*.json"), *deploy.glob("prometheus/*.rules.yml")]
    text = "\n".join(path.read_text("utf-8") for path in shipped)
    drawn = set(re.findall(r"\b(?:headrace|process)_[a-z_]+[a-z]\b(?=[{\[()\s,])", text))
    assert len(drawn) >= 20
    known = samples | families.keys() | {f"{n}_bucket" for n, kind in families.items() if kind == "histogram"}
    assert drawn - known == set()
