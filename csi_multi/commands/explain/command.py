"""`csi-multi explain`: read the options, explain the StorageClasses, print the result."""

from __future__ import annotations

import argparse
import contextlib
import sys

import msgspec

from ...config.document import ConfigError
from ...contract.model import Source, SourceKind
from . import explainer, quantity, render, storageclass
from .arguments import ACCESS_MODES
from .explainer import ExplainOptions


def explain(arguments: argparse.Namespace) -> int:
    """Print the explanations; return 1 when a volume would be refused. Raises ConfigError."""
    options = ExplainOptions(
        size=quantity.parse(arguments.size) if arguments.size else 0,
        place=_place(arguments.topology),
        node=arguments.node,
        source=_source(arguments),
        volume=arguments.volume_name,
        access_mode=ACCESS_MODES[arguments.access_mode],
        block=arguments.block,
        claim=_claim(arguments.claim),
        offline=arguments.offline,
    )
    classes, others = storageclass.read_storage_classes(arguments.storageclass)
    selected = storageclass.select(classes, arguments.name, arguments.storageclass)
    with contextlib.redirect_stdout(sys.stderr):  # a package that prints must not corrupt the JSON output
        explanations = [explainer.explain(arguments.config, one, options) for one in selected]
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(explanations)).decode())
    else:
        print("\n\n".join(render.text(one) for one in explanations))
        if others:
            print(f"\nNot explained, because only StorageClasses are: {', '.join(others)}")
    return 1 if any(one.refused for one in explanations) else 0


def _place(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    if invalid := next((key for key, equals, value in pairs if not (key and equals and value)), None):
        raise ConfigError(f"--topology: {invalid!r} is not KEY=VALUE, for example zone=eu-west-1a")
    return {key: value for key, _, value in pairs}


def _claim(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name):
        raise ConfigError(f"--claim: {text!r} is not NAMESPACE/NAME")
    return namespace, name


def _source(arguments: argparse.Namespace) -> Source | None:
    for kind, text in ((SourceKind.SNAPSHOT, arguments.from_snapshot), (SourceKind.VOLUME, arguments.from_volume)):
        if text:
            return Source(kind=kind, handle=explainer.source(kind.value, text))
    return None
