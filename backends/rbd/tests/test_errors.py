"""Every exit status has the meaning that the table gives it, compared with the commands on a real cluster."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from csi_multi_rbd import labels
from csi_multi_rbd.command import CommandRunner
from csi_multi_rbd.config import MIB
from csi_multi_rbd.errors import STATUSES, BrokenImage, CephCommandFailed, error_class, error_for, readable

from csi_multi.contract import Busy, ResourceExhausted, Result, StorageError, Timeout, Unavailable

from .other_client import opened
from .status_cases import CASES, named, page

if TYPE_CHECKING:
    from csi_multi_rbd.config import Config

    from .ceph_commands import Commands

PAGE = Path(__file__).parents[3] / "docs" / "rbd-commands.md"
FINAL_BUT_HARMLESS = {"PermissionDenied"}
KEY = "AQBB7B1pAAAAABAAu2vJd5qS5oZ7mVYxkZ0c8A=="


def test_what_nobody_expected_is_unavailable() -> None:
    error = error_for("rbd info k8s/a", Result(75, "", "rbd: something new\n"))

    assert type(error) is CephCommandFailed
    assert isinstance(error, Unavailable)
    assert error.status == 75
    assert str(error) == "rbd info k8s/a: something new (status 75)"


def test_no_status_is_final_but_that_of_missing_rights() -> None:
    for _, _, error, _ in STATUSES:
        may_go_on = issubclass(error, Busy | Unavailable | Timeout | ResourceExhausted)
        assert may_go_on or error.__name__ in FINAL_BUT_HARMLESS, error


def test_wrong_usage_is_not_taken_for_missing_rights() -> None:
    assert error_class(1, "rbd: unrecognised option '--x'") is CephCommandFailed


def test_a_signal_is_no_errno() -> None:
    assert type(error_for("rbd ls", Result(-2, "", ""))) is CephCommandFailed


def test_an_image_without_a_header_is_known() -> None:
    assert error_class(2, "librbd::image::OpenRequest: failed to retrieve initial metadata") is BrokenImage


def test_what_a_command_says_is_told_in_one_line_without_clocks_and_progress() -> None:
    stderr = (
        "2026-11-21T23:22:38.178+0000 7fc7764b8380 -1 librbd: rbd image v1 already exists\n\n"
        "Removing image: 0% complete...failed.\nrbd: create error: (17) File exists\n"
    )

    assert readable(stderr) == "librbd: rbd image v1 already exists; create error: (17) File exists"
    assert readable("\n") == "no output"
    assert len(readable("x" * 10000)) <= 400


@pytest.mark.parametrize(
    "stderr",
    [
        "2026-11-21T23:28:36.554+0000 7f40c8e94380 -1 auth: failed to decode key 'garbage in a secret'",
        f"keyring: {KEY} is not accepted",
        "auth: error parsing file k: error setting modifier for [client.csi] type=key val=garbage: Malformed input",
        "auth: error parsing file k: error setting modifier for [client.csi] type=garbage val=: Malformed input",
    ],
)
def test_a_key_that_a_command_shows_is_hidden(stderr: str) -> None:
    assert "garbage" not in readable(stderr)
    assert KEY[:20] not in readable(stderr)
    assert "***" in readable(stderr)


def test_the_page_about_commands_says_what_the_tables_say() -> None:
    assert PAGE.read_text() == page(), "run python -m backends.rbd.tests.status_cases > docs/rbd-commands.md"


def test_every_command_ends_with_the_status_and_class_of_the_table(
    cluster: Commands, config: Config, namespace: str, tmp_path: Path
) -> None:
    here = f"{config.pool}/{namespace}"
    (tmp_path / "empty").write_bytes(labels.empty_image(MIB, {}))
    names = {"here": here, "pool": config.pool, "file": tmp_path / "empty", **furnish(cluster, here)}
    users = strangers(cluster, config, tmp_path)
    wrong = []
    with opened(config, f"{here}/open"):
        for case in CASES:
            words = shlex.split(case.command.format(**names))
            words += {"clone": ["--rbd-default-clone-format", "2"], "import": ["--export-format", "2"]}.get(
                words[0], []
            )
            if case.command == "trash rm {here}/{open}":
                words[-1] = f"{here}/{in_trash(cluster, here, 'open')}"
            program = words.pop(0) if words[0] == "ceph" else "rbd"
            limit = ("--connect-timeout" if program == "ceph" else "--client-mount-timeout", "2")
            answer = CommandRunner().execute(program, *users[case.as_user], *limit, *words, timeout=60)
            found = error_class(answer.status, answer.stderr) if answer.status else None
            if (answer.status, found) != (case.status, named(case.kind) if case.kind else None):
                wrong.append(f"{case}: {answer}")
    assert not wrong, "\n".join(wrong)


def furnish(cluster: Commands, here: str) -> dict[str, str]:
    """Make what the cases are about."""
    for name in ("there", "kept"):
        cluster.rbd("create", f"{here}/{name}", "--size", "2M")
        cluster.rbd("snap", "create", "--no-progress", f"{here}/{name}@cut")
        clone = "clone" if name == "there" else "heir"
        cluster.rbd("clone", "--rbd-default-clone-format", "2", f"{here}/{name}@cut", f"{here}/{clone}")
    for name in ("plain", "open"):
        cluster.rbd("create", f"{here}/{name}", "--size", "1M")
    cluster.rbd("create", "--size", "1M", f"{here}/grouped")
    for group in ("taken", "other"):
        cluster.rbd("group", "create", f"{here}/{group}")
    cluster.rbd("group", "image", "add", f"{here}/taken", f"{here}/grouped")
    cluster.rbd("trash", "mv", f"{here}/kept")
    return {"kept": in_trash(cluster, here, "kept"), "open": ""}


def in_trash(cluster: Commands, here: str, name: str) -> str:
    listed = dict(line.split()[::-1] for line in cluster.rbd("trash", "ls", here).splitlines())
    return listed[name]


def strangers(cluster: Commands, config: Config, directory: Path) -> dict[str, tuple[str, ...]]:
    """Return the words that name each user of the cases."""
    key = cluster.ceph("auth", "get-or-create-key", "client.stranger", "mon", "allow r", "osd", "allow r pool=none")
    for name, text in {"stranger": key, "liar": KEY, "garbled": "no key"}.items():
        (directory / name).write_text(text.strip())

    def words(monitors: str, user: str, file: str = "") -> tuple[str, ...]:
        identity = ("--keyfile", str(directory / file)) if file else ("--keyring", config.keyring)
        return ("--conf", "/dev/null", "-m", monitors, "--id", user, *identity)

    monitors = ",".join(config.monitors)
    return {
        "": words(monitors, config.user),
        "stranger": words(monitors, "stranger", "stranger"),
        "liar": words(monitors, config.user, "liar"),
        "garbled": words(monitors, config.user, "garbled"),
        "lost": words("127.0.0.1:1", config.user),
        "astray": words("no.such.host.invalid", config.user),
    }


def test_a_client_on_the_blocklist_is_told_so(cluster: Commands, config: Config, namespace: str) -> None:
    spec = f"{config.pool}/{namespace}/busy"
    cluster.rbd("create", spec, "--size", "64M")
    user = ("--conf", "/dev/null", "-m", ",".join(config.monitors), "--id", config.user, "--keyring", config.keyring)
    bench = ("bench", "--io-type", "write", "--io-threads", "1", "--io-total", "100G", spec)
    with subprocess.Popen(
        ("rbd", *user, *bench), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as other:
        until = time.monotonic() + 20
        while not (address := re.search(r"watcher=(\S+)", cluster.rbd("status", spec))):
            assert time.monotonic() < until
        cluster.ceph("osd", "blocklist", "add", address[1])
        _, stderr = other.communicate(timeout=60)

    error = error_for("rbd bench", Result(other.returncode, "", stderr))

    cluster.ceph("osd", "blocklist", "rm", address[1])
    assert isinstance(error, StorageError)
    assert type(error) is named("ClientBlocklisted"), error
