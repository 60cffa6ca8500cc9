"""A YAML loader for files that may be wrong in any way: it stops before a document becomes too large to build.

Without bounds, a few lines with aliases of aliases stand for millions of values, and deep nesting exceeds the stack.
"""

from __future__ import annotations

from typing import Any

import yaml

MAX_BYTES = 1 << 20  # of a file; as many as a ConfigMap of Kubernetes can have
MAX_DEPTH = 32  # levels of mappings and lists
MAX_VALUES = 100_000  # of a file, each alias counted as all that it stands for
MAX_TEXT = 16_384  # characters of one value; a number of more would take minutes


class BoundedLoader(yaml.SafeLoader):
    """Raises MarkedYAMLError at the first line that is out of bounds."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._total = 0
        self._values: dict[yaml.Node | None, int] = {}  # by finished node: itself and everything in it

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose one node with everything in it, or find what an alias stands for."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        alias = isinstance(event, yaml.AliasEvent)
        before = self._total
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _error(event, f"nested more than {MAX_DEPTH} levels deep")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_TEXT:
            raise _error(event, f"a value has more than {MAX_TEXT} characters")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if alias and node not in self._values:
            raise _error(event, f"alias {event.anchor!r} contains itself")
        self._total += self._values[node] if alias else 1
        if self._total > MAX_VALUES:
            raise _error(event, f"more than {MAX_VALUES} values, with those that aliases stand for")
        if not alias:
            self._values[node] = self._total - before
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Build the value of a node. PyYAML raises anything for `!!int ''`, `!!bool maybe` or the date 2024-13-45."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, ArithmeticError, LookupError, AttributeError) as error:
            kind = node.tag.rpartition(":")[2]
            raise _error(node, f"a value is no {kind}: {error}") from None


def _error(place: yaml.Event | yaml.Node, text: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=text, problem_mark=place.start_mark)  # type: ignore[arg-type]
