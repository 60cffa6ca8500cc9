"""What pods may see and do: no more than the backends of the configuration need, and the guide explains each thing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from csi_multi.commands.cli import parser
from csi_multi.config.settings import load_config
from csi_multi.contract.params import parse
from csi_multi.host.command import LocalHost
from csi_multi.loading.loader import load_instances

from .conftest import EVERY_SWITCH, ROOT, Release

GUIDE = ROOT / "docs/deploy.md"


def paths(release: Release) -> dict[str, str]:
    """Volume name to the host's directory, of the node's pods."""
    return {
        volume["name"]: volume["hostPath"]["path"]
        for volume in release.pod("DaemonSet")["volumes"]
        if "hostPath" in volume
    }


def test_a_node_whose_kernel_has_no_modules_runs_the_drivers_pod(release: Release) -> None:
    (modules,) = [one["hostPath"] for one in release.pod("DaemonSet")["volumes"] if one["name"] == "modules"]

    assert modules == {"path": "/lib/modules", "type": "DirectoryOrCreate"}


def kinds(release: Release) -> set[str]:
    return {backend["kind"] for backend in release.config["backends"].values()}


def test_the_configuration_passes_the_drivers_own_check(release: Release, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(release.one("ConfigMap")["data"]["config.yaml"])

    settings = load_config(file)
    assert not load_instances(settings, LocalHost()).broken


def test_the_configuration_is_kept_to_the_letter(release: Release) -> None:
    written = re.search(r"^config: \|\n((?:  .*\n|\n)*)", release.values.read_text(), re.MULTILINE)

    assert written is not None
    assert release.one("ConfigMap")["data"]["config.yaml"] == re.sub(r"^  ", "", written[1], flags=re.MULTILINE)


def test_a_nodes_pod_has_no_secret_but_its_certificate(release: Release) -> None:
    secrets = [volume["secret"]["secretName"] for volume in release.pod("DaemonSet")["volumes"] if "secret" in volume]

    assert secrets == (["csi-multi-node-tls"] if "tls" in release.config.get("cluster", {}) else [])


def subjects(release: Release) -> dict[str, set[str]]:
    """Role or cluster role to the service accounts that have it."""
    bindings = [*release.all("ClusterRoleBinding"), *release.all("RoleBinding")]
    return {one["roleRef"]["name"]: {subject["name"] for subject in one["subjects"]} for one in bindings}


def test_a_nodes_pod_has_no_credentials_of_the_api(release: Release) -> None:
    accounts = {account["metadata"]["name"]: account for account in release.all("ServiceAccount")}
    if release.values == EVERY_SWITCH:
        pytest.skip("it has the drain hook")

    assert release.pod("DaemonSet")["automountServiceAccountToken"] is False
    assert accounts["csi-multi-node"]["automountServiceAccountToken"] is False
    assert not [role for role, having in subjects(release).items() if "csi-multi-node" in having]


def test_with_the_drain_hook_a_nodes_pod_reads_node_objects_and_nothing_else(whole: Release) -> None:
    having = [role for role, accounts in subjects(whole).items() if "csi-multi-node" in accounts]
    (rules,) = [role["rules"] for role in whole.all("ClusterRole") if role["metadata"]["name"] in having]

    assert having == ["csi-multi-drain"]
    assert rules == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]


@pytest.mark.parametrize("fencing", [True, False])
def test_a_nodes_pod_asks_whether_another_node_is_out_of_service_only_where_it_is_cut_off(
    rendered: Callable[..., Release], fencing: bool
) -> None:
    ceph = f"{{kind: rbd, monitors: [a], fsid: f, pool: p, user: u, fencing: {str(fencing).lower()}}}"
    made = rendered(f"driver: {{name: multi.csi.example.com}}\nbackends: {{ceph: {ceph}}}\n")
    (account,) = [one for one in made.all("ServiceAccount") if one["metadata"]["name"] == "csi-multi-node"]

    having = [role for role, accounts in subjects(made).items() if "csi-multi-node" in accounts]
    assert having == ["csi-multi-drain"] * fencing
    assert account["automountServiceAccountToken"] is fencing
    assert made.pod("DaemonSet").get("automountServiceAccountToken", True) is fencing


@pytest.mark.parametrize(
    ("source", "reads"), [("imds", False), ("static", False), ("kubernetes", True), ("auto", True)]
)
def test_a_nodes_pod_reads_its_node_object_only_where_that_is_the_source_of_its_identity(
    rendered: Callable[..., Release], source: str, reads: bool
) -> None:
    ireland = f"{{kind: ebs, region: eu-west-1, metadata: {source}}}"
    made = rendered(f"driver: {{name: multi.csi.example.com}}\nbackends: {{ireland: {ireland}}}\n")

    having = [role for role, accounts in subjects(made).items() if "csi-multi-node" in accounts]
    assert having == ["csi-multi-drain"] * reads
    assert made.pod("DaemonSet").get("automountServiceAccountToken", True) is reads


@pytest.mark.parametrize("tls", [True, False])
def test_prometheus_scrapes_by_https_where_the_port_has_tls(rendered: Callable[..., Release], tls: bool) -> None:
    files = "metrics_certificate: /tls/tls.crt, metrics_key: /tls/tls.key, " if tls else ""
    made = rendered(
        f"driver: {{{files}metrics: '0.0.0.0:19809', name: multi.csi.example.com}}\n"
        "backends: {ireland: {kind: ebs, region: eu-west-1}}\n",
        metrics={"enabled": True, "serviceMonitor": {"enabled": True, "tlsConfig": {"serverName": "metrics"}}},
    )
    (endpoint,) = made.one("ServiceMonitor")["spec"]["endpoints"]

    assert endpoint.get("scheme") == ("https" if tls else None)
    assert endpoint.get("tlsConfig") == ({"serverName": "metrics"} if tls else None)


def test_the_drain_hook_is_a_command_of_the_program_and_ends_before_the_pod_is_killed(whole: Release) -> None:
    hook = whole.containers("DaemonSet")["driver"]["lifecycle"]["preStop"]["exec"]["command"]
    options = parser().parse_args(hook[1:])

    assert options.driver == whole.config["driver"]["name"]
    assert options.seconds < whole.pod("DaemonSet")["terminationGracePeriodSeconds"]


def test_the_kubelet_knows_the_driver_until_the_driver_has_ended(release: Release) -> None:
    """A sidecar among the init containers is stopped after the containers; without a startupProbe they do not wait."""
    sidecars = {one["name"]: one for one in release.pod("DaemonSet")["initContainers"]}

    assert sidecars["registrar"]["restartPolicy"] == "Always"
    assert not {"startupProbe", "readinessProbe"} & set(sidecars["registrar"])
    assert "driver" in {one["name"] for one in release.pod("DaemonSet")["containers"]}


def test_the_startup_taint_is_taken_off_by_a_pod_that_does_nothing_else(whole: Release) -> None:
    (made,) = [one for one in whole.all("Deployment") if one["metadata"]["name"] == "csi-multi-startup-taint"]
    pod = made["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    options = parser().parse_args(container["args"])

    assert options.key == f"{options.driver}/starting"
    assert {"key": options.key, "operator": "Exists"} in pod["tolerations"]
    assert {"key": options.key, "operator": "Exists"} in whole.pod("Deployment")["tolerations"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert subjects(whole)["csi-multi-startup-taint"] == {pod["serviceAccountName"]}


def test_every_driver_is_started_with_words_that_it_takes(release: Release) -> None:
    for kind, mode in (("Deployment", "controller"), ("DaemonSet", "node")):
        options = parser().parse_args(release.containers(kind)["driver"]["args"])

        assert options.mode == mode


def test_the_controller_runs_as_nobody_with_no_capability(release: Release) -> None:
    pod = release.pod("Deployment")

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
    for container in release.containers("Deployment").values():
        context = container["securityContext"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False


def test_on_a_node_only_the_driver_is_privileged(release: Release) -> None:
    privileged = [
        name for name, one in release.containers("DaemonSet").items() if one["securityContext"].get("privileged")
    ]

    assert privileged == ["driver"]


def test_mounts_of_the_driver_reach_the_kubelet_and_those_of_others_do_not(release: Release) -> None:
    mounts = {
        one["name"]: one.get("mountPropagation") for one in release.containers("DaemonSet")["driver"]["volumeMounts"]
    }

    assert mounts.pop("kubelet") == "Bidirectional"
    assert "Bidirectional" not in mounts.values()


def test_the_driver_sees_the_kubelets_directory_where_the_kubelet_has_it(release: Release) -> None:
    mounts = {one["name"]: one["mountPath"] for one in release.containers("DaemonSet")["driver"]["volumeMounts"]}

    assert mounts["kubelet"] == paths(release)["kubelet"] == "/var/lib/kubelet"
    assert mounts["dev"] == paths(release)["dev"] == "/dev"


def test_every_mount_has_a_volume_and_every_volume_a_mount(release: Release) -> None:
    for kind in ("Deployment", "DaemonSet"):
        volumes = [volume["name"] for volume in release.pod(kind)["volumes"]]
        mounted = {mount["name"] for one in release.containers(kind).values() for mount in one["volumeMounts"]}

        assert sorted(mounted) == sorted(volumes)


@pytest.mark.parametrize(
    ("volume", "needed"),
    [("lvm-locks", "lvm"), ("lvm-etc", "lvm"), ("udev", "lvm"), ("loop-0", "loop")],
)
def test_a_directory_of_the_host_is_there_for_its_backend_only(release: Release, volume: str, needed: str) -> None:
    own_lvm = [
        one
        for one in release.config["backends"].values()
        if one.get("kind") == "lvm" and one.get("namespace") != "host"
    ]
    wanted = bool(own_lvm) if needed == "lvm" else needed in kinds(release)

    assert (volume in paths(release)) == wanted


def test_the_hosts_processes_are_seen_only_by_backends_that_need_them(release: Release) -> None:
    backends = release.config["backends"].values()
    needed = any(one.get("namespace") == "host" or one.get("mounter") == "rbd-nbd" for one in backends)

    if release.values.stem != "every-switch":
        assert release.pod("DaemonSet").get("hostPID", False) == needed


def test_every_directory_of_the_host_is_explained_in_the_guide(release: Release) -> None:
    guide = GUIDE.read_text()
    own = {"/srv/data", "/etc/acme.conf", *(one.get("directory", "") for one in release.config["backends"].values())}

    missing = [
        path
        for path in paths(release).values()
        if path not in own and f"`{path.replace(release.config['driver']['name'], 'NAME')}`" not in guide
    ]
    assert missing == []


def test_volumes_are_attached_exactly_if_a_backend_or_the_configuration_says_so(release: Release) -> None:
    wanted = "ebs" in kinds(release) or release.config.get("cluster", {}).get("attach_required", False)

    assert release.one("CSIDriver")["spec"]["attachRequired"] == wanted
    assert ("attacher" in release.containers("Deployment")) == wanted


def test_the_driver_has_one_name_everywhere(release: Release) -> None:
    name = release.config["driver"]["name"]
    classes = [one["provisioner"] for one in release.all("StorageClass")]

    assert release.one("CSIDriver")["metadata"]["name"] == name
    assert set(classes) == {name}
    assert paths(release)["plugin"] == f"/var/lib/kubelet/plugins/{name}"
    assert (
        f"--kubelet-registration-path=/var/lib/kubelet/plugins/{name}/csi.sock"
        in release.containers("DaemonSet")["registrar"]["args"]
    )


def test_every_class_has_parameters_that_its_backend_takes(release: Release, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(release.one("ConfigMap")["data"]["config.yaml"])
    instances = load_instances(load_config(file), LocalHost())

    for one in release.all("StorageClass"):
        words = {key: value for key, value in one["parameters"].items() if not key.startswith("csi.storage.k8s.io/")}
        backend = instances.get(words.pop("backend")).backend
        parse(backend.Parameters, words, one["metadata"]["name"])


def test_no_image_is_without_a_version(release: Release) -> None:
    images = [one["image"] for kind in ("Deployment", "DaemonSet") for one in release.containers(kind).values()]

    assert [image for image in images if ":" not in image.rpartition("/")[2] or image.endswith(":latest")] == []
