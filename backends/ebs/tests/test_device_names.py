"""Device names and EBS cards: what is free, what this process uses already, and how cards are balanced."""

from __future__ import annotations

import pytest
from csi_multi_ebs import device_names
from csi_multi_ebs.device_names import WRITABLE, DeviceNames, DeviceSlot
from csi_multi_ebs.resources import Ec2Instance

from csi_multi.contract import ResourceExhausted


def instance(devices: tuple[str, ...] = (), cards: dict[str, int] | None = None, id: str = "i-1") -> Ec2Instance:
    """Return an instance with a root volume and volumes at these names."""
    names = ("/dev/sda1", *devices)
    return Ec2Instance(
        id=id,
        state="running",
        type="m8gb.48xlarge",
        zone="eu-west-1a",
        devices={name: f"vol-{number}" for number, name in enumerate(names)},
        cards=cards or {},
    )


def test_one_name_is_never_given_to_two_requests_of_this_process() -> None:
    names = DeviceNames()
    given = [names.reserve(instance(), WRITABLE).name for _ in WRITABLE]

    assert given == list(WRITABLE)


def test_names_that_the_instance_shows_are_left_out() -> None:
    assert DeviceNames().reserve(instance(WRITABLE[:3]), WRITABLE) == DeviceSlot(WRITABLE[3])


def test_a_refused_name_is_the_last_choice() -> None:
    names = DeviceNames()
    names.refused("i-1", WRITABLE[0])

    assert [names.reserve(instance(), WRITABLE[:2]).name for _ in range(2)] == [WRITABLE[1], WRITABLE[1]]
    assert names.reserve(instance(id="i-2"), WRITABLE).name == WRITABLE[0]


def test_without_a_free_name_it_is_refused() -> None:
    with pytest.raises(ResourceExhausted, match="all 2 device names of instance 'i-1' are in use"):
        DeviceNames().reserve(instance(WRITABLE[:2]), WRITABLE[:2])


def test_an_instance_with_one_card_gets_no_number() -> None:
    assert DeviceNames().reserve(instance(), WRITABLE, cards=1).card is None


def test_volumes_that_are_requested_at_once_are_spread_over_the_cards() -> None:
    """The root volume is on the first card."""
    names = DeviceNames()

    assert [names.reserve(instance(), WRITABLE, cards=2).card for _ in range(6)] == [1, 0, 1, 0, 1, 0]


def test_the_card_with_the_fewest_volumes_is_chosen_and_no_volume_counts_twice() -> None:
    names = DeviceNames()
    full = {"/dev/sda1": 0, WRITABLE[0]: 0, WRITABLE[1]: 0, WRITABLE[2]: 1}
    shown = instance(WRITABLE[:3], full)

    first = names.reserve(shown, WRITABLE, cards=2)
    after = instance((*WRITABLE[:3], first.name), full | {first.name: 1})

    assert first.card == 1
    assert [names.reserve(after, WRITABLE, cards=2).card for _ in range(3)] == [1, 0, 1]


def test_a_card_that_ec2_does_not_name_is_the_first() -> None:
    assert DeviceNames().reserve(instance(WRITABLE[:2]), WRITABLE, cards=2).card == 1


def test_reservations_of_idle_instances_are_forgotten_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_names, "MAX_INSTANCES", 2)
    monkeypatch.setattr(device_names, "TAKEN_SECONDS", 0.0)
    names = DeviceNames()
    for number in range(10):
        names.reserve(instance(id=f"i-{number}"), WRITABLE)

    assert len(names._reserved) <= 4
