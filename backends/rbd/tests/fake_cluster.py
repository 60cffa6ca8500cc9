"""A cluster in memory that answers the commands of rbd and ceph which the controller runs: to count them.

What real commands answer, test_errors.py and others hold against a real cluster. This one knows one pool without a
namespace, and no concurrency beyond its lock.
"""

from __future__ import annotations

import errno
import itertools
import json
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from csi_multi_rbd.backend import RbdBackend
from csi_multi_rbd.command import CommandRunner
from csi_multi_rbd.config import Config

from csi_multi.contract import Result, Setting
from csi_multi.host.command import LocalHost

FSID = "01234567-89ab-cdef-0123-456789abcdef"
POOL = "k8s"
VALUED = {"--conf", "-m", "--id", "--keyring", "--keyfile", "--client-mount-timeout", "--rados-mon-op-timeout",
          "--rados-osd-op-timeout", "--connect-timeout", "--format", "--export-format", "--size", "--data-pool",
          "--object-size", "--rbd-default-clone-format", "--image-id", "--snap", "--pool", "--namespace"}  # fmt: skip
GROUPS = {"group", "image-meta", "snap", "trash", "osd"}
CREATED = "Sat Nov 21 23:22:38 2026"


class Refused(Exception):
    def __init__(self, status: int, text: str = "refused") -> None:
        super().__init__(text)
        self.status = status


@dataclass
class FakeSnapshot:
    id: int
    name: str
    namespace: str = "user"


@dataclass
class FakeImage:
    name: str
    id: str
    size: int
    used: int = 0
    meta: dict[str, str] = field(default_factory=dict)
    snapshots: list[FakeSnapshot] = field(default_factory=list)
    parent: tuple[str, int] | None = None  # id of an image, and of its snapshot
    watchers: list[str] = field(default_factory=list)


class FakeCluster:
    """Its images and its trash, and every command that was run, by requests and in the background."""

    def __init__(self) -> None:
        self.images: dict[str, FakeImage] = {}  # by name
        self.trash: dict[str, FakeImage] = {}  # by id
        self.fsid = FSID
        self.available = 2**40
        self.run: list[str] = []  # of requests
        self.background: list[str] = []
        self.before: Callable[[str], None] = lambda _: None  # called with each command, and may raise
        self.down = False
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)

    def backend(self, **values: Any) -> RbdBackend:
        given = {"keyring": "/k", **values}
        config = Config(monitors=("10.0.0.1",), fsid=FSID, pool=POOL, user="csi", **given)
        setting = Setting(instance="ceph", driver="multi.csi.test", cluster="c", node="node-1", host=LocalHost())
        return RbdBackend(config, setting, FakeRunner(self, self.run), FakeRunner(self, self.background))

    @contextmanager
    def counted(self) -> Iterator[list[str]]:
        """Collect the commands of the requests in the block: program and verb."""
        seen: list[str] = []
        before = len(self.run)
        yield seen
        seen += [" ".join(command.split()[: 3 if command.split()[1] in GROUPS else 2]) for command in self.run[before:]]

    def answer(self, command: list[str], options: dict[str, str], stdin: str) -> str:
        with self._lock:
            if command[0] == "ceph":
                lines = [line.split() for line in stdin.splitlines()] or [command[1:]]
                return "\n".join(self._ceph(words) for words in lines)
            verb = "_".join(command[1 : 3 if command[1] in GROUPS else 2]).replace("-", "_")
            words = command[3 if command[1] in GROUPS else 2 :]
            return str(getattr(self, f"_{verb}")(words, options) or "")

    def _ceph(self, words: list[str]) -> str:
        stats = {"max_avail": self.available, "stored": 0, "quota_bytes": 0}
        answers: dict[str, Any] = {
            "status": {"fsid": self.fsid, "health": {"status": "HEALTH_OK", "checks": {}}},
            "df": {"pools": [{"name": POOL, "stats": stats}]},
            "osd": [{"pool_name": POOL, "flags_names": "hashpspool" + ",full" * (self.available == 0)}],
        }
        return json.dumps(answers[words[0]])

    def _find(self, spec: str) -> FakeImage:
        name = spec.removeprefix(f"{POOL}/").partition("@")[0]
        if name not in self.images:
            raise Refused(errno.ENOENT, "No such file or directory")
        return self.images[name]

    def _trashed(self, options: dict[str, str]) -> FakeImage:
        if options["--image-id"] not in self.trash:
            raise Refused(errno.ENOENT, "No such file or directory")
        return self.trash[options["--image-id"]]

    def _cut(self, spec: str) -> tuple[FakeImage, FakeSnapshot]:
        image, name = self._find(spec), spec.partition("@")[2]
        found = next((one for one in image.snapshots if one.name == name and one.namespace == "user"), None)
        if found is None:
            raise Refused(errno.ENOENT, "No such file or directory")
        return image, found

    def _all(self) -> list[FakeImage]:
        return [*self.images.values(), *self.trash.values()]

    def _new(self, spec: str, size: int, meta: dict[str, str], parent: tuple[str, int] | None = None) -> None:
        name = spec.removeprefix(f"{POOL}/")
        if name in self.images:
            raise Refused(errno.EEXIST, "File exists")
        id = f"{next(self._numbers):x}"
        self.images[name] = FakeImage(name=name, id=id, size=size, meta=meta, parent=parent)

    def _import(self, words: list[str], options: dict[str, str]) -> None:
        content = Path(words[0]).read_bytes()
        self._new(words[1], struct.unpack("<Q", content[-9:-1])[0], _meta_of(content))

    def _clone(self, words: list[str], options: dict[str, str]) -> None:
        image, cut = self._cut(words[0])
        self._new(words[1], image.size, dict(image.meta), (image.id, cut.id))

    def _info(self, words: list[str], options: dict[str, str]) -> str:
        one = self._find(words[0])
        told: dict[str, Any] = {
            "name": one.name, "id": one.id, "size": one.size, "object_size": 2**22, "create_timestamp": CREATED,
            "features": ["layering", "exclusive-lock"], "snapshot_count": len(one.snapshots),
        }  # fmt: skip
        if one.parent:
            told["parent"] = self._parent(one.parent)
        return json.dumps(told)

    def _parent(self, of: tuple[str, int]) -> dict[str, Any]:
        image = next(one for one in self._all() if one.id == of[0])
        cut = next(one for one in image.snapshots if one.id == of[1])
        trashed = image.id in self.trash
        return {"pool": POOL, "image": image.name, "id": image.id, "snapshot": cut.name, "trash": trashed}

    def _image_meta_list(self, words: list[str], options: dict[str, str]) -> str:
        return json.dumps(self._find(words[0]).meta)

    def _image_meta_remove(self, words: list[str], options: dict[str, str]) -> None:
        del self._find(words[0]).meta[words[1]]

    def _mv(self, words: list[str], options: dict[str, str]) -> None:
        image, name = self._find(words[0]), words[1].removeprefix(f"{POOL}/")
        self.images[name] = self.images.pop(image.name)
        image.name = name

    def _image_meta_set(self, words: list[str], options: dict[str, str]) -> None:
        self._find(words[0]).meta[words[1]] = words[2]

    def _status(self, words: list[str], options: dict[str, str]) -> str:
        return json.dumps({"watchers": [{"address": one} for one in self._find(words[0]).watchers]})

    def _resize(self, words: list[str], options: dict[str, str]) -> None:
        self._find(words[0]).size = int(options["--size"].removesuffix("B"))

    def _du(self, words: list[str], options: dict[str, str]) -> str:
        return json.dumps({"images": [{"used_size": self._find(words[0]).used}]})

    def _ls(self, words: list[str], options: dict[str, str]) -> str:
        if "--long" not in options:
            return json.dumps(list(self.images))
        rows: list[dict[str, Any]] = []
        for one in self.images.values():
            parent = {"parent": self._parent(one.parent)} if one.parent else {}
            rows.append({"image": one.name, "id": one.id, "size": one.size, **parent})
            rows += [
                {"image": one.name, "id": one.id, "size": one.size, "snapshot": cut.name, "snapshot_id": cut.id}
                for cut in one.snapshots
                if cut.namespace == "user"
            ]
        return json.dumps(rows)

    def _snap_ls(self, words: list[str], options: dict[str, str]) -> str:
        image = self._trashed(options) if "--image-id" in options else self._find(words[0])
        return json.dumps(
            [
                {"id": one.id, "name": one.name, "size": image.size, "namespace": {"type": one.namespace}}
                for one in image.snapshots
            ]
        )

    def _snap_create(self, words: list[str], options: dict[str, str]) -> None:
        image, name = self._find(words[0]), words[0].partition("@")[2]
        if any(one.name == name and one.namespace == "user" for one in image.snapshots):
            raise Refused(errno.EEXIST, "File exists")
        image.snapshots.append(FakeSnapshot(next(self._numbers), name))

    def _snap_rm(self, words: list[str], options: dict[str, str]) -> None:
        if "--image-id" in options:
            image = self._trashed(options)
            cut = next(one for one in image.snapshots if one.name == options["--snap"] and one.namespace == "user")
        else:
            image, cut = self._cut(words[0])
        if any(one.parent == (image.id, cut.id) for one in self._all()):
            cut.namespace, cut.name = "trash", f"removed-{cut.id}"
        else:
            image.snapshots.remove(cut)

    def _trash_mv(self, words: list[str], options: dict[str, str]) -> None:
        image = self._find(words[0])
        del self.images[image.name]
        self.trash[image.id] = image

    def _group_ls(self, words: list[str], options: dict[str, str]) -> str:
        return "[]"

    def _trash_ls(self, words: list[str], options: dict[str, str]) -> str:
        return json.dumps([{"id": one.id, "name": one.name} for one in self.trash.values()])

    def _trash_rm(self, words: list[str], options: dict[str, str]) -> None:
        id = words[0].removeprefix(f"{POOL}/")
        if id not in self.trash:
            raise Refused(errno.ENOENT, "No such file or directory")
        if self.trash[id].snapshots:
            raise Refused(errno.ENOTEMPTY, "image has snapshots")
        gone = self.trash.pop(id)
        for parent in self._all():  # Ceph removes a snapshot in the trash namespace with the last clone of it
            kept = [
                one
                for one in parent.snapshots
                if one.namespace == "user" or any(other.parent == (parent.id, one.id) for other in self._all())
            ]
            if gone.parent and parent.id == gone.parent[0]:
                parent.snapshots = kept


class FakeRunner(CommandRunner):
    def __init__(self, cluster: FakeCluster, seen: list[str]) -> None:
        super().__init__()
        self._cluster = cluster
        self._seen = seen

    def execute(self, program: str, *words: str, timeout: float, stdin: str = "", **more: Any) -> Result:
        command, options = [program], dict[str, str]()
        rest = iter(words)
        for word in rest:
            if word in VALUED:
                options[word] = next(rest)
            elif word.startswith("-"):
                options[word] = ""
            else:
                command.append(word)
        shown = " ".join(command if len(command) > 1 else [program, "; ".join(stdin.splitlines())])
        self._seen.append(shown)
        self._cluster.before(shown)
        if self._cluster.down:
            return Result(errno.ETIMEDOUT, "", "rbd: couldn't connect to the cluster!")
        try:
            return Result(0, self._cluster.answer(command, options, stdin), "")
        except Refused as error:
            return Result(error.status, "", f"rbd: {error}")


def _meta_of(content: bytes) -> dict[str, str]:
    """Read the image-meta in the file of labels.empty_image."""
    at = content.index(b"\n") + 1
    if content[at : at + 1] != b"M":
        return {}
    (length,) = struct.unpack_from("<Q", content, at + 1)
    texts, rest = list[str](), content[at + 9 : at + 9 + length]
    while rest:
        (size,) = struct.unpack_from("<I", rest)
        texts.append(rest[4 : 4 + size].decode())
        rest = rest[4 + size :]
    return dict(zip(texts[::2], texts[1::2], strict=True))
