"""Dashboards and alert rules speak of metrics, labels and names that a server really exports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from headrace.core.telemetry import Registry, render
from headrace.core.telemetry.process import LoopLag, ProcessMetrics
from headrace.serve.metrics import ServeMetrics
from headrace.serve.repository import Repository

# Set by Prometheus itself, on every series it scrapes.
SCRAPED_LABELS = {"instance", "job"}


def _expressions(checkout: Path) -> Iterator[tuple[str, str]]:
    """(where, PromQL) of everything under deploy/."""
    for path in sorted((checkout / "deploy" / "grafana").glob("*.json")):
        for panel in json.loads(path.read_text("utf-8"))["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.name}: {panel['title']}", target["expr"]
    for path in sorted((checkout / "deploy" / "prometheus").glob("*.rules.yml")):
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]:
            for rule in group["rules"]:
                yield f"{path.name}: {rule['alert']}", rule["expr"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """sample name -> its labels, with one series in every family that a server makes."""
    registry = Registry()
    LoopLag(registry)
    Repository(tmp_path_factory.mktemp("models"), ServeMetrics(registry))
    ProcessMetrics(registry).close()
    for family in registry.families():
        family.labels(**dict.fromkeys(family.label_names, "x"))
    found: dict[str, set[str]] = {"up": set()}
    for family in text_string_to_metric_families(render(registry)[0].decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_expressions_name_what_is_exported(checkout: Path, exported: dict[str, set[str]]) -> None:
    seen = 0
    for where, expression in _expressions(checkout):
        for name, selector in re.findall(r"\b((?:headrace|process)_\w+|up)\b(?:\{([^}]*)\})?", expression):
            seen += 1
            assert name in exported, f"{where}: {name} is not exported"
            labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
            assert labels <= exported[name] | SCRAPED_LABELS, f"{where}: {name} has the labels {exported[name]}"
    assert seen >= 20


def test_groupings_name_labels_that_exist(checkout: Path, exported: dict[str, set[str]]) -> None:
    known = set().union(*exported.values()) | SCRAPED_LABELS
    for where, expression in _expressions(checkout):
        for grouping in re.findall(r"by \(([^)]*)\)", expression):
            assert {label.strip() for label in grouping.split(",")} <= known, where


def test_every_family_is_on_the_dashboard(checkout: Path, exported: dict[str, set[str]]) -> None:
    """What a server measures can be seen: a metric nobody draws is a cost without a use."""
    drawn = " ".join(expression for _, expression in _expressions(checkout))
    families = {re.sub(r"_(?:bucket|count|sum|created|total)$", "", name) for name in exported} - {"up"}
    assert {family for family in families if family not in drawn} == set()


def test_panels_are_laid_out_without_overlap(checkout: Path) -> None:
    dashboard: dict[str, Any] = json.loads((checkout / "deploy" / "grafana" / "headrace.json").read_text("utf-8"))
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in mine) < 24
        assert not cells & mine, panel["title"]
        cells |= mine
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    "command", [("check", "rules", "headrace.rules.yml"), ("test", "rules", "headrace.rules.test.yml")]
)
def test_promtool_accepts_the_rules(command: tuple[str, ...], checkout: Path) -> None:
    run = subprocess.run(
        ["promtool", *command], cwd=checkout / "deploy" / "prometheus", capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
