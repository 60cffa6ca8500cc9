"""The sums over images are never too low, whatever volumes write and discard between two looks. No root needed."""

import random
from dataclasses import dataclass, field

import pytest
from csi_multi_loop.image_usage import FamilySums, ImageUsage

BLOCKS = 10_000  # of the filesystem
SIZE = 20  # blocks of a volume


@dataclass
class Image:
    family: str
    writable: bool
    blocks: dict[int, int] = field(default_factory=dict)  # place -> block on disk

    @property
    def usage(self):
        return ImageUsage(self.family, SIZE if self.writable else 0, len(self.blocks))


class Disk:
    """Images that share blocks, as on a filesystem with reflinks, and what was counted of them."""

    def __init__(self, chance):
        self.chance = chance
        self.images = {}
        self.counted = {}
        self.next = 0
        self.look()

    @property
    def free(self):
        return BLOCKS - len({block for image in self.images.values() for block in image.blocks.values()})

    def look(self):
        self.sums = FamilySums()
        self.counted = {name: image.usage for name, image in self.images.items()}
        for usage in self.counted.values():
            self.sums.add(usage)
        self.sums.settle()
        self.space = self.free + self.sums.used

    def add(self, family, *, writable, blocks):
        self.next += 1
        image = self.images[self.next] = Image(family or str(self.next), writable, dict(blocks))
        self.counted[self.next] = image.usage
        self.sums.add(image.usage)

    def delete(self, name):
        del self.images[name]
        self.sums.remove(self.counted.pop(name))

    def write(self, image):
        for place in self.chance.sample(range(SIZE), self.chance.randrange(SIZE)):
            self.next += 1
            image.blocks[place] = self.next

    def discard(self, image):
        for place in [place for place in image.blocks if self.chance.random() < 0.5]:
            del image.blocks[place]

    def step(self):
        volumes = [image for image in self.images.values() if image.writable]
        action = self.chance.choice(("create", "write", "discard", "snapshot", "clone", "delete", "look"))
        if action == "create" or not volumes:
            return self.add("", writable=True, blocks={})
        if action == "delete":
            return self.delete(self.chance.choice(list(self.images)))
        if action == "look":
            return self.look() if self.chance.random() < 0.3 else None
        image = self.chance.choice(volumes)
        if action == "write":
            return self.write(image)
        if action == "discard":
            return self.discard(image)
        return self.add(image.family, writable=action == "clone", blocks=image.blocks)

    @property
    def left(self):
        """What is left when all volumes were overwritten, and share no block any more."""
        kept = {block for one in self.images.values() if not one.writable for block in one.blocks.values()}
        return BLOCKS - len(kept) - sum(SIZE for one in self.images.values() if one.writable)


@pytest.mark.parametrize("seed", range(40))
def test_an_estimate_between_two_looks_is_never_too_high(seed):
    disk = Disk(random.Random(seed))
    for _ in range(80):
        disk.step()
        assert disk.space - disk.sums.surely_enough <= disk.left


def test_right_after_a_look_what_is_shared_counts_once():
    sums = FamilySums()
    for usage in (ImageUsage("f", 100, 40), ImageUsage("f", 0, 40), ImageUsage("f", 0, 30), ImageUsage("g", 50, 10)):
        sums.add(usage)
    assert sums.surely_enough == 100 + 70 + 50
    sums.settle()

    assert sums.used == 40 + 10
    assert sums.needed == sums.surely_enough == 100 + 40 + 50
    assert sums.growth(ImageUsage("f", 0, 40)) == (0, 0, 70)  # of snapshots, all that they hold
    assert sums.growth(ImageUsage("new", 100, 20)) == (20, 100, 100)


def test_what_was_added_and_removed_leaves_nothing():
    sums = FamilySums()
    images = [ImageUsage(f"f{number % 3}", number % 2 * 100, number) for number in range(30)]
    for image in images:
        sums.add(image)
    for image in images[::-1]:
        sums.remove(image)

    assert (sums.used, sums.needed, sums.surely_enough) == (0, 0, 0)
