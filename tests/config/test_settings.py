"""Every error in the configuration file names the file, the line, the key and the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from csi_multi_testing.memory import MemoryConfig

from csi_multi.config.document import ConfigError, Document, read_document
from csi_multi.config.settings import Config, load_config
from csi_multi.contract.params import Schema

GOOD = """\
driver:
  name: multi.csi.example.com
  default_backend: fast
backends:
  fast: {kind: memory, capacity: 4096}
  slow:
    kind: memory
"""


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        file = tmp_path / "csi.yaml"
        file.write_text(textwrap.dedent(text))
        return file

    return write


@pytest.fixture
def refusal(written: Callable[[str], Path]) -> Callable[[str], str]:
    def text(content: str) -> str:
        file = written(content)
        with pytest.raises(ConfigError) as found:
            load_config(file)
        assert str(found.value).startswith(f"{file}:")
        return str(found.value).removeprefix(f"{file}:").lstrip()

    return text


@pytest.fixture
def good(written: Callable[[str], Path]) -> Config:
    return load_config(written(GOOD))


def test_a_good_file_is_read(good: Config) -> None:
    assert good.driver.name == "multi.csi.example.com"
    assert [(one.name, one.kind, dict(one.values)) for one in good.instances] == [
        ("fast", "memory", {"capacity": 4096}),
        ("slow", "memory", {}),
    ]


def test_what_is_not_given_has_a_default(good: Config) -> None:
    assert (good.driver.cluster, good.driver.alpha, good.driver.default_fs_type) == ("default", False, "ext4")
    assert good.driver.node


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("driver:", "drivers:", 1, ["top level", "'drivers'", "did you mean 'driver'"]),
        ("default_backend", "default_bakend", 3, ["driver", "'default_bakend'", "did you mean 'default_backend'"]),
        ("backend: fast", "backend: fsat", 3, ["default_backend", "unknown instance 'fsat'", "'fast'"]),
        ("backend: fast", "backend: monkey", 3, ["'monkey'", "valid instances: fast, slow"]),
        ("  name: multi.csi.example.com\n", "", 1, ["driver", "'name' is required"]),
        ("multi.csi.example.com", "Multi.csi.example.com", 2, ["driver", "'name'"]),
        ("multi.csi.example.com", "multi.csi.example.com1", 2, ["'name'"]),
        ("multi.csi.example.com", "multi..example.com", 2, ["'name'"]),
        ("multi.csi.example.com", "multi.-csi.example.com", 2, ["'name'"]),
        ("multi.csi.example.com", '"multi.csi.example.com\\n"', 2, ["'name'"]),
        ("multi.csi.example.com", "m" * 64, 2, ["'name'"]),
        ("multi.csi.example.com", "m", 2, ["'name'"]),
        ("multi.csi.example.com", "7", 2, ["'name'", "string"]),
        ("default_backend: fast", "workers: 4", 3, ["'workers'", "8"]),
        ("default_backend: fast", "workers: many", 3, ["'workers'", "integer"]),
        ("default_backend: fast", 'workers: "64"', 3, ["'workers'", "integer"]),
        ("default_backend: fast", "alpha: 1", 3, ["'alpha'", "boolean"]),
        ("default_backend: fast", "log_level: loud", 3, ["'log_level'", "it takes: debug, error, info, warning"]),
        ("default_backend: fast", "node: 'a b'", 3, ["'node'"]),
        ("default_backend: fast", "cluster: ''", 3, ["'cluster'"]),
        ("slow:", "Slow:", 6, ["backends.Slow", "a-z"]),
        ("slow:", "slow_1:", 6, ["backends.slow_1", "a-z"]),
        ("slow:", f"{'s' * 21}:", 6, ["1 to 20"]),
        ("slow:", '"":', 6, ["an instance name"]),
        ("slow:", "fast:", 6, ["'fast' is given twice", "line 5"]),
        ("kind: memory, cap", "kind: memory, kind: loop, cap", 5, ["'kind' is given twice"]),
        ("    kind: memory\n", "    size: 5\n", 6, ["backends.slow", "'kind' is required"]),
        ("    kind: memory\n", "    kind: [memory]\n", 6, ["backends.slow", "'kind' is required"]),
        ("    kind: memory\n", "", 6, ["'backends.slow' is required and must be a mapping"]),
        ("  slow:\n    kind: memory\n", "  7: {kind: memory}\n", 6, ["'7' is not a string", "quotes"]),
        ("  slow:\n    kind: memory\n", "  no: {kind: memory}\n", 6, ["'no' is not a string"]),
        ("  slow:\n    kind: memory\n", "  ? [a]\n  : {kind: memory}\n", 6, ["is not a string"]),
    ],
)
def test_an_error_names_line_key_and_remedy(
    old: str, new: str, line: int, words: list[str], refusal: Callable[[str], str]
) -> None:
    assert old in GOOD
    text = refusal(GOOD.replace(old, new, 1))

    assert text.startswith(f"{line}: ")
    assert all(word in text for word in words), text


@pytest.mark.parametrize("text", ["", "# nothing\n", "[]", "text", "3", "null"])
def test_a_file_without_a_mapping_is_refused(text: str, refusal: Callable[[str], str]) -> None:
    assert "the file must be a mapping with the keys 'driver' and 'backends'" in refusal(text)


@pytest.mark.parametrize("section", ["driver", "backends"])
@pytest.mark.parametrize("value", ["", "[]", "{}", "5"])
def test_a_section_that_is_no_mapping_is_refused(section: str, value: str, refusal: Callable[[str], str]) -> None:
    other = "backends: {a: {kind: b}}" if section == "driver" else "driver: {name: multi.csi}"

    assert f"'{section}' is required" in refusal(f"{other}\n{section}: {value}\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("driver: {name: multi.csi\nbackends: {}\n", "2: not valid YAML"),
        ("driver:\n\tname: x\n", "2: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("driver: !!python/object:os.system {}\n", "not valid YAML"),
        ("driver: {name: *nobody}\n", "not valid YAML"),
        ("driver: {name: 2024-13-45}\n", "not valid YAML"),
        ("driver: {name: !!int x}\n", "not valid YAML"),
        ("driver: {name: 'a\x07'}\n", "not valid YAML"),
        ("driver: &d {name: *d}\n", "contains itself"),
        ("driver: &d {name: {x: *d}}\nbackends: {}\n", "contains itself"),
    ],
)
def test_what_is_not_yaml_is_refused_with_its_line(text: str, words: str, refusal: Callable[[str], str]) -> None:
    assert words in refusal(text)


BOMB = "a0: &a0 {x: 1, y: 1}\n" + "".join(
    f"a{one}: &a{one} {{{', '.join(f'k{key}: *a{one - 1}' for key in range(9))}}}\n" for one in range(1, 12)
)
MERGE_BOMB = "a0: &a0 {x: 1}\n" + "".join(
    f"a{one}: &a{one} {{<<: [{', '.join([f'*a{one - 1}'] * 9)}]}}\n" for one in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "more than 100000 values"),
        (MERGE_BOMB, "more than 100000 values"),
        (BOMB.replace("{", "[").replace("}", "]").replace("x: 1, y: 1", "1"), "more than 100000 values"),
        ("driver: " + "{a: " * 5000 + "1" + "}" * 5000, "1: not valid YAML: nested more than 32 levels"),
        ("driver:\n  - " + "[" * 200_000, "2: not valid YAML: nested more than 32 levels"),
        ("driver: " + "- " * 100_000, "not valid YAML"),
        ("a: " + "1" * 20_000, "1: not valid YAML: a value has more than 16384 characters"),
        ("a: " + ":".join(["59"] * 50_000), "more than 16384 characters"),
        ("#" * (1 << 21), "1: the file is larger than 1048576 bytes"),
        ("driver: &d {<<: *d}", "1: not valid YAML: alias 'd' contains itself"),
        ("driver: &d [*d]", "contains itself"),
    ],
    ids=[
        "maps",
        "merged maps",
        "lists",
        "deep maps",
        "deep lists",
        "deep block",
        "digits",
        "sixties",
        "large",
        "itself",
        "list",
    ],
)
def test_a_file_that_would_take_for_ever_is_refused_before_it_is_built(
    text: str, words: str, refusal: Callable[[str], str]
) -> None:
    assert words in refusal(text)


def test_a_file_of_a_thousand_nodes_is_within_the_bounds(written: Callable[[str], Path]) -> None:
    rows = "".join(f"    n{one}: {{address: 'n{one}:9810', topology: {{rack: r{one % 40}}}}}\n" for one in range(1000))
    tls = "  tls: {ca: /a, certificate: /b, key: /c}\n"

    assert len(load_config(written(f"{GOOD}cluster:\n{tls}  nodes:\n{rows}")).cluster.nodes) == 1000


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ('"/srv/a\\0b"', "NUL"),
        ('[ok, "a\\0b"]', "NUL"),
        ('{deep: {er: "a\\0b"}}', "NUL"),
        (".inf", "inf is not a number"),
        ("-.inf", "-inf is not a number"),
        (".nan", "nan is not a number"),
        ("1.0e+300", "1e+300 is not a number"),
        ("1" * 40, "is not a number up to"),
    ],
)
def test_a_value_that_no_setting_can_have_is_refused_with_its_line(
    value: str, words: str, refusal: Callable[[str], str]
) -> None:
    text = refusal(GOOD.replace("4096", value))

    assert text.startswith("5: backends.fast.capacity")
    assert words in text


@pytest.mark.parametrize(
    "value",
    [
        "!!int ''",
        "!!float ''",
        "!!bool maybe",
        "!!timestamp soon",
        "1" + ":1" * 400 + ".0",
        "!!int 0x",
        '"\\UFFFFFFFF"',
    ],
)
def test_a_value_that_is_none_of_its_yaml_type_is_refused(value: str, refusal: Callable[[str], str]) -> None:
    assert "not valid YAML" in refusal(GOOD.replace("4096", value))


@pytest.mark.parametrize("text", ['x: "/srv/\\ud800"', '"\\ud800": 1', 'x: {"\\udfff": 1}', 'x: {"a\\0": 1}'])
def test_a_text_that_no_path_or_message_can_have_is_refused(text: str, refusal: Callable[[str], str]) -> None:
    assert refusal(GOOD.replace("capacity: 4096", text)).startswith("5: backends.fast")


def test_such_a_value_is_refused_where_it_is_merged_too(refusal: Callable[[str], str]) -> None:
    assert "backends.fast.x: .inf" in refusal(GOOD.replace("capacity: 4096", "<<: {x: .inf}")).replace(
        "inf is", ".inf is"
    )


@pytest.mark.parametrize("key", ["check_seconds", "reload_seconds", "survey_seconds"])
def test_a_time_beyond_the_timers_of_the_system_is_refused(key: str, refusal: Callable[[str], str]) -> None:
    text = refusal(GOOD.replace("  default_backend", f"  {key}: 99999999999999\n  default_backend"))

    assert text.startswith(f"3: driver: '{key}': expected at most")


def test_the_same_holds_for_the_times_of_a_backend(document: Document) -> None:
    class Own(Schema, frozen=True):
        wait_seconds: float = 1.0

    with pytest.raises(ConfigError, match=r"backends\.fast: 'wait_seconds': expected at most"):
        document.section(("backends", "fast"), Own, {"wait_seconds": 1e12})


def test_a_merged_mapping_may_be_overridden(written: Callable[[str], Path]) -> None:
    config = load_config(
        written("""
        driver: {name: multi.csi}
        backends:
          fast: &fast {kind: memory, capacity: 1}
          slow: {<<: *fast, capacity: 2}
        """)
    )

    assert [dict(one.values) for one in config.instances] == [{"capacity": 1}, {"capacity": 2}]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for file in (tmp_path / "absent.yaml", tmp_path):
        with pytest.raises(ConfigError, match=f"{file} cannot be read"):
            load_config(file)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_is_no_configuration_and_is_not_waited_for(
    kind: str, tmp_path: Path, written: Callable[[str], Path]
) -> None:
    file = tmp_path / "csi.fifo" if kind == "pipe" else Path("/dev/zero")
    if kind == "pipe":
        os.mkfifo(file)
    program = f"from csi_multi.config.settings import load_config; import pathlib; load_config(pathlib.Path('{file}'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert f"ConfigError: {file} is not a regular file" in done.stderr


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "csi.yaml"
    file.write_bytes(b"driver: \xff\xfe")

    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(file)


@pytest.fixture
def document(written: Callable[[str], Path]) -> Document:
    return read_document(written("backends:\n  fast:\n    kind: memory\n    capacity: -1\n    capasity: 5\n"))


def test_an_instances_own_keys_are_checked_with_their_line(document: Document) -> None:
    with pytest.raises(ConfigError, match=r":5: backends\.fast: unknown key 'capasity'; did you mean 'capacity'"):
        document.section(("backends", "fast"), MemoryConfig, {"capasity": 5})
    with pytest.raises(ConfigError, match=r":4: backends\.fast: 'capacity': expected `int` >= 0"):
        document.section(("backends", "fast"), MemoryConfig, {"capacity": -1})


def test_an_error_about_a_missing_key_points_at_its_section(document: Document) -> None:
    assert str(document.error(("backends", "fast", "absent"), "text")).endswith(":2: text")


def test_a_node_that_is_named_on_the_command_line_replaces_the_one_of_the_file(written: Callable[[str], Path]) -> None:
    file = written(GOOD.replace("driver:\n", "driver:\n  node: of-the-file\n"))

    assert load_config(file, "node-1.zone-a").driver.node == "node-1.zone-a"
    assert load_config(file).driver.node == "of-the-file"


def test_a_node_name_of_the_command_line_keeps_the_same_rule(written: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="'node'"):
        load_config(written(GOOD), "not a node")
