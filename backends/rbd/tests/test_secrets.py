"""Keys: from a file or a request's secrets, never visible to other processes, with no rights but the user's own."""

from __future__ import annotations

import base64
import logging
import os
import secrets as random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.command import CommandRunner
from csi_multi_rbd.config import Config

from csi_multi.contract import (
    ExpandRequest,
    InvalidArgument,
    PermissionDenied,
    Result,
    Setting,
    SizeRange,
    StorageError,
    Strings,
    Unauthenticated,
    Unavailable,
)

from .ceph import Cluster
from .volumes import SIZE, copy, create, delete, everything, image, snapshot

WRONG = base64.b64encode(b"\x01\x00" + bytes(8) + b"\x10\x00" + random.token_bytes(16)).decode()


@pytest.fixture
def given(cluster: Cluster) -> Strings:
    return {"userID": cluster.user, "userKey": cluster.key}


@pytest.fixture
def keyless(config: Config, setting: Setting) -> Iterator[RbdBackend]:
    """An instance that has no key of its own."""
    backend = RbdBackend(msgspec.structs.replace(config, keyring=""), setting)
    yield backend
    backend.close()


def test_a_key_in_a_requests_secrets_is_all_that_is_needed(
    cluster: Cluster, keyless: RbdBackend, given: Strings
) -> None:
    volume = create(keyless, "v", secrets=given)
    cut = snapshot(keyless, "s", volume, secrets=given)
    restored = copy(keyless, "r", cut, secrets=given)
    grown = ExpandRequest(handle=volume.handle, size=SizeRange(required=2 * SIZE), secrets=given)
    assert keyless.expand_volume(grown).size == 2 * SIZE

    delete(keyless, restored, cut, volume, secrets=given)
    assert everything(cluster, keyless) == []


def test_what_comes_without_a_key_is_refused_where_there_is_none(keyless: RbdBackend) -> None:
    for act in (lambda: create(keyless, "v"), lambda: keyless.get_volume("v"), lambda: keyless.delete_volume("v", {})):
        with pytest.raises(Unauthenticated, match="keyring"):
            act()


def test_a_requests_key_goes_before_the_instances(cluster: Cluster, backend: RbdBackend, config: Config) -> None:
    weak = cluster.ceph("auth", "get-or-create-key", "client.weak", "mon", "profile rbd").strip()
    secrets = {"userID": "weak", "userKey": weak}
    volume = create(backend, "v")
    for act in (
        lambda: create(backend, "w", secrets=secrets),
        lambda: snapshot(backend, "s", volume, secrets=secrets),
        lambda: delete(backend, volume, secrets=secrets),
    ):
        with pytest.raises(PermissionDenied):
            act()

    assert everything(cluster, backend) == [f"image {image(backend, volume)}"]


def test_a_wrong_key_is_one_requests_trouble(cluster: Cluster, backend: RbdBackend) -> None:
    secrets = {"userID": cluster.user, "userKey": WRONG}
    with pytest.raises(Unavailable, match=r"do not accept user client\.csi"):
        create(backend, "v", secrets=secrets)

    assert create(backend, "v").handle == "v"


@pytest.mark.parametrize(
    "secrets",
    [
        {"userID": "csi"},
        {"userKey": WRONG},
        {"userID": "client.csi", "userKey": WRONG},
        {"userID": "csi", "userKey": "no key"},
        {"userID": "--conf=/etc/shadow", "userKey": WRONG},
    ],
)
def test_secrets_that_are_no_user_and_key_are_refused_before_anything_is_run(
    backend: RbdBackend, secrets: Strings
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        create(backend, "v", secrets=secrets)

    assert not any(text in str(refused.value) for text in secrets.values() if text not in ("csi", "client.csi"))


def test_no_key_is_in_words_files_logs_or_errors(
    cluster: Cluster,
    backend: RbdBackend,
    given: Strings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    run, words_seen, keys_seen = CommandRunner.run, [], []

    def seeing(self: CommandRunner, program: str, *words: str, timeout: float, **more: Any) -> Result:
        words_seen.extend(words)
        if "--keyfile" in words:
            path = Path(words[words.index("--keyfile") + 1])
            keys_seen.append((path.read_text(), oct(path.stat().st_mode & 0o777), str(path.readlink())))
        return run(self, program, *words, timeout=timeout, **more)

    monkeypatch.setattr(CommandRunner, "run", seeing)
    volume = create(backend, "v", secrets=given)
    errors = []
    for wrong in ({**given, "userKey": WRONG}, {**given, "userID": "nobody"}):
        with pytest.raises(StorageError) as refused:
            snapshot(backend, "s", volume, secrets=wrong)
        errors.append(str(refused.value))

    assert {(text, mode) for text, mode, _ in keys_seen} == {(cluster.key, "0o600"), (WRONG, "0o600")}
    assert {link.split(" ")[0] for *_, link in keys_seen} == {"/memfd:rbd"}
    for key in (cluster.key, WRONG):
        assert not any(key in text for text in (*words_seen, *errors, caplog.text))
    assert not [name for name in os.listdir("/proc/self/fd") if "memfd:key" in _link(name)]


def _link(name: str) -> str:
    try:
        return str(Path(f"/proc/self/fd/{name}").readlink())
    except FileNotFoundError:
        return ""
