"""`csi-multi explain`: read what is asked, print what is told."""

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


def explain(options: argparse.Namespace) -> int:
    """Print what is asked for; return 1 when a volume would be refused. Raises ConfigError."""
    question = ExplainOptions(
        size=quantity.parse(options.size) if options.size else 0,
        place=_place(options.topology),
        node=options.node,
        source=_source(options),
        volume=options.volume_name,
        access_mode=ACCESS_MODES[options.access_mode],
        block=options.block,
        claim=_claim(options.claim),
        offline=options.offline,
    )
    classes, others = storageclass.read_storage_classes(options.storageclass)
    chosen = storageclass.select(classes, options.name, options.storageclass)
    with contextlib.redirect_stdout(sys.stderr):  # what a package prints must not spoil the output for programs
        told = [explainer.explain(options.config, one, question) for one in chosen]
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(told)).decode())
    else:
        print("\n\n".join(render.text(one) for one in told))
        if others:
            print(f"\nNot explained, because it is no StorageClass: {', '.join(others)}")
    return 1 if any(one.refused for one in told) else 0


def _place(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    if wrong := next((key for key, equals, value in pairs if not (key and equals and value)), None):
        raise ConfigError(f"--topology: {wrong!r} is not KEY=VALUE, for example zone=eu-west-1a")
    return {key: value for key, _, value in pairs}


def _claim(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name):
        raise ConfigError(f"--claim: {text!r} is not NAMESPACE/NAME")
    return namespace, name


def _source(options: argparse.Namespace) -> Source | None:
    for kind, text in ((SourceKind.SNAPSHOT, options.from_snapshot), (SourceKind.VOLUME, options.from_volume)):
        if text:
            return Source(kind=kind, handle=explainer.source(kind.value, text))
    return None
