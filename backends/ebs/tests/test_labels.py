"""Tags of volumes and snapshots are valid in EC2, can be read again, and name the owner."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import pytest
from csi_multi_ebs import labels
from csi_multi_ebs.config import Config, MutableParameters, Parameters, SnapshotParameters
from csi_multi_ebs.user_tags import IOPS_PER_GB
from hypothesis import given
from hypothesis import strategies as st

from csi_multi.contract import InvalidArgument, Setting, SnapshotRequest, Source, SourceKind, Stamp, VolumeRequest
from csi_multi.contract.params import parse
from csi_multi.host.command import LocalHost

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)
DRIVER = st.text(st.characters(codec="ascii"), max_size=63)  # more than config.py lets a driver be called
EVERYWHERE = re.compile(r"[A-Za-z0-9 +\-=._:/@]*")
SETTING = Setting(instance="cloud", driver="multi.csi.test", cluster="prod", node="node-1", host=LocalHost())
CONFIG = Config(region="eu-west-1")
CLAIM = {"pvc/name": "data-db-0", "pvc/namespace": "ns-prod-abcdef", "pv/name": "pvc-1"}


def stamp(name: str = "pvc-1", **more: Any) -> Stamp:
    return Stamp(**{"driver": "multi.csi.test", "cluster": "prod", "name": name, "digest": "ab12", **more})


def volume(
    config: Config = CONFIG, mutable: dict[str, str] | None = None, metadata: dict[str, str] | None = None, **given: str
) -> dict[str, str]:
    """Return the tags of a volume with these parameters."""
    request = VolumeRequest(
        stamp=stamp(),
        parameters=parse(Parameters, given, "parameters"),
        mutable=parse(MutableParameters, mutable, "mutable_parameters") if mutable else None,
        metadata=CLAIM if metadata is None else metadata,
    )
    return labels.volume_tags(request, SETTING, config)


def refused(**given: str) -> str:
    with pytest.raises(InvalidArgument) as found:
        volume(**given)
    return str(found.value)


def legal(found: dict[str, str]) -> bool:
    """Whether EC2, and the rest of AWS, take these tags."""
    return len(found) <= 50 and all(
        0 < len(key) <= 128
        and len(value) <= 256
        and not key.lower().startswith("aws:")
        and all(char in " _.:/=+-@" or unicodedata.category(char)[0] in "LN" for char in key + value)
        for key, value in found.items()
    )


def test_a_person_can_read_the_usual_tags() -> None:
    assert volume() == {
        "csi-multi/owner": "multi.csi.test/prod/cloud",
        "csi-multi/name": "pvc-1",
        "csi-multi/stamp.0": "name=pvc-1+digest=ab12+.",
        "csi-multi/first-attachment": "none",
        "CSIVolumeName": "pvc-1",
        "kubernetes.io/created-for/pvc/name": "data-db-0",
        "kubernetes.io/created-for/pvc/namespace": "ns-prod-abcdef",
        "kubernetes.io/created-for/pv/name": "pvc-1",
    }


@given(TEXT, TEXT, DRIVER, st.dictionaries(TEXT, TEXT, max_size=5))
def test_any_stamp_fits_into_tags_and_comes_back(name: str, digest: str, driver: str, context: dict[str, str]) -> None:
    written = stamp(name, digest=digest, driver=driver, context=context)
    found = labels.volume_tags(VolumeRequest(stamp=written), SETTING, CONFIG)
    ours = {key: value for key, value in found.items() if key.startswith("csi-multi/")}

    assert legal(found)
    assert [text for text in ours.values() if not EVERYWHERE.fullmatch(text)] == []
    assert labels.read_stamp(found) == written


@given(st.dictionaries(st.sampled_from([*CLAIM, "", "volumesnapshot/name", "x"]), st.text(max_size=400)), st.text())
def test_what_is_for_people_never_makes_a_creation_fail(metadata: dict[str, str], name: str) -> None:
    request = VolumeRequest(stamp=stamp(name.encode(errors="replace").decode()), metadata=metadata)

    assert legal(labels.volume_tags(request, SETTING, CONFIG))


@pytest.mark.parametrize("kind", SourceKind)
def test_a_content_source_comes_back(kind: SourceKind) -> None:
    written = stamp(source=Source(kind=kind, handle="snap-0a:1&x=~!%+ü@"))

    assert labels.read_stamp(labels.volume_tags(VolumeRequest(stamp=written), SETTING, CONFIG)) == written


def test_a_stamp_of_two_kibibytes_of_any_unicode_leaves_room_for_tags_of_users() -> None:
    written = stamp(context={"key": "ü" * 1000})
    many = {f"tagSpecification_{number}": f"k{number}=v" for number in range(18)}
    request = VolumeRequest(stamp=written, parameters=parse(Parameters, many, "parameters"), metadata=CLAIM)
    found = labels.volume_tags(request, SETTING, CONFIG)

    assert legal(found)
    assert labels.read_stamp(found) == written
    assert found["k17"] == "v"


@given(st.integers(0, 9), st.dictionaries(TEXT, TEXT, min_size=3, max_size=6))
def test_a_stamp_that_lost_a_part_is_no_stamp(lost: int, context: dict[str, str]) -> None:
    found = labels.volume_tags(VolumeRequest(stamp=stamp("ü" * 64, context=context)), SETTING, CONFIG)
    if found.pop(f"csi-multi/stamp.{lost}", None):
        assert labels.read_stamp(found) is None


@pytest.mark.parametrize(
    "damage",
    [
        {"csi-multi/owner": ""},
        {"csi-multi/owner": "multi.csi.test/prod"},
        {"csi-multi/stamp.0": "name=pvc-1"},
        {"csi-multi/stamp.0": "digest=ab12+."},
        {"csi-multi/stamp.0": "name=a+source=tape:1+."},
    ],
)
def test_a_stamp_that_was_edited_is_no_stamp(damage: dict[str, str]) -> None:
    assert labels.read_stamp(volume()) is not None
    assert labels.read_stamp({**volume(), **damage}) is None


def test_what_has_no_tags_is_not_ours() -> None:
    assert labels.read_stamp({}) is None
    assert labels.snapshot_source({}) == ""


@pytest.mark.parametrize("text", ["", "vol-", "x" * 256, "vol-0a vol-0b"])
def test_a_source_that_is_no_volume_is_not_taken_for_one(text: str) -> None:
    assert labels.snapshot_source({labels.SOURCE: text}) == ""
    assert not labels.is_ours({}, SETTING)


@pytest.mark.parametrize(
    "other",
    [
        Setting(instance="other", driver="multi.csi.test", cluster="prod", node="n", host=LocalHost()),
        Setting(instance="cloud", driver="multi.csi.test", cluster="test", node="n", host=LocalHost()),
        Setting(instance="cloud", driver="other.csi.test", cluster="prod", node="n", host=LocalHost()),
    ],
)
def test_only_the_instance_that_made_a_volume_owns_it(other: Setting) -> None:
    assert labels.is_ours(volume(), SETTING)
    assert not labels.is_ours(volume(), other)


def test_two_owners_never_look_alike() -> None:
    assert labels.owner_tag("a", "b/c", "d") != labels.owner_tag("a/b", "c", "d") != labels.owner_tag("a@2Fb", "c", "d")


def test_a_cluster_of_kubernetes_is_tagged_as_its_tools_expect() -> None:
    found = volume(Config(region="eu-west-1", kubernetes_cluster="blue"))

    assert found["kubernetes.io/cluster/blue"] == "owned"
    assert found["KubernetesCluster"] == "blue"
    assert found["Name"] == "blue-dynamic-pvc-1"
    assert not {"KubernetesCluster", "Name"} & volume(CONFIG).keys()


def test_a_class_may_give_another_name_and_too_many_tags_of_its_own_leave_no_place_for_ours() -> None:
    config = Config(region="eu-west-1", kubernetes_cluster="blue")
    most = {f"tagSpecification_{number}": f"k{number}=v" for number in range(46)}

    assert volume(config, tagSpecification_1="Name=mine")["Name"] == "mine"
    assert len(volume(config, **most)) == 50


def test_a_snapshot_has_a_name_where_the_cluster_has_one() -> None:
    config = Config(region="eu-west-1", kubernetes_cluster="blue")
    found = labels.snapshot_tags(SnapshotRequest(stamp=stamp("snapshot-1"), source="vol-0a"), SETTING, config)

    assert found["Name"] == "blue-dynamic-snapshot-1"
    assert found["kubernetes.io/cluster/blue"] == "owned"
    assert "KubernetesCluster" not in found


SKIPPING = Config(region="eu-west-1", invalid_tags="skip")


def test_invalid_tags_are_left_out_with_a_warning_where_the_instance_is_configured_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {"tagSpecification_1": "a=1", "tagSpecification_2": "b=a,b", "tagSpecification_3": "c={{ .Nobody }}"}
    found = volume(SKIPPING, **given)

    assert {key: value for key, value in found.items() if key in "abc"} == {"a": "1"}
    assert [one.message for one in caplog.records if "the tag is left out" in one.message] == [
        "parameters: 'tagSpecification_2': tag 'b': ',' is not allowed; use letters, digits, spaces and _ . : / = + - "
        "@; the tag is left out",
        "parameters: 'tagSpecification_3': template '.Nobody': this name does not exist here; names: .PVCName, "
        ".PVCNamespace, .PVName; the tag is left out",
    ]


def test_a_reserved_tag_is_never_set_also_where_invalid_ones_are_left_out() -> None:
    found = volume(SKIPPING, tagSpecification_1="csi-multi/owner=me")

    assert labels.is_ours(found, SETTING)
    assert change(volume(), SKIPPING, tagSpecification_1="csi-multi/owner=me") == ({}, [])


def test_tags_of_the_instance_of_the_class_and_of_the_attributes_win_in_this_order() -> None:
    config = Config(region="eu-west-1", extra_tags={"team": "infra", "cost": "1", "env": "prod"})
    found = volume(config, {"tagSpecification_1": "cost=3"}, tagSpecification_1="team=db", tagSpecification_2="cost=2")

    assert (found["team"], found["cost"], found["env"]) == ("db", "3", "prod")


def test_a_tag_may_be_empty_and_may_contain_equal_signs() -> None:
    found = volume(tagSpecification_1="empty=", tagSpecification_2="sum=1+1=2")

    assert found["empty"] == ""
    assert found["sum"] == "1+1=2"


def test_a_class_can_name_the_claim() -> None:
    found = volume(
        tagSpecification_1="claim={{ .PVCNamespace }}/{{ .PVCName }}",
        tagSpecification_2='billing={{ .PVCNamespace | field "-" 2 | toUpper }}',
    )

    assert found["claim"] == "ns-prod-abcdef/data-db-0"
    assert found["billing"] == "ABCDEF"


@pytest.mark.parametrize(
    ("tag", "says"),
    [
        ("novalue", "'novalue' is not a tag; write it as key=value"),
        ("=x", "the key of a tag is empty"),
        ("csi-multi/owner=me", "tag 'csi-multi/owner' is reserved for the driver; choose another key"),
        ("csi-multi/anything=x", "is reserved for the driver"),
        ("CSIVolumeName=x", "is reserved for the driver"),
        ("CSIVolumeSnapshotName=x", "is reserved for the driver"),
        ("kubernetes.io/cluster/blue=owned", "is reserved for the driver"),
        ("kubernetes.io/created-for/pvc/name=x", "is reserved for the driver"),
        ("aws:createdBy=x", "are reserved for AWS"),
        ("AWS:createdBy=x", "are reserved for AWS"),
        ("k" * 129 + "=x", "a key has at most 128 characters, not 129"),
        ("key=" + "v" * 257, "a value has at most 256 characters, not 257"),
        ("key=a,b", "',' is not allowed"),
        ("key=a\nb", "'\\n' is not allowed"),
        ("key=💾", "is not allowed"),
        ("key=\U0001d49c", "is not allowed"),  # a letter, but AWS may count it as two
        ("key={{ .PVName", "template '{{ .PVName'"),
    ],
)
def test_a_tag_that_ec2_or_the_driver_would_not_bear_is_refused_by_its_parameter(tag: str, says: str) -> None:
    text = refused(tagSpecification_7=tag)

    assert text.startswith("parameters: 'tagSpecification_7': ")
    assert says in text


def test_a_tag_given_twice_is_refused() -> None:
    assert "tag 'a' has two values" in refused(tagSpecification_1="a=1", tagSpecification_2="a=2")


def test_more_tags_than_ec2_takes_are_refused() -> None:
    most = {f"tagSpecification_{number}": f"k{number}=v" for number in range(47)}

    assert legal(volume(**most))
    assert len(volume(**most)) == 50
    assert "51 tags are too many: EC2 allows 50" in refused(**most, tagSpecification_x="one=more")


def test_a_snapshot_remembers_its_volume_and_its_stamp() -> None:
    own = parse(SnapshotParameters, {"tagSpecification_1": "of={{ .VolumeSnapshotName }}"}, "parameters")
    metadata = {"volumesnapshot/name": "nightly", "volumesnapshot/namespace": "db"}
    request = SnapshotRequest(stamp=stamp("snapshot-1"), source="vol-0a0a0a0a", parameters=own, metadata=metadata)
    found = labels.snapshot_tags(request, SETTING, CONFIG)

    assert legal(found)
    assert labels.snapshot_source(found) == "vol-0a0a0a0a"
    assert labels.read_stamp(found) == stamp("snapshot-1")
    assert found["CSIVolumeSnapshotName"] == "snapshot-1"
    assert found["kubernetes.io/created-for/volumesnapshot/name"] == "nightly"
    assert found["of"] == "nightly"


def test_a_snapshot_class_cannot_name_the_claim() -> None:
    own = parse(SnapshotParameters, {"tagSpecification_1": "of={{ .PVCName }}"}, "parameters")
    request = SnapshotRequest(stamp=stamp(), source="vol-0a", parameters=own, metadata=CLAIM)

    with pytest.raises(InvalidArgument, match=r"names: \.VolumeSnapshotName"):
        labels.snapshot_tags(request, SETTING, CONFIG)


def change(of: dict[str, str], config: Config = CONFIG, **mutable: str) -> tuple[dict[str, str], list[str]]:
    return labels.tag_changes(parse(MutableParameters, mutable, "mutable_parameters"), of, config)


def test_a_change_sets_and_removes_what_is_not_so_already() -> None:
    before = {**volume(), "old": "1", "same": "1"}

    assert change(
        before, tagSpecification_1="same=1", tagSpecification_2="new={{ .PVCName }}", tagDeletion_1="old"
    ) == (
        {"new": "data-db-0"},
        ["old"],
    )
    assert change(before, tagDeletion_1="never-there") == ({}, [])


def test_a_change_cannot_touch_the_drivers_own_tags() -> None:
    with pytest.raises(InvalidArgument, match="is reserved for the driver"):
        change(volume(), tagDeletion_1="csi-multi/stamp.0")
    with pytest.raises(InvalidArgument, match="is reserved for the driver"):
        change(volume(), tagSpecification_1="csi-multi/owner=me")


def test_a_change_cannot_add_more_tags_than_there_is_room_for() -> None:
    before = volume(**{f"tagSpecification_{number}": f"k{number}=v" for number in range(47)})

    with pytest.raises(InvalidArgument, match="51 tags are too many"):
        change(before, tagSpecification_1="one=more")
    assert change(before, tagSpecification_1="one=more", tagDeletion_1="k1") == ({"one": "more"}, ["k1"])


def test_iops_per_gb_are_noted_when_they_are_to_be_kept_up() -> None:
    kept = volume(type="io1", iopsPerGB="50", allowAutoIOPSIncreaseOnModify="true")

    assert kept[IOPS_PER_GB] == "50"
    assert IOPS_PER_GB not in volume(type="io1", iopsPerGB="50")
    assert IOPS_PER_GB not in volume(allowAutoIOPSIncreaseOnModify="true")
    assert change(kept, iopsPerGB="20", allowAutoIOPSIncreaseOnModify="true") == ({IOPS_PER_GB: "20"}, [])
    assert change(kept, iops="500") == ({}, [IOPS_PER_GB])
    assert change(kept, throughput="500") == ({}, [])
