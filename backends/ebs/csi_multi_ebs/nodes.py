"""Which node an instance is: its node id, in a tag that the first attachment writes on the instance.

EC2 names instances, the orchestrator knows node ids, and a listing made by a new process has to translate. So has a
detachment from a node whose instance was replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from csi_multi.contract import StorageError

from .account import Account
from .rows import InstanceRow, VolumeRow

log = logging.getLogger(__name__)


class Nodes:
    def __init__(self, account: Account) -> None:
        self._account = account
        self._key = f"csi-multi/node/{account.setting.driver}"[:128]
        self._known: dict[str, str] = {}  # node ids by instance

    def remember(self, instance: InstanceRow, node_id: str) -> None:
        """Write the node id on the instance, unless it is there. Failing is little harm: no attachment needs it."""
        before = self._known.get(instance.id)
        self._known[instance.id] = node_id  # at once: of many first attachments one writes
        written = node_id.replace(";", "/")  # no node id has a "/", and not all of AWS takes a ";"
        if before == node_id or instance.tags.get(self._key) == written:
            return
        try:
            self._account.ec2.tag([instance.id], {self._key: written})
        except StorageError as error:
            self._known.pop(instance.id, None)
            log.warning("listings may not name node %s after a restart: %s", node_id, error)

    def names(self, instances: Collection[str]) -> dict[str, str]:
        """Return the node id of each instance; the instance's own id where nobody has said."""
        if unknown := [one for one in instances if one not in self._known]:
            rows = self._account.instances.many(unknown, self._account.ends(None))
            self._known |= {one: told for one, row in rows.items() if (told := self._told(row))}
        return {one: self._known.get(one, one) for one in instances}

    def called(self, name: str, instances: Collection[str]) -> dict[str, InstanceRow]:
        """Return those that are the node of this name by their tag as it is now, unless it was copied from another."""
        rows = self._account.instances.many(instances, self._account.ends(None))
        told = {one: self._told(row) for one, row in rows.items()}
        return {one: rows[one] for one in rows if told[one].partition(";")[0] == name and one in told[one]}

    def of(self, row: VolumeRow) -> tuple[str, ...]:
        """Return the node ids where a volume is attached, or not yet detached."""
        return tuple(self.names([one.instance for one in row.attachments if one.state != "detached"]).values())

    def _told(self, row: InstanceRow) -> str:
        """Return the node id that its tag says, "" for none."""
        return row.tags.get(self._key, "").replace("/", ";")
