"""Class parameters of the node engine: for every backend, and told to the node by the volume context."""

from __future__ import annotations

from typing import Any

import pytest
from csi_multi_testing.memory import MemoryBackend

from csi_multi.contract import InvalidArgument
from csi_multi.rpc import engine_parameters


def taken(**parameters: str) -> Any:
    return engine_parameters.take(MemoryBackend, parameters)


def test_the_engines_keys_are_removed_and_all_others_stay() -> None:
    parameters = {
        "tier": "ssd",
        "encryption": "luks2",
        "encryptionDiscard": "true",
        "blockSize": "4096",
        "trim": "daily",
    }
    engine_parameters.take(MemoryBackend, parameters)

    assert parameters == {"tier": "ssd"}


def test_the_context_has_what_differs_from_the_defaults() -> None:
    found = taken(encryption="luks2", encryptionDiscard="true", encryptionKeySize="512", trim="12h")

    assert found.context("xfs") == {
        "encryption": "luks2",
        "encryptionDiscard": "true",
        "fs.encryption": "luks2",
        "fsType": "xfs",
        "trim": "12h",
    }


def test_raw_block_volumes_are_encrypted_and_not_trimmed() -> None:
    assert taken(encryption="luks2", encryptionDiscard="true", trim="daily").context("") == {
        "encryption": "luks2",
        "encryptionDiscard": "true",
        "fs.encryption": "luks2",
    }


def test_a_class_without_any_of_them_has_no_context() -> None:
    assert taken().context("") == {}
    assert taken().overhead == 0


@pytest.mark.parametrize(("text", "seconds"), [("daily", 86400), ("weekly", 604800), ("12h", 43200), ("3d", 259200)])
def test_intervals_of_a_trim(text: str, seconds: int) -> None:
    assert taken(trim=text).trim.seconds == seconds


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"encryption": "luks1"}, "luks2"),
        ({"encryptionKeySize": "256"}, "'encryptionKeySize' has no effect without encryption: luks2"),
        ({"encryption": "luks2", "encryptionKeySize": "128"}, "encryptionKeySize"),
        ({"encryption": "luks2", "encryptionCipher": "aes; rm"}, "encryptionCipher"),
        ({"encryption": "luks2", "blockSize": "1024"}, "encryptionSectorSize"),
        ({"encryption": "luks2", "trim": "daily"}, "encryptionDiscard"),
        ({"trim": "0h"}, "trim"),
        ({"trim": "hourly"}, "trim"),
        ({"encrypted": "maybe"}, "encrypted"),
    ],
)
def test_what_cannot_be_is_refused_with_the_key(parameters: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        taken(**parameters)
    assert words in str(error.value)


def test_encrypted_means_luks2_as_in_ceph_csi() -> None:
    assert taken(encrypted="true").context("")["encryption"] == "luks2"
    assert taken(encrypted="false").context("") == {}
    assert taken(encrypted="false", encryption="luks2").overhead > 0


def test_encrypted_is_the_backends_where_it_has_such_a_parameter() -> None:
    class Parameters(MemoryBackend.Parameters, frozen=True):  # type: ignore[misc,name-defined]
        encrypted: bool = False

    class Encrypting(MemoryBackend):
        pass

    Encrypting.Parameters = Parameters
    parameters = {"encrypted": "true", "encryption": "luks2"}
    engine_parameters.take(Encrypting, parameters)

    assert parameters == {"encrypted": "true"}
