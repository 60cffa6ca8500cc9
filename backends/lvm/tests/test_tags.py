"""What is written on a logical volume reads back as it was, whatever the orchestrator calls things."""

from __future__ import annotations

import re

import pytest
from csi_multi_lvm import tags
from csi_multi_lvm.making import told
from hypothesis import given, settings
from hypothesis import strategies as st

from csi_multi.contract import FailedPrecondition, Source, SourceKind, Stamp, VolumeRequest

TAG = re.compile(r"[A-Za-z0-9_+.\-/=!:#&]{1,1024}")  # lvm(8)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=128)


def stamp(name: str = "pvc-1", **more: object) -> Stamp:
    facts: dict[str, object] = {"driver": "multi.csi.test", "cluster": "prod", "digest": "ab12", **more}
    return Stamp(name=name, **facts)  # type: ignore[arg-type]


@settings(deadline=None)
@given(TEXT, TEXT, st.dictionaries(TEXT, TEXT, max_size=5))
def test_any_stamp_fits_into_tags_and_comes_back(name: str, cluster: str, context: dict[str, str]) -> None:
    written = stamp(name, cluster=cluster, context=context)
    found = tags.of_stamp(written)
    assert [tag for tag in found if not TAG.fullmatch(tag)] == []
    assert tags.stamp("v", frozenset(found)) == written


@pytest.mark.parametrize("kind", SourceKind)
def test_a_content_source_comes_back(kind: SourceKind) -> None:
    written = stamp(source=Source(kind=kind, handle="node-1/vg0/snap:1&x=~!%+ü"))
    assert tags.stamp("v", frozenset(tags.of_stamp(written))) == written


def test_a_stamp_of_two_kibibytes_takes_several_tags() -> None:
    written = stamp(context={"key": "ü" * 900})
    found = tags.of_stamp(written)
    assert len(found) > 2
    assert tags.stamp("v", frozenset(found)) == written


def test_a_person_can_read_the_usual_stamp() -> None:
    assert tags.of_stamp(stamp("pvc-1f0e")) == [
        "csi.owner=multi.csi.test/prod",
        "csi.0=name=pvc-1f0e&digest=ab12",
    ]


def test_two_owners_never_look_alike() -> None:
    assert tags.owner("a", "b/c") != tags.owner("a/b", "c")


def test_a_volume_that_lost_its_stamp_names_the_remedy() -> None:
    with pytest.raises(FailedPrecondition, match=r"csi-x has lost its tag csi\.0; restore it with lvchange"):
        tags.stamp("csi-x", frozenset({"csi.owner=a/b"}))


def test_of_two_notes_about_progress_the_careful_one_counts() -> None:
    assert tags.number({"csi.copied=4096", "csi.copied=8192"}, tags.COPIED) == 4096
    assert tags.number({"csi.new"}, tags.COPIED) == 0


def test_what_people_wrote_is_cut_to_a_tag() -> None:
    found = tags.for_people("meta.pvc-name", "data base/ü~" * 100)
    assert TAG.fullmatch(found)
    assert found.startswith("csi.meta.pvc-name=data!20base!2F!C3!BC!7E")


def test_the_claim_and_the_persistent_volume_have_tags_of_their_own() -> None:
    metadata = {"pvc/name": "data-db-0", "pvc/namespace": "prod", "pv/name": "pvc-1f0e"}
    request = VolumeRequest(stamp=stamp(), metadata=metadata)

    written = [tags.for_people(key, text) for key, text in told(request)]

    assert written == ["csi.meta.pvc-name=data-db-0", "csi.meta.pvc-namespace=prod", "csi.meta.pv-name=pvc-1f0e"]
