"""What tells one request from another. The rules themselves are tested over the wire, in rpc/."""

from __future__ import annotations

import pytest
from csi_multi_testing.memory import MemoryBackend
from hypothesis import given
from hypothesis import strategies as st

from csi_multi.contract import AlreadyExists, Setting, SizeRange, Stamp, Volume, VolumeRequest
from csi_multi.core.idempotent import create_volume, digest
from csi_multi.host.command import LocalHost
from csi_multi.loading.backend_proxy import BackendProxy, InvalidResponse, UnexpectedError

SETTING = Setting(instance="m", driver="d.example", cluster="c", node="n", host=LocalHost())
STRINGS = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4)


@given(STRINGS, STRINGS, STRINGS, STRINGS)
def test_a_digest_is_equal_only_for_equal_parameters(a: dict, b: dict, c: dict, d: dict) -> None:
    assert (digest(a, b) == digest(c, d)) == ((a, b) == (c, d))


@given(STRINGS)
def test_a_digest_does_not_depend_on_order(a: dict) -> None:
    assert digest(a) == digest(dict(reversed(list(a.items()))))


def test_a_digest_tells_parameters_from_mutable_ones() -> None:
    assert digest({"a": "b"}, {}) != digest({}, {"a": "b"})


def test_a_digest_stays_the_same_for_ever() -> None:
    """It is stored on resources: another value would turn every retry after an upgrade into a conflict."""
    assert digest({"tier": "ssd", "é": "x"}, {"iops": "5"}) == "d41781b79c5d9e6f3862affbc7c7f329"


class Taken(MemoryBackend):
    """Its names are taken, and it says by what: the volume `told`, or nothing."""

    told: object = None

    def create_volume(self, request: VolumeRequest) -> Volume:
        error = AlreadyExists("taken")
        error.existing = self.told
        raise error

    def find_volume(self, name: str) -> Volume:
        raise LookupError("it is known already")


@pytest.fixture
def taken() -> Taken:
    backend = Taken(None, SETTING)
    BackendProxy("memory", "memory", "tests", unshared=True).install(backend)
    return backend


def request(name: str = "v", digest: str = "d") -> VolumeRequest:
    stamp = Stamp(driver=SETTING.driver, cluster=SETTING.cluster, name=name, digest=digest)
    return VolumeRequest(stamp=stamp, size=SizeRange(required=1), parameters=None)


def test_what_the_backend_has_found_under_the_name_is_not_looked_for_again(taken: Taken) -> None:
    taken.told = Volume(handle="v", size=1, stamp=request().stamp)

    assert create_volume(taken, request(), "n") is taken.told
    with pytest.raises(AlreadyExists, match="other parameters"):
        create_volume(taken, request(digest="other"), "n")


@pytest.mark.parametrize(
    "told",
    [Volume(handle="", size=1, stamp=request().stamp), "no volume", Volume(handle="v", size=-1, stamp=request().stamp)],
)
def test_what_the_backend_has_found_is_checked_as_every_answer(taken: Taken, told: object) -> None:
    taken.told = told

    with pytest.raises(InvalidResponse, match="create_volume"):
        create_volume(taken, request(), "n")


def test_a_volume_of_another_name_is_not_taken_for_the_one_that_has_it(taken: Taken) -> None:
    taken.told = Volume(handle="w", size=1, stamp=request("w").stamp)

    with pytest.raises(UnexpectedError, match="find_volume"):
        create_volume(taken, request(), "n")
