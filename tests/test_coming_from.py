"""The pages for users of other drivers name only keys that exist here, and leave none out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from csi_multi.commands.cli import parser
from csi_multi.config.cluster import ClusterSection
from csi_multi.config.settings import Driver
from csi_multi.contract import Backend, InvalidArgument, Schema
from csi_multi.contract.params import camel, fields, keys_of, parse
from csi_multi.loading.loader import backend_classes
from csi_multi.node.encryption_options import EncryptionOptions
from csi_multi.node.mkfs_options import FilesystemOptions
from csi_multi.node.trim_options import TrimOptions
from csi_multi.rpc import engine_parameters
from csi_multi.rpc.engine_parameters import OLD_ENCRYPTION_KEY

ROOT = Path(__file__).parent.parent
PAGES = {"coming-from-aws-ebs.md": "ebs", "coming-from-ceph-csi.md": "rbd"}
CLASSES = {
    "StorageClass parameters": "Parameters",
    "VolumeSnapshotClass parameters": "SnapshotParameters",
    "VolumeAttributesClass parameters": "MutableParameters",
}
WITHOUT = "Keys without a counterpart"
WORDS = {"always", "yes", "no", "not yet", "refused"}
OF_THE_CORE = {"backend", "csi.storage.k8s.io/fstype", OLD_ENCRYPTION_KEY}
ENGINE = engine_parameters.KEYS
VALUES: dict[str, Any] = yaml.safe_load((ROOT / "config/helm/csi-multi/values.yaml").read_text())
TELEMETRY = "".join(file.read_text() for file in (ROOT / "csi_multi/telemetry").glob("*.py"))
METRICS = set(re.findall(r'"(csi_multi_\w+)"', TELEMETRY)) | {  # those of a backend are tested against its page
    name.removesuffix("_total") for name in re.findall(r"`(csi_multi_ebs_\w+)`", (ROOT / "docs/ebs.md").read_text())
}
PARAMETER = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table; `theirs` is empty in the table of keys without a counterpart."""

    section: str
    theirs: tuple[str, ...]
    ours: str
    names: tuple[str, ...]  # in backticks in the column `ours`
    difference: str


def quoted(cell: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", cell))


def rows(text: str) -> Iterator[Row]:
    """Yield the rows of all tables on a page."""
    section = ""
    for line in text.splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        if not line.startswith("| ") or line.startswith(("| ---", "| theirs |", "| ours |")):
            continue
        *theirs, ours, difference = (cell.strip() for cell in line.strip("|").split("|"))
        named = quoted(theirs[0]) if theirs else ()
        yield Row(section=section, theirs=named, ours=ours, names=quoted(ours), difference=difference)


def known_keys(schema: type[Schema]) -> set[str]:
    """Return the class parameters of a schema, as docs/parameters.md writes them."""
    return {
        name
        for field in fields(schema)
        for name in (keys_of(field).replace(".*", "_N") or camel(field.name)).split("|")
    }


def problem(name: str, section: str, backend: type[Backend]) -> str:
    """Return why a name in the column `ours` is none of this driver's, "" if it is one."""
    head, _, key = name.rpartition(".")
    schemas = {"backends.NAME": backend.Config, "driver": Driver, "cluster": ClusterSection}
    if head in schemas:
        found = key in {field.name for field in fields(schemas[head])}
    elif section == "Metrics":
        found = name.removesuffix("_total") in METRICS
    elif name in OF_THE_CORE:
        found = section in CLASSES
    elif PARAMETER.fullmatch(name) and name not in VALUES:
        found = any(name in known_keys(one) for one in _schemas(section, backend))
    else:
        found = _is_value(name)
    return "" if found else f"{section}: {name!r} does not exist"


def _schemas(section: str, backend: type[Backend]) -> list[type[Schema]]:
    """Return the schemas of a section; tables about no class may name parameters of any."""
    chosen = [CLASSES[section]] if section in CLASSES else [*CLASSES.values()]
    engine = [FilesystemOptions, EncryptionOptions, TrimOptions] if "Parameters" in chosen else []
    return [getattr(backend, name) for name in chosen] + engine


def _is_value(path: str) -> bool:
    """Return whether the chart has this value."""
    node: Any = VALUES
    for key in path.split("."):
        if not isinstance(node, dict) or key not in node:
            return False
        node = node[key]
    return True


def missing(page: list[Row], backend: type[Backend]) -> set[str]:
    """Return the keys of the backend that no table of the page has."""
    named = {name for row in page for name in row.names}
    wanted = {f"backends.NAME.{field.name}" for field in fields(backend.Config)} - named
    for section, schema in CLASSES.items():
        here = [row for row in page if row.section in (section, WITHOUT)]
        told = {name for row in here for name in (row.theirs if row.ours == "refused" else row.names)}
        keys = known_keys(getattr(backend, schema)) | (ENGINE if schema == "Parameters" else set())
        wanted |= {f"{section}: {key}" for key in keys - told}
    return wanted


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> tuple[list[Row], type[Backend]]:
    """A page's rows, and the class of its backend."""
    kind = PAGES[request.param]
    classes, _ = backend_classes([kind])
    return list(rows((ROOT / "docs" / request.param).read_text())), classes[kind]


def test_every_name_of_ours_exists(page: tuple[list[Row], type[Backend]]) -> None:
    table, backend = page

    assert len(table) > 100
    assert [text for row in table for name in row.names if (text := problem(name, row.section, backend))] == []


def test_every_row_has_names_or_one_of_the_words_that_are_explained(page: tuple[list[Row], type[Backend]]) -> None:
    table, _ = page
    wrong = [row for row in table if not row.names and row.ours not in WORDS]
    mixed = [row for row in table if row.names and ", ".join(f"`{name}`" for name in row.names) != row.ours]
    unexplained = [row for row in table if row.ours in ("no", "refused") and not row.difference]

    assert (wrong, mixed, unexplained) == ([], [], [])


def test_no_key_of_ours_is_left_out(page: tuple[list[Row], type[Backend]]) -> None:
    assert missing(*page) == set()


def test_what_is_said_to_be_refused_or_absent_is(page: tuple[list[Row], type[Backend]]) -> None:
    table, backend = page
    for row in table:
        schema = getattr(backend, CLASSES.get(row.section, ""), Schema)
        for name in filter(PARAMETER.fullmatch, row.theirs if row.section in CLASSES else ()):
            only_false = 'only `"false"`' in row.difference
            if row.ours not in ("refused", "no", "not yet") and not only_false:
                continue
            with pytest.raises(InvalidArgument) as error:
                parse(schema, {name: "true"}, "parameters")
            assert ("unknown key" in str(error.value)) == (row.ours in ("no", "not yet")), name
            if only_false:
                parse(schema, {name: "false"}, "parameters")


@pytest.mark.parametrize("file", PAGES)
def test_the_commands_of_a_page_are_ones_that_the_driver_has(file: str) -> None:
    text = (ROOT / "docs" / file).read_text().replace("\\\n", " ")
    commands = re.findall(r"^\s*csi-multi (.+?)(?: >.*)?$", text, re.MULTILINE)

    assert [parser().parse_args(shlex.split(command)).release for command in commands] == [False, True]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("| `iops` | `iopss` | |", "StorageClass parameters: 'iopss' does not exist"),
        ("| `iops` | `backends.NAME.iops` | |", "'backends.NAME.iops' does not exist"),
        ("| `iops` | `driver.iops` | |", "'driver.iops' does not exist"),
        ("| `iops` | `controller.replica` | |", "'controller.replica' does not exist"),
        ("| `iops` | `lockMode_N` | |", "'lockMode_N' does not exist"),
    ],
)
def test_a_name_that_does_not_exist_is_seen(line: str, says: str) -> None:
    (row,) = rows(f"## StorageClass parameters\n| theirs | ours | difference |\n| --- | --- | --- |\n{line}\n")
    backend = backend_classes(["ebs"])[0]["ebs"]

    assert says in problem(row.names[0], row.section, backend)


def test_a_key_that_is_left_out_is_seen() -> None:
    backend = backend_classes(["ebs"])[0]["ebs"]

    assert {"backends.NAME.region", "StorageClass parameters: iops"} < missing([], backend)
