"""What the chart becomes: the examples as config/kubernetes has them, all switches as helm renders them now."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "config/helm/csi-multi"
EXAMPLES = sorted((ROOT / "config/helm/values").glob("*.yaml"))
EVERY_SWITCH = ROOT / "tests/deploy/values/every-switch.yaml"
OWN = sorted(ROOT.glob("examples/*/values.yaml"))
VALUES = [*EXAMPLES, EVERY_SWITCH, *OWN]
NAMESPACE = "csi-multi"
Object = dict[str, Any]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever needs helm or the parser has the mark `deploy`, by itself."""
    for item in items:
        if Path(__file__).parent in item.path.parents and {"helm", "parser"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("deploy")


def tool(variable: str, *names: str) -> str:
    found = next(filter(None, [os.environ.get(variable), *map(shutil.which, names)]), None)
    if not found:
        pytest.skip(f"no {names[0]}: `make deploy` builds it, and says where it is in {variable}")
    return found


@pytest.fixture(scope="session")
def parser() -> str:
    """The program of tests/deploy/parser."""
    return tool("DEPLOY_PARSER", str(ROOT / ".tools/bin/deploy-parser"))


@functools.cache
def render(helm: str, values: Path, *, tests: bool = False) -> tuple[Object, ...]:
    """Return what the chart installs, or what `helm test` creates."""
    words = [helm, "template", "csi-multi", str(CHART), "--namespace", NAMESPACE, "--values", str(values)]
    words += ["--show-only", "templates/tests/claims.yaml"] if tests else ["--skip-tests"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


@functools.cache
def stored(values: Path) -> tuple[Object, ...]:
    """What config/kubernetes has for an example; test_schemas.py holds it against what helm renders."""
    return objects((ROOT / "config/kubernetes" / values.name).read_text())


def objects(text: str) -> tuple[Object, ...]:
    return tuple(filter(None, yaml.load_all(text, yaml.CSafeLoader)))


@pytest.fixture(scope="session")
def helm() -> str:
    return tool("HELM", str(ROOT / ".tools/bin/helm-v4.3.1"), "helm")


class Release:
    """The objects of one values file, by kind and name."""

    def __init__(self, values: Path, objects: tuple[Object, ...]) -> None:
        self.values, self.objects = values, objects

    def all(self, kind: str) -> list[Object]:
        return [found for found in self.objects if found["kind"] == kind]

    def one(self, kind: str) -> Object:
        (found,) = self.all(kind)
        return found

    def pod(self, kind: str) -> Object:
        """The spec of the pods that the driver's Deployment or DaemonSet makes."""
        name = {"Deployment": "csi-multi-controller", "DaemonSet": "csi-multi-node"}[kind]
        (spec,) = [one["spec"]["template"]["spec"] for one in self.all(kind) if one["metadata"]["name"] == name]
        return dict(spec)

    def containers(self, kind: str) -> dict[str, Object]:
        """All that run as long as the pod: containers, and sidecars, which start before them and end after them."""
        pod = self.pod(kind)
        return {container["name"]: container for container in [*pod["containers"], *pod.get("initContainers", ())]}

    @property
    def config(self) -> Object:
        loaded: Object = yaml.safe_load(self.one("ConfigMap")["data"]["config.yaml"])
        return loaded


def name(values: Path) -> str:
    return values.parent.name if values in OWN else values.stem


RENDERED = [pytest.param(file, marks=pytest.mark.deploy) for file in (EVERY_SWITCH, *OWN)]


@pytest.fixture(params=[*EXAMPLES, *RENDERED], ids=name)
def release(request: pytest.FixtureRequest) -> Release:
    """The chart with one values file; every one in turn."""
    if request.param in EXAMPLES:
        return Release(request.param, stored(request.param))
    return Release(request.param, render(request.getfixturevalue("helm"), request.param))


@pytest.fixture
def rendered(helm: str, tmp_path: Path) -> Callable[..., Release]:
    """rendered(config, key=value...) is the chart with these values."""

    def release(config: str, **values: Any) -> Release:
        file = tmp_path / "rendered.yaml"
        file.write_text(yaml.safe_dump({"config": config, **values}))
        return Release(file, render.__wrapped__(helm, file))

    return release


@pytest.fixture
def whole(helm: str) -> Release:
    """The chart with every switch on."""
    return Release(EVERY_SWITCH, render(helm, EVERY_SWITCH))
