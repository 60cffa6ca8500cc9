"""Every right that the chart gives is needed by a named container, and none is given twice."""

from __future__ import annotations

from .conftest import EVERY_SWITCH, Object, Release

READ = ("get", "list", "watch")
GROUPS = "--feature-gates=CSIVolumeGroupSnapshot=true"  # of the snapshotter
CLIENT = "snapshot-metadata-client"  # a role for others to bind
# What each container asks the API, from what it does. A right that is not here is not given.
NEEDED = {
    "provisioner": {
        "persistentvolumes": (*READ, "create", "patch", "delete"),  # makes, finalizes and deletes them
        "persistentvolumeclaims": (*READ, "update"),  # takes the selected node off when it is full
        "nodes": READ,  # labels, for topology
        "events": ("create", "update", "patch"),
        "storage.k8s.io/storageclasses": READ,
        "storage.k8s.io/csinodes": READ,  # topology keys
        "storage.k8s.io/volumeattributesclasses": READ,
        "storage.k8s.io/volumeattachments": READ,  # does not delete what is attached
        "snapshot.storage.k8s.io/volumesnapshots": (*READ, "update"),  # sources of claims: a finalizer while it copies
        "snapshot.storage.k8s.io/volumesnapshotcontents": ("get", "list"),
    },
    "attacher": {
        "persistentvolumes": (*READ, "patch"),  # finalizers
        "storage.k8s.io/csinodes": READ,  # node ids
        "storage.k8s.io/volumeattachments": (*READ, "patch"),
        "storage.k8s.io/volumeattachments/status": ("patch",),
    },
    "resizer": {
        "persistentvolumes": (*READ, "patch"),  # the new size
        "persistentvolumeclaims": READ,
        "persistentvolumeclaims/status": ("patch",),
        "events": ("create", "update", "patch"),
        "storage.k8s.io/volumeattributesclasses": READ,
    },
    "snapshotter": {
        "events": ("create", "update", "patch"),
        "snapshot.storage.k8s.io/volumesnapshotclasses": READ,
        "snapshot.storage.k8s.io/volumesnapshotcontents": (*READ, "update", "patch"),
        "snapshot.storage.k8s.io/volumesnapshotcontents/status": ("update", "patch"),
        "groupsnapshot.storage.k8s.io/volumegroupsnapshotclasses": READ,
        "groupsnapshot.storage.k8s.io/volumegroupsnapshotcontents": (*READ, "update", "patch"),
        "groupsnapshot.storage.k8s.io/volumegroupsnapshotcontents/status": ("update", "patch"),
    },
    "snapshot-metadata": {
        "authentication.k8s.io/tokenreviews": ("create",),  # who asks
        "authorization.k8s.io/subjectaccessreviews": ("create",),  # may they read these snapshots?
        "cbt.storage.k8s.io/snapshotmetadataservices": ("get",),  # its own: the audience
        "snapshot.storage.k8s.io/volumesnapshots": ("get",),
        "snapshot.storage.k8s.io/volumesnapshotcontents": ("get",),  # the handle
        "snapshot.storage.k8s.io/volumesnapshotclasses": ("get", "list"),  # secrets
    },
    "health-monitor": {
        "persistentvolumes": READ,
        "persistentvolumeclaims": READ,
        "persistentvolumeclaims/status": ("patch",),  # healthStatus
        "pods": READ,  # its node watcher: who uses volumes of a node that is not well
        "nodes": READ,
        "events": ("create", "patch"),
    },
    "driver": {"nodes": ("list", "watch")},  # where the drivers of the nodes are
}
# Of pods that are not the controller's.
NEEDED_ELSEWHERE = {
    "startup-taint": {"nodes": ("get", "list", "patch"), "storage.k8s.io/csinodes": ("list", "watch")},
    "drain": {"nodes": ("get",)},  # its own: is it drained? and that of who had a volume last: is it out of service?
    CLIENT: {
        "snapshot.storage.k8s.io/volumesnapshots": READ,
        "snapshot.storage.k8s.io/volumesnapshotcontents": READ,
        "cbt.storage.k8s.io/snapshotmetadataservices": ("get", "list"),  # where the service is
    },
}
# In the release's own namespace.
NEEDED_HERE = {
    "coordination.k8s.io/leases": (*READ, "create", "update", "delete"),  # every sidecar: who leads
    "storage.k8s.io/csistoragecapacities": (*READ, "create", "update", "patch", "delete"),  # provisioner
    "pods": ("get",),  # provisioner: from its pod to the Deployment, which owns the capacities
    "apps/replicasets": ("get",),
}


def rights(rules: list[Object]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault(f"{group}/{resource}".lstrip("/"), set()).update(rule["verbs"])
    return found


def expected(table: dict[str, tuple[str, ...]]) -> dict[str, set[str]]:
    return {resource: set(verbs) for resource, verbs in table.items()}


def test_each_container_has_a_role_with_what_it_needs_and_no_more(release: Release) -> None:
    containers = set(release.containers("Deployment"))
    for role in release.all("ClusterRole"):
        owner = role["metadata"]["name"].removeprefix("csi-multi-")
        needed = expected((NEEDED | NEEDED_ELSEWHERE)[owner])
        if "attacher" not in containers:
            needed.pop("storage.k8s.io/volumeattachments", None)
        if GROUPS not in release.containers("Deployment").get("snapshotter", {"args": []})["args"]:
            needed = {resource: verbs for resource, verbs in needed.items() if not resource.startswith("groupsnapshot")}

        assert owner in containers | set(NEEDED_ELSEWHERE)
        assert rights(role["rules"]) == needed, owner


def test_a_container_that_is_not_there_has_no_role(release: Release) -> None:
    owners = {role["metadata"]["name"].removeprefix("csi-multi-") for role in release.all("ClusterRole")}
    wanted = {name for name in release.containers("Deployment") if name in NEEDED}
    if "kubernetes" not in release.config.get("cluster", {}):
        wanted.discard("driver")
    if release.values == EVERY_SWITCH:
        wanted |= set(NEEDED_ELSEWHERE)

    assert owners == wanted


def test_in_its_own_namespace_the_controller_elects_leaders_and_keeps_capacities(release: Release) -> None:
    (role,) = [one for one in release.all("Role") if one["metadata"]["name"] == "csi-multi-controller"]

    assert role["metadata"]["namespace"] == "csi-multi"
    assert rights(role["rules"]) == expected(NEEDED_HERE)


def test_nobody_has_the_role_of_backup_programs_until_it_is_bound(whole: Release) -> None:
    assert f"csi-multi-{CLIENT}" not in [one["roleRef"]["name"] for one in whole.all("ClusterRoleBinding")]


def test_secrets_are_read_one_by_one_and_only_those_that_classes_name(release: Release) -> None:
    rules = [rule for kind in ("ClusterRole", "Role") for role in release.all(kind) for rule in role["rules"]]
    secrets = [rule for rule in rules if "secrets" in rule["resources"]]

    assert all(rule["verbs"] == ["get"] and rule["resourceNames"] for rule in secrets)


def test_nobody_may_do_everything(release: Release) -> None:
    rules = [rule for kind in ("ClusterRole", "Role") for role in release.all(kind) for rule in role["rules"]]

    assert not [rule for rule in rules if "*" in rule["verbs"] + rule["resources"] + rule["apiGroups"]]
