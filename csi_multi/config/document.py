"""YAML files with the line of every key, so that every error names file, line and key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from ..contract.params import Schema, explain, fields, unknown

S = TypeVar("S", bound=Schema)
KeyPath = tuple[str, ...]


class ConfigError(Exception):
    """The file or an option cannot be used; the text names the place and the reason."""


@dataclass(frozen=True, slots=True)
class Document:
    """A YAML file with the line of every key."""

    file: Path
    values: Mapping[str, Any]
    lines: Mapping[KeyPath, int]

    def error(self, path: KeyPath, text: str) -> ConfigError:
        """Return the error for a key; a path without a line of its own has its parent's."""
        known = next((path[:end] for end in range(len(path), 0, -1) if path[:end] in self.lines), ())
        return ConfigError(f"{self.file}:{self.lines.get(known, 1)}: {text}")

    def section(self, path: KeyPath, schema: type[S], values: Mapping[str, Any], also: KeyPath = ()) -> S:
        """Convert one mapping of the file to its schema; `also` are further valid keys. Raises ConfigError."""
        where = ".".join(path)
        valid = [field.name for field in fields(schema)]
        for key in values:
            if key not in valid:
                raise self.error((*path, key), unknown(where, key, [*valid, *also]))
        try:
            return msgspec.convert(values, schema)
        except msgspec.ValidationError as error:
            key = str(error).partition("`$.")[2].rstrip("`").partition(".")[0].partition("[")[0]
            raise self.error((*path, key), explain(error, where, schema)) from None


def read_document(file: Path) -> Document:
    """Parse a YAML file with one mapping; a duplicate key is an error. Raises ConfigError."""
    with _as_config_error(file):
        loader = yaml.SafeLoader(file.read_text())
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{file}:1: the file must be a mapping with the keys 'driver' and 'backends'")
        return _document(file, loader, node)


def read_documents(file: Path) -> Iterator[Document]:
    """Parse a YAML file with any number of mappings. Raises ConfigError."""
    with _as_config_error(file):
        loader = yaml.SafeLoader(file.read_text())
        while loader.check_node():
            node = loader.get_node()
            if isinstance(node, yaml.MappingNode):
                yield _document(file, loader, node)
            elif node and node.tag != "tag:yaml.org,2002:null":  # an empty document
                raise ConfigError(f"{file}:{node.start_mark.line + 1}: the document must be a mapping")


def _document(file: Path, loader: yaml.SafeLoader, node: yaml.MappingNode) -> Document:
    lines: dict[KeyPath, int] = {}
    _walk(file, loader, node, (), lines, (node,))
    return Document(file, loader.construct_document(node), lines)


@contextmanager
def _as_config_error(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{file}:{line}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{file}:1: not valid YAML: {error}") from None


def _walk(
    file: Path,
    loader: yaml.SafeLoader,
    node: yaml.MappingNode,
    path: KeyPath,
    lines: dict[KeyPath, int],
    parents: tuple[yaml.Node, ...],
) -> None:
    """Record the line of every key. A key merged by `<<` has none, because it may be overridden."""
    for key_node, value in node.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        if key_node.tag != "tag:yaml.org,2002:str":
            raise ConfigError(f"{file}:{line}: key {key!r} is not a string; put it in quotes")
        if (*path, key) in lines:
            raise ConfigError(f"{file}:{line}: key {key!r} is given twice, first on line {lines[*path, key]}")
        if any(value is parent for parent in parents):
            raise ConfigError(f"{file}:{line}: key {key!r} contains itself")
        lines[*path, key] = line
        if isinstance(value, yaml.MappingNode):
            _walk(file, loader, value, (*path, key), lines, (*parents, value))
        elif isinstance(value, yaml.ScalarNode):
            _check_scalar(file, loader, value, key)


def _check_scalar(file: Path, loader: yaml.SafeLoader, node: yaml.ScalarNode, key: str) -> None:
    """Add file and line to the ValueError that PyYAML raises for a date such as 2024-13-45."""
    try:
        loader.construct_object(node)
    except ValueError as error:
        raise ConfigError(f"{file}:{node.start_mark.line + 1}: {key!r}: not valid YAML: {error}") from None
