"""YAML files with the line of every key, so that every error names file, line and key."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from ..contract.params import Schema, explain, fields, unknown
from .bounded_yaml import MAX_BYTES, BoundedLoader

S = TypeVar("S", bound=Schema)
KeyPath = tuple[str, ...]

STDIN = Path("-")
MAX_NUMBER = float((1 << 63) - 1)  # the largest number of CSI messages
MAX_SECONDS = 366 * 24 * 3600  # in a key that ends with _seconds: more does not fit into the timers of the system


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
            number = values[key]
            if key.endswith("_seconds") and isinstance(number, int | float) and number > MAX_SECONDS:
                raise self.error((*path, key), f"{where}: {key!r}: expected at most {MAX_SECONDS} seconds (a year)")
        try:
            return msgspec.convert(values, schema)
        except msgspec.ValidationError as error:
            key = str(error).partition("`$.")[2].rstrip("`").partition(".")[0].partition("[")[0]
            raise self.error((*path, key), explain(error, where, schema)) from None


def read_document(file: Path) -> Document:
    """Parse a YAML file with one mapping; a duplicate key is an error. Raises ConfigError."""
    with _as_config_error(file):
        loader = BoundedLoader(_read(file))
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{file}:1: the file must be a mapping with the keys 'driver' and 'backends'")
        return _document(file, loader, node)


def read_documents(file: Path) -> Iterator[Document]:
    """Parse a YAML file with any number of mappings. Raises ConfigError."""
    with _as_config_error(file):
        loader = BoundedLoader(_read(file))
        while loader.check_node():
            node = loader.get_node()
            if isinstance(node, yaml.MappingNode):
                yield _document(file, loader, node)
            elif node and node.tag != "tag:yaml.org,2002:null":  # an empty document
                raise ConfigError(f"{file}:{node.start_mark.line + 1}: the document must be a mapping")


def _read(file: Path) -> str:
    """Read a regular file, or all of standard input for `-`.

    A file is opened without waiting: for a writer of a pipe, a reload would wait for ever.
    """
    if file == STDIN:
        return _text(file, sys.stdin.buffer.read(MAX_BYTES + 1))
    with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise ConfigError(f"{file} is not a regular file; write the configuration to one")
        return _text(file, opened.read(MAX_BYTES + 1))


def _text(file: Path, found: bytes) -> str:
    if len(found) > MAX_BYTES:
        raise ConfigError(f"{file}:1: the file is larger than {MAX_BYTES} bytes")
    return found.decode()


def _document(file: Path, loader: yaml.SafeLoader, node: yaml.MappingNode) -> Document:
    lines: dict[KeyPath, int] = {}
    _walk(file, node, (), lines)
    document = Document(file, loader.construct_document(node), lines)
    _check_values(document, (), document.values)
    return document


@contextmanager
def _as_config_error(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{file}:{line}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ConfigError(f"{file}:1: not valid YAML: {error}") from None


def _walk(file: Path, node: yaml.MappingNode, path: KeyPath, lines: dict[KeyPath, int]) -> None:
    """Record the line of every key. A key merged by `<<` has none, because it may be overridden."""
    for key_node, value in node.value:
        key, line = str(key_node.value), key_node.start_mark.line + 1
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        if key_node.tag != "tag:yaml.org,2002:str":
            raise ConfigError(f"{file}:{line}: key {key!r} is not a string; put it in quotes")
        if (*path, key) in lines:
            raise ConfigError(f"{file}:{line}: key {key!r} is given twice, first on line {lines[*path, key]}")
        lines[*path, key] = line
        if isinstance(value, yaml.MappingNode):
            _walk(file, value, (*path, key), lines)


def _check_values(document: Document, path: KeyPath, value: Any) -> None:
    """Raise ConfigError for a value that YAML has, but no setting: it would fail later, where nobody expects it."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_values(document, path, key)
            _check_values(document, (*path, str(key)), item)
    elif isinstance(value, list):
        for item in value:
            _check_values(document, path, item)
    elif isinstance(value, str) and "\0" in value:
        raise document.error(path, f"{'.'.join(path)}: contains the character NUL")
    elif isinstance(value, str) and any(0xD800 <= ord(one) < 0xE000 for one in value):
        raise document.error(path, f"{'.'.join(path)}: contains a surrogate, which is half of a character")
    elif isinstance(value, int | float) and not abs(value) <= MAX_NUMBER:
        raise document.error(path, f"{'.'.join(path)}: {str(value)[:20]} is not a number up to {MAX_NUMBER:g}")
