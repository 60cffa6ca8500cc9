"""Labels that a person or another process changes after they were read, on a cluster in memory; the last on a real one.

What is deleted or formatted is decided by what the cluster says then; all else may rest on a label for some minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import pytest
from csi_multi_rbd import labels
from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.config import Config
from csi_multi_rbd.label_cache import LISTED_SECONDS, MAX_SECONDS, LabelCache
from csi_multi_rbd.labels import Label

from csi_multi.contract import (
    AlreadyExists,
    Blank,
    ExpandRequest,
    FailedPrecondition,
    NotFound,
    PageRequest,
    Setting,
    SizeRange,
    Stamp,
    Volume,
)
from csi_multi.contract.model import IMPORTED
from csi_multi.core import idempotent

from .ceph import Cluster
from .fake_cluster import FakeCluster, FakeImage
from .volumes import SIZE, copy, create, delete, image, info, read, snapshot, spec, stamp, volume_request, write

LOOK, READ = "rbd info", "rbd image-meta list"
DATA = 4096  # bytes in an image


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def pool() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def start(pool: FakeCluster, clock: Clock) -> Iterator[Callable[[], RbdBackend]]:
    """Start the controller of one more node."""
    started: list[RbdBackend] = []

    def start() -> RbdBackend:
        backend = pool.backend()
        started.append(backend)
        for images in (backend.main.volume_images, backend.main.snapshot_images):
            images.cache = LabelCache(clock=clock)
        backend.check()
        return backend

    yield start
    for backend in started:
        backend.close()


@pytest.fixture
def backend(start: Callable[[], RbdBackend]) -> RbdBackend:
    return start()


@pytest.fixture
def known(pool: FakeCluster, backend: RbdBackend) -> FakeImage:
    """The image, with data, of the volume `v`, whose label was read."""
    create(backend, "v")
    backend.get_volume("v")
    found = pool.images[image(backend, "v")]
    found.used = DATA
    return found


def relabel(found: FakeImage, **changes: object) -> None:
    """Write the stamp of an image's label anew, as another process or a person does."""
    label = msgspec.json.decode(found.meta[labels.KEY], type=Label)
    found.meta[labels.KEY] = labels.encode(msgspec.structs.replace(label, stamp=replace(label.stamp, **changes)))


def test_a_label_that_is_removed_by_hand_is_noticed_after_minutes(
    pool: FakeCluster, backend: RbdBackend, known: FakeImage, clock: Clock
) -> None:
    del known.meta[labels.KEY]
    clock.now += MAX_SECONDS - 1
    assert backend.get_volume("v").size == SIZE  # within that time it may be answered from memory

    clock.now += 1
    with pytest.raises(NotFound):
        backend.get_volume("v")


def test_a_label_in_use_does_not_get_younger(backend: RbdBackend, known: FakeImage, clock: Clock) -> None:
    relabel(known, digest="changed")
    for _ in range(4):
        clock.now += MAX_SECONDS / 4
        found = backend.get_volume("v")

    assert found.stamp.digest == "changed"


def test_a_listing_shows_what_was_read_within_the_hour(
    pool: FakeCluster, backend: RbdBackend, known: FakeImage, clock: Clock
) -> None:
    relabel(known, digest="changed")
    with pool.counted() as seen:
        clock.now += LISTED_SECONDS - 1
        backend.list_volumes(PageRequest())
        clock.now += 1
        page = backend.list_volumes(PageRequest())

    assert seen == ["rbd ls", "rbd ls", READ]
    assert [one.stamp.digest for one in page.items] == ["changed"]


def test_a_listing_shows_what_a_request_has_found(backend: RbdBackend, known: FakeImage, clock: Clock) -> None:
    relabel(known, digest="changed")
    clock.now += MAX_SECONDS
    backend.get_volume("v")

    assert [one.stamp.digest for one in backend.list_volumes(PageRequest()).items] == ["changed"]


def test_an_image_whose_label_was_removed_by_hand_keeps_its_data(
    pool: FakeCluster, backend: RbdBackend, known: FakeImage
) -> None:
    del known.meta[labels.KEY]

    with pytest.raises(FailedPrecondition, match="has data and no image-meta"):
        backend.delete_volume("v", {})
    assert pool.images[known.name] is known
    with pytest.raises(NotFound):  # and it is not taken for a volume any more
        backend.get_volume("v")


def test_a_volume_that_became_another_drivers_is_not_deleted(
    pool: FakeCluster, backend: RbdBackend, known: FakeImage
) -> None:
    relabel(known, driver="theirs")

    with pytest.raises(FailedPrecondition, match="belongs to driver 'theirs'"):
        backend.delete_volume("v", {})
    assert pool.images[known.name] is known


def test_a_volume_that_was_labelled_as_imported_is_not_deleted(
    pool: FakeCluster, backend: RbdBackend, known: FakeImage
) -> None:
    relabel(known, digest=IMPORTED)

    with pytest.raises(FailedPrecondition, match="imported"):
        backend.delete_volume("v", {})
    assert pool.images[known.name] is known


def test_a_snapshot_whose_label_was_removed_by_hand_keeps_its_data(pool: FakeCluster, backend: RbdBackend) -> None:
    cut = snapshot(backend, "s", create(backend, "v"))
    backend.get_snapshot("s")
    found = pool.images[image(backend, cut)]
    found.used = DATA
    found.meta[labels.KEY] = "{}"

    with pytest.raises(FailedPrecondition, match="damaged"):
        delete(backend, cut)
    assert pool.images[found.name] is found


def test_a_volume_that_another_process_released_and_imported_again_is_not_deleted(
    pool: FakeCluster, backend: RbdBackend, start: Callable[[], RbdBackend]
) -> None:
    """The image keeps its id all the time."""
    name = image(backend, "v")
    pool.images["data"] = FakeImage(name="data", id="d", size=SIZE, used=DATA)
    own = replace(stamp(backend, "v"), digest=IMPORTED)
    other = start()
    backend.import_volume("data", own)
    assert backend.get_volume("v").stamp == own
    other.release_volume("v")
    other.import_volume("data", replace(own, context={"by": "other"}))

    with pytest.raises(FailedPrecondition, match="imported"):
        backend.delete_volume("v", {})
    assert pool.images[name].id == "d"
    with pytest.raises(AlreadyExists):
        create(backend, "v")


def test_a_volume_that_another_process_made_anew_is_that_one(
    pool: FakeCluster, backend: RbdBackend, known: FakeImage, start: Callable[[], RbdBackend]
) -> None:
    other = start()
    other.delete_volume("v", {})
    anew = replace(volume_request(other, "v", 2 * SIZE), stamp=replace(stamp(other, "v"), digest="anew"))
    made = other.create_volume(anew)

    assert pool.images[known.name].id != known.id
    assert backend.get_volume("v") == made
    assert [*backend.list_volumes(PageRequest()).items] == [made]
    assert idempotent.create_volume(backend, anew, "node-1") == made
    with pytest.raises(AlreadyExists):
        idempotent.create_volume(backend, volume_request(backend, "v"), "node-1")


def test_a_copy_is_of_the_volume_that_another_process_made_anew(
    pool: FakeCluster, backend: RbdBackend, known: FakeImage, start: Callable[[], RbdBackend]
) -> None:
    other = start()
    other.delete_volume("v", {})
    made = create(other, "v", 2 * SIZE)

    cut = snapshot(backend, "s", Volume(handle="v", size=SIZE, stamp=made.stamp))
    assert cut.size == made.size
    label = msgspec.json.decode(pool.images[image(backend, cut)].meta[labels.KEY], type=Label)
    assert label.source_id == pool.images[known.name].id
    assert copy(backend, "c", made).size == made.size


def test_the_deletion_of_a_volume_made_anew_by_a_foreigner_is_refused(
    pool: FakeCluster, backend: RbdBackend, known: FakeImage
) -> None:
    theirs = Label(image=known.name, stamp=Stamp(driver="theirs", cluster="c", name="v", digest=""))
    pool.images[known.name] = FakeImage(
        name=known.name, id="another", size=SIZE, used=DATA, meta={labels.KEY: labels.encode(theirs)}
    )

    with pytest.raises(FailedPrecondition, match="belongs to driver 'theirs'"):
        backend.delete_volume("v", {})
    assert pool.images[known.name].id == "another"


def test_what_another_process_recorded_about_mkfs_counts(
    pool: FakeCluster, backend: RbdBackend, known: FakeImage, start: Callable[[], RbdBackend]
) -> None:
    """A device is opened, and a filesystem made on it, by what the image says then."""
    known.meta[labels.FORMAT] = labels.FORMATTED

    with pytest.raises(FailedPrecondition, match="must not be formatted"):
        backend.formatting("v")
    _, label, metadata = backend.main.volume_images.get_metadata(backend.main.client, "v")
    assert labels.blank_state(label, metadata) is Blank.NEVER


def test_a_volume_without_a_label_is_not_opened_for_formatting(
    pool: FakeCluster, backend: RbdBackend, known: FakeImage
) -> None:
    del known.meta[labels.KEY]

    with pytest.raises(NotFound):
        backend.formatting("v")
    with pytest.raises(NotFound):
        backend.expand_volume(ExpandRequest(handle="v", size=SizeRange(required=2 * SIZE)))


def test_on_a_real_cluster_too(cluster: Cluster, config: Config, setting: Setting) -> None:
    """An image that is created anew has another id, and its data stays when its label is removed by hand."""
    backend, other = RbdBackend(config, setting), RbdBackend(config, setting)
    create(backend, "v")
    assert backend.get_volume("v").size == SIZE
    before = info(cluster, backend, "v")["id"]
    other.delete_volume("v", {})
    made = create(other, "v", 2 * SIZE)

    assert info(cluster, backend, "v")["id"] != before
    assert backend.get_volume("v") == made
    write(cluster, backend, made, b"data")
    cluster.rbd("image-meta", "remove", spec(backend, made), labels.KEY)
    for one in (backend, other):
        with pytest.raises(FailedPrecondition, match="has data and no image-meta"):
            one.delete_volume("v", {})
        one.close()
    assert read(cluster, backend, made, 4) == b"data"
