"""Creation and its repetition: one name, one volume (csi-spec CreateVolume)."""

from __future__ import annotations

from csi_multi.errors import AlreadyExists, NotFound

from ..check import On, check
from ..trial import Trial
from ..verdict import expect, same


@check()
def a_volume_can_be_made_found_and_deleted(t: Trial) -> None:
    made = t.volume()

    same(t.door.get(made.handle), made, "get_volume after create_volume")
    t.door.delete(made.handle)
    with t.refused(NotFound, what="get_volume after delete_volume"):
        t.door.get(made.handle)


@check()
def a_repeated_request_gets_the_same_volume(t: Trial) -> None:
    wish = t.wish()
    first = t.create(wish)

    second = t.create(wish)

    same(second, first, "create_volume, repeated")
    if t.storage.resources:
        expect(len(t.new()) == 1, f"create_volume, repeated: the storage holds {sorted(t.new())}")


@check(on=On.BACKEND)
def a_taken_name_is_told_as_such(t: Trial) -> None:
    wish = t.wish()
    t.create(wish)

    with t.refused(AlreadyExists, what="create_volume with a name that is taken"):
        t.made(t.backend.create_volume(t.direct.request(wish)))
