"""The commands to the controller of an NVMe disk: what is sent, and how its answers are read."""

from __future__ import annotations

import pytest
from csi_multi_ebs import nvme_commands
from csi_multi_ebs.volume_statistics import LOG_PAGE


@pytest.mark.parametrize(("form", "logarithm", "size"), [(0, 9, 2048 * 512), (3, 12, 2048 * 4096)])
def test_an_nvme_controllers_answer_is_read_with_the_block_size_in_use(form: int, logarithm: int, size: int) -> None:
    answer = bytearray(nvme_commands.ANSWER_BYTES)
    answer[:8] = (2048).to_bytes(8, "little")
    answer[nvme_commands.FORMAT_IN_USE] = 0x10 | form  # the upper bits say something else
    answer[nvme_commands.FORMATS + 4 * form + 2] = logarithm

    assert nvme_commands.parse_identify(bytes(answer)) == size


def test_the_command_asks_for_the_whole_page_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, ...]] = []

    def ioctl(_descriptor: int, _call: int, command: bytearray) -> int:
        sent.append(nvme_commands.COMMAND.unpack(bytes(command)))
        return 0

    monkeypatch.setattr(nvme_commands.fcntl, "ioctl", ioctl)
    assert nvme_commands.log_page(0, 1, LOG_PAGE) == bytes(4096)

    ((opcode, _, _, namespace, *_, length, dword10, dword11, _, _, _, _, _, _),) = sent
    assert (opcode, namespace, length) == (0x02, 1, 4096)
    assert dword10 & 0xFF == 0xD0
    assert ((dword11 << 16 | dword10 >> 16) + 1) * 4 == 4096  # the number of dwords, counted from 0


def test_a_status_of_the_controller_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvme_commands.fcntl, "ioctl", lambda *_: 0x4109)  # invalid log page, do not retry

    with pytest.raises(OSError, match="NVMe status 0x4109"):
        nvme_commands.log_page(0, 1, LOG_PAGE)
