"""The hooks of a storage file are commands of this machine: with the handle, and in pairs."""

from __future__ import annotations

from pathlib import Path

import pytest
from csi_multi_testing import memory, storage_file
from csi_multi_testing.assertions import CheckFailed
from csi_multi_testing.driver import only_instance
from csi_multi_testing.storage import Storage
from csi_multi_testing.storage_server import is_running

from csi_multi.config.document import ConfigError
from csi_multi.config.settings import load_config
from csi_multi.contract import CommandFailed


def described(directory: Path, text: str) -> Storage:
    """Return the Storage of a file with these lines."""
    (directory / "csi.yaml").write_text("driver: {name: kit.example}\nbackends: {kit: {kind: memory}}\n")
    file = directory / "storage.yaml"
    file.write_text(f"storage:\n{text}")
    settings = only_instance(load_config(directory / "csi.yaml"), "kit")
    return storage_file.storage(storage_file.load(file), settings, memory.storage().connect)


def test_the_storage_is_away_between_two_commands(tmp_path: Path) -> None:
    (tmp_path / "volumes").mkdir()
    moved = f"  away: [mv, {tmp_path}/volumes, {tmp_path}/away]\n  back: [mv, {tmp_path}/away, {tmp_path}/volumes]\n"
    made = described(tmp_path, moved)
    assert made.away

    with made.away():
        assert not (tmp_path / "volumes").exists()

    assert (tmp_path / "volumes").exists()


def test_space_is_taken_and_given_back_by_two_commands(tmp_path: Path) -> None:
    file = tmp_path / "theirs"
    made = described(tmp_path, f"  large: 5368709120\n  occupy: [truncate, {file}, -s]\n  vacate: [rm, {file}]\n")
    assert made.occupy

    with made.occupy(12345):
        assert file.stat().st_size == 12345

    assert not file.exists()
    assert made.large == 5 << 30


def test_a_credential_is_changed_and_changed_back_by_two_commands(tmp_path: Path) -> None:
    key = tmp_path / "key"
    made = described(tmp_path, f"  rotate: [touch, {key}]\n  rotate_back: [rm, {key}]\n")
    assert made.rotate

    with made.rotate() as secrets:
        assert key.exists()

    assert not key.exists()
    assert secrets is None


def test_a_volume_is_shortened_and_made_whole_by_two_commands(tmp_path: Path) -> None:
    made = described(tmp_path, f"  shorten: [cp, {tmp_path}/csi.yaml]\n  lengthen: [rm]\n")
    assert made.shorten

    with made.shorten(f"{tmp_path}/volume"):
        assert (tmp_path / "volume").exists()

    assert not (tmp_path / "volume").exists()


def test_a_command_that_fails_in_the_middle_is_undone(tmp_path: Path) -> None:
    (tmp_path / "volumes").mkdir()
    half = f"[sh, -c, 'mv {tmp_path}/volumes {tmp_path}/away; exit 3']"
    made = described(tmp_path, f"  away: {half}\n  back: [mv, {tmp_path}/away, {tmp_path}/volumes]\n")
    assert made.away

    with pytest.raises(CommandFailed, match="sh exited with status 3"), made.away():
        pass

    assert (tmp_path / "volumes").exists()


def test_a_storage_that_does_not_come_back_is_named_with_the_error_before_it(tmp_path: Path) -> None:
    made = described(tmp_path, "  away: ['true']\n  back: [sh, -c, 'echo no disk >&2; exit 4']\n")
    assert made.away
    words = "found nothing; then Storage.back failed, do it by hand: sh exited with status 4: no disk"

    with pytest.raises(CheckFailed, match=words), made.away():
        raise CheckFailed("found nothing")


def test_the_handle_is_the_last_argument_of_a_hook_for_a_volume(tmp_path: Path) -> None:
    made = described(
        tmp_path, "  damage: [echo, damaged]\n  undamage: [echo, repaired]\n  effect: [echo, -n, in force]\n"
    )
    assert made.damage
    assert made.undamage
    assert made.effect

    assert made.damage("n1/v") == "damaged n1/v\n"
    assert made.undamage("n1/v") == "repaired n1/v\n"
    assert made.effect("n1/v; rm") == "in force n1/v; rm"


def test_a_hook_whose_command_fails_fails(tmp_path: Path) -> None:
    made = described(tmp_path, "  power_cut: ['false']\n  snapshots: 32\n")
    assert made.power_cut

    assert made.snapshots == 32
    with pytest.raises(CommandFailed):
        made.power_cut()


def test_a_server_is_killed_and_started_by_commands(tmp_path: Path) -> None:
    begin = f"[sh, -c, 'sleep 600 > /dev/null & echo $! > {tmp_path}/pid']"
    made = described(tmp_path, f"  server_pid: [cat, {tmp_path}/pid]\n  server_start: {begin}\n")
    assert made.server
    made.server.start()
    first = made.server.pid()

    made.server.restart()

    second = made.server.pid()
    assert (is_running(first), is_running(second), first == second) == (False, True, False)
    made.server.kill()


def test_hooks_that_are_left_out_skip_their_checks(tmp_path: Path) -> None:
    made = described(tmp_path, "  size: 4096\n")

    hooks = {made.away, made.damage, made.undamage, made.effect, made.snapshots, made.power_cut, made.server}
    assert hooks | {made.rotate, made.shorten} == {None}


@pytest.mark.parametrize(
    ("given", "absent"), [("vacate", "occupy"), ("away", "back"), ("back", "away"), ("server_start", "server_pid")]
)
def test_half_of_a_pair_is_refused(tmp_path: Path, given: str, absent: str) -> None:
    with pytest.raises(ConfigError, match=rf"storage\.{given} is given without storage\.{absent}; give both commands"):
        described(tmp_path, f"  {given}: [umount, /srv]\n")
