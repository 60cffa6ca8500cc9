"""Passphrases: wrong, missing, changed; headers that are damaged; and volumes that are not what they are said to be."""

from __future__ import annotations

import hashlib
from pathlib import Path

import grpc
import pytest

from csi_multi._proto import csi_pb2 as pb
from csi_multi.host import loopdev
from csi_multi.node.encryption import mapper_name

from .conftest import CLASS, MIB, SECRET, Node, block, filesystem, mappers, sh
from .test_encrypted_volumes import FAILED_PRECONDITION, INVALID_ARGUMENT, MARK, read, refused, write

pytestmark = pytest.mark.devicemapper

OTHER = {"passphrase": "another one"}
NEW = {"passphrase": "a new one", "previousPassphrase": SECRET["passphrase"]}


def used(node: Node, capability: pb.VolumeCapability | None = None) -> pb.Volume:
    """Return a volume that holds data and is open nowhere."""
    volume = node.create("v", capability)
    target = node.publish(volume, capability)
    write(target if capability else target / "letter", MARK)
    node.release(volume)
    return volume


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def opens(node: Node, volume: pb.Volume, passphrase: str) -> bool:
    argv = ("cryptsetup", "open", "--test-passphrase", "--key-file", "-", str(node.stored(volume)))
    try:
        sh(*argv, input=passphrase)
    except AssertionError:
        return False
    return True


def test_a_wrong_passphrase_is_refused_and_changes_nothing(node: Node) -> None:
    volume = used(node)
    before = digest(node.stored(volume))
    refused(FAILED_PRECONDITION, "opens no key slot", node.stage, volume, secrets=OTHER)

    assert (digest(node.stored(volume)), mappers()) == (before, [])
    assert str(node.stored(volume)) not in loopdev.bound_devices().values()  # nobody unstages after a final error
    assert (node.publish(volume) / "letter").read_bytes() == MARK


@pytest.mark.parametrize("secrets", [{}, {"passphrase": ""}, {"password": "x"}], ids=["none", "empty", "other key"])
def test_a_secret_without_a_passphrase_is_refused_with_the_remedy(node: Node, secrets: dict[str, str]) -> None:
    words = "csi.storage.k8s.io/node-stage-secret-name"
    refused(INVALID_ARGUMENT, words, node.stage, node.create("v"), secrets=secrets)


def test_the_name_of_the_passphrase_in_secrets_of_ceph_csi_is_known(node: Node) -> None:
    volume = used(node)

    assert node.stage(volume, secrets={"encryptionPassphrase": SECRET["passphrase"]})


@pytest.mark.parametrize("capability", [filesystem(), block()], ids=["filesystem", "block"])
def test_an_encrypted_volume_is_never_staged_in_clear(node: Node, capability: pb.VolumeCapability) -> None:
    volume = used(node, capability if capability.HasField("block") else None)
    context = {key: value for key, value in volume.volume_context.items() if not key.startswith("encryption")}
    before = digest(node.stored(volume))

    refused(FAILED_PRECONDITION, "crypt", node.stage, volume, capability, volume_context=context)
    assert digest(node.stored(volume)) == before


def test_a_raw_block_device_whose_first_header_is_torn_is_not_staged_in_clear(node: Node) -> None:
    volume = used(node, block())
    write(node.stored(volume), bytes(4096))

    refused(FAILED_PRECONDITION, "is encrypted", node.stage, volume, block(), volume_context={})


def test_a_mapper_that_a_killed_command_left_without_a_table_is_removed(node: Node) -> None:
    volume = used(node)
    name = mapper_name("encryption.csi-multi.example", volume.volume_id)
    sh("dmsetup", "create", "--notable", name)

    with pytest.raises(grpc.RpcError) as error:
        node.stage(volume)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert (node.publish(volume) / "letter").read_bytes() == MARK


def test_a_new_volume_is_not_encrypted_where_several_nodes_write(node: Node) -> None:
    many = block("MULTI_NODE_MULTI_WRITER")
    refused(INVALID_ARGUMENT, "cannot be written from several nodes", node.create, "many", many)


def test_an_open_encrypted_volume_is_not_staged_in_clear_either(node: Node) -> None:
    volume = node.create("v", block())
    node.publish(volume, block())
    elsewhere = node.directory / "elsewhere"
    elsewhere.mkdir()

    context = {"volume_context": {}, "staging_target_path": str(elsewhere)}
    refused(FAILED_PRECONDITION, "is encrypted", node.stage, volume, block(), **context)
    assert len(mappers()) == 1  # a bound node does not keep the mapper open, and a pod may open it any time


def test_a_plain_volume_with_data_is_never_encrypted(node: Node) -> None:
    volume = node.create("v", parameters={})
    write(node.publish(volume) / "letter", MARK)
    node.release(volume)
    before = digest(node.stored(volume))

    refused(FAILED_PRECONDITION, "it holds ext4, in clear", node.stage, volume, volume_context=CLASS)
    assert digest(node.stored(volume)) == before


def test_data_that_the_driver_did_not_write_is_never_encrypted(node: Node) -> None:
    volume = node.create("v")
    write(node.stored(volume), MARK, offset=20 * MIB)

    refused(FAILED_PRECONDITION, "did not write", node.stage, volume)
    assert read(node.stored(volume), len(MARK), offset=20 * MIB) == MARK


def test_a_users_own_luks_header_in_a_raw_block_volume_is_the_users(node: Node) -> None:
    volume = node.create("v", block(), parameters={})
    target = node.publish(volume, block())
    sh(
        "cryptsetup",
        "luksFormat",
        "-q",
        "--pbkdf",
        "pbkdf2",
        "--iter-time",
        "100",
        "--key-file",
        "-",
        str(target),
        input="x",
    )
    node.release(volume)

    assert node.publish(volume, block())


def test_a_header_whose_first_copy_is_torn_is_used(node: Node) -> None:
    volume = used(node)
    write(node.stored(volume), bytes(4096))

    assert (node.publish(volume) / "letter").read_bytes() == MARK


def test_a_header_whose_copies_are_both_torn_is_told_and_not_replaced(node: Node) -> None:
    volume = used(node)
    write(node.stored(volume), bytes(MIB))
    before = digest(node.stored(volume))

    refused(FAILED_PRECONDITION, "luksHeaderBackup", node.stage, volume)
    assert digest(node.stored(volume)) == before


def test_a_new_passphrase_takes_the_place_of_the_previous_one(node: Node) -> None:
    volume = used(node)

    assert (node.stage(volume, secrets=NEW) / "letter").read_bytes() == MARK
    assert opens(node, volume, NEW["passphrase"])
    assert not opens(node, volume, SECRET["passphrase"])
    node.release(volume)
    assert node.stage(volume, secrets=NEW)


def test_a_change_that_was_killed_after_the_new_passphrase_was_added_is_completed(node: Node) -> None:
    volume = used(node)
    old, new = SECRET["passphrase"], NEW["passphrase"]
    add = ("cryptsetup", "luksAddKey", "-q", "--pbkdf", "pbkdf2", "--iter-time", "100", "--key-file", "-")
    sh(*add, "--keyfile-size", str(len(old)), str(node.stored(volume)), "-", input=old + new)

    assert node.stage(volume, secrets=NEW)
    assert opens(node, volume, new)
    assert not opens(node, volume, old)


def test_a_recovery_passphrase_outlives_a_change(node: Node) -> None:
    volume = used(node)
    old = SECRET["passphrase"]
    add = ("cryptsetup", "luksAddKey", "-q", "--pbkdf", "pbkdf2", "--iter-time", "100", "--key-file", "-")
    sh(*add, "--keyfile-size", str(len(old)), str(node.stored(volume)), "-", input=f"{old}recovery")
    node.stage(volume, secrets=NEW)

    assert opens(node, volume, "recovery")


def test_a_passphrase_is_neither_in_the_log_nor_in_an_argument(node: Node) -> None:
    used(node)
    log = node.driver.log.read_text()

    assert "luksFormat" in log
    assert SECRET["passphrase"] not in log
