"""The names of nodes by their instances, which tags of the instances tell."""

from __future__ import annotations

import logging
from collections.abc import Collection

from csi_multi.contract import StorageError

from .ec2_cache import Ec2Cache
from .resources import Ec2Instance, Ec2Volume

log = logging.getLogger(__name__)


class NodeNames:
    """The node ids of instances, from the tag that `remember` writes."""

    def __init__(self, cache: Ec2Cache) -> None:
        self._cache = cache
        self._key = f"csi-multi/node/{cache.setting.driver}"[:128]
        self._known: dict[str, str] = {}  # node ids by instance

    def remember(self, instance: Ec2Instance, node_id: str) -> None:
        """Tag the instance with the node id, unless it is. A failure is logged: no attachment needs the tag."""
        before = self._known.get(instance.id)
        self._known[instance.id] = node_id  # before the call, so that only one of many first attachments writes it
        written = node_id.replace(";", "/")  # a node id contains no "/", and some of AWS does not accept a ";"
        if before == node_id or instance.tags.get(self._key) == written:
            return
        try:
            self._cache.client.tag([instance.id], {self._key: written})
        except StorageError as error:
            self._known.pop(instance.id, None)
            log.warning(
                "instance %s has no tag for node %s, which listings need after a restart: %s",
                instance.id,
                node_id,
                error,
            )

    def names(self, instances: Collection[str]) -> dict[str, str]:
        """Return the node id of each instance, or the instance's own id when it has no tag."""
        if unknown := [one for one in instances if one not in self._known]:
            found = self._cache.instances.many(unknown, self._cache.wait_deadline(None), fresh=False)
            self._known |= {id: node_id for id, one in found.items() if (node_id := self._tagged(one))}
        return {one: self._known.get(one, one) for one in instances}

    def with_name(self, name: str, instances: Collection[str] | None = None) -> dict[str, Ec2Instance]:
        """Return those (None: of all) whose tag names this node now. A tag that was copied from another counts not."""
        if instances is None:
            instances = self._cache.client.instances_tagged(self._key, (name, f"{name}/*"))
        found = self._cache.instances.many(instances, self._cache.wait_deadline(None))
        node_ids = {id: self._tagged(one) for id, one in found.items()}
        return {id: found[id] for id in found if node_ids[id].partition(";")[0] == name and id in node_ids[id]}

    def of_volume(self, volume: Ec2Volume) -> tuple[str, ...]:
        """Return the node ids of a volume's attachments that are not detached."""
        return tuple(self.names([one.instance for one in volume.attachments if one.state != "detached"]).values())

    def _tagged(self, instance: Ec2Instance) -> str:
        """Return the node id in the instance's tag, "" without one."""
        return instance.tags.get(self._key, "").replace("/", ";")
