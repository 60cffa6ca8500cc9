"""The programs of a cluster, from their Go modules, into .tools/kubernetes/bin; built once and kept.

What the Go proxy lacks comes from SOURCES, a directory with NAME.tar.gz for each (`ARCHIVES`). All sidecars are built
as one module with the libraries of Kubernetes itself, so that these are compiled once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

from .versions import CONTAINERD, KUBERNETES, LIBRARIES, PROJECT, release

TOOLS = PROJECT / ".tools/kubernetes"
PROGRAMS = TOOLS / "bin"
SOURCE = TOOLS / "source"
CSI = "github.com/kubernetes-csi"
PROVISIONER = f"{CSI}/external-provisioner/v6"
SNAPSHOTTER = f"{CSI}/external-snapshotter/v8"
SNAPSHOTTER_CLIENT = f"{CSI}/external-snapshotter/client/v8"
ARCHIVES = {  # what the Go proxy lacks: the module of each archive
    "external-resizer": f"{CSI}/external-resizer/v2",
    "node-driver-registrar": f"{CSI}/node-driver-registrar",
    "livenessprobe": f"{CSI}/livenessprobe",
}
CORE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
SIDECARS = {
    "csi-provisioner": f"{PROVISIONER}/cmd/csi-provisioner",
    "csi-resizer": f"{CSI}/external-resizer/v2/cmd/csi-resizer",
    "csi-snapshotter": f"{SNAPSHOTTER}/cmd/csi-snapshotter",
    "snapshot-controller": f"{SNAPSHOTTER}/cmd/snapshot-controller",
    "csi-node-driver-registrar": f"{CSI}/node-driver-registrar/cmd/csi-node-driver-registrar",
    "livenessprobe": f"{CSI}/livenessprobe/cmd/livenessprobe",
}
SUITE = ("ginkgo", "agnhost", "e2e.test")
RUNTIME = ("containerd", "containerd-shim-runc-v2", "ctr")


class BuildError(Exception):
    """A program cannot be built here; the text says why."""


def build() -> None:
    """Build what is not there yet. Raises BuildError."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    releases = {program: release(program) for program in SIDECARS}
    _build_missing(CORE, KUBERNETES, _core)
    _build_missing(("etcd",), KUBERNETES, _etcd)
    _build_missing(RUNTIME, CONTAINERD, _containerd)
    _build_missing(tuple(SIDECARS), json.dumps(releases), _sidecars)


def build_suite() -> None:
    """Build Kubernetes' own tests, their runner, and the program of their pods. Raises BuildError."""
    _build_missing(SUITE, KUBERNETES, _suite)


def _build_missing(names: tuple[str, ...], releases: str, step: Callable[[list[str]], None]) -> None:
    """Build those of the programs that are missing, or all if they are of other releases."""
    stamp = PROGRAMS / f"{names[0]}.releases"
    if not stamp.exists() or stamp.read_text() != releases:
        for name in names:
            (PROGRAMS / name).unlink(missing_ok=True)
    missing = [name for name in names if not (PROGRAMS / name).exists()]
    if missing:
        began = time.monotonic()
        print(f"kubernetes: building {', '.join(missing)}", flush=True)
        step(missing)
        stamp.write_text(releases)
        print(f"kubernetes: built in {time.monotonic() - began:.0f} s", flush=True)


def snapshotter() -> Path:
    """Return the sources of external-snapshotter, which have the objects of the snapshot-controller."""
    return _module(SNAPSHOTTER, release("csi-snapshotter"))


def snapshot_definitions() -> Path:
    """Return the directory of the CRDs of snapshots."""
    return _module(SNAPSHOTTER_CLIENT, release("csi-snapshotter")) / "config/crd"


def _core(names: list[str]) -> None:
    _go_build(kubernetes(), [f"./cmd/{name}" for name in names], _version_flags())


def _suite(_names: list[str]) -> None:
    _go_build(kubernetes(), ["github.com/onsi/ginkgo/v2/ginkgo"], name="ginkgo")
    _go_build(kubernetes(), ["./test/images/agnhost"], _version_flags(), name="agnhost")
    out = str(PROGRAMS / "e2e.test")
    _go("test", "-c", f"-ldflags=-s -w {_version_flags()}", "-o", out, "./test/e2e", directory=kubernetes())


def _version_flags() -> str:
    package = "k8s.io/component-base/version"
    facts = {"gitVersion": KUBERNETES, "gitMajor": "1", "gitMinor": KUBERNETES.split(".")[1], "gitTreeState": "clean"}
    facts["buildDate"] = "2026-01-01T00:00:00Z"
    return " ".join(f"-X {package}.{name}={value}" for name, value in facts.items())


def _etcd(_names: list[str]) -> None:
    _go_build(kubernetes(), ["go.etcd.io/etcd/server/v3"], name="etcd")


def _containerd(names: list[str]) -> None:
    source = SOURCE / f"containerd-{CONTAINERD}"
    if not source.exists():
        _copy(_module("github.com/containerd/containerd/v2", CONTAINERD), source)
    version = f"-X github.com/containerd/containerd/v2/version.Version={CONTAINERD}"
    tags = "-tags=no_btrfs,no_zfs,no_devmapper,no_blockfile"
    _go_build(source, [tags, *(f"./cmd/{name}" for name in names)], version)


def _sidecars(names: list[str]) -> None:
    directory = SOURCE / "sidecars"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    required = {"k8s.io/kubernetes": KUBERNETES, PROVISIONER: release("csi-provisioner")}
    required |= dict.fromkeys((SNAPSHOTTER, SNAPSHOTTER_CLIENT), release("csi-snapshotter"))
    replaced = {}
    for name, module in ARCHIVES.items():
        required[module] = "v2.0.0" if module.endswith("/v2") else "v0.0.0"
        replaced[module] = str(_archive(name))
    edits = [f"-require={module}@{version}" for module, version in required.items()]
    edits += [f"-replace={module}={by}" for module, by in replaced.items()]
    shutil.copy(kubernetes() / "go.sum", directory / "go.sum")
    _go("mod", "init", "sidecars", directory=directory)
    _go("mod", "edit", "-go=1.26.0", *edits, *_replaced_libraries(kubernetes()), directory=directory)
    _go_build(directory, [SIDECARS[name] for name in names])


def kubernetes() -> Path:
    """Return the sources of Kubernetes. Its module lacks its own libraries, which are modules of the same release."""
    source = SOURCE / f"kubernetes-{KUBERNETES}"
    if not source.exists():
        draft = source.with_name("kubernetes.new")
        _copy(_module("k8s.io/kubernetes", KUBERNETES), draft)
        for name in ("go.work", "go.work.sum"):
            (draft / name).unlink(missing_ok=True)
        _go("mod", "edit", *_replaced_libraries(draft), directory=draft)
        draft.rename(source)
    return source


def _replaced_libraries(kubernetes: Path) -> list[str]:
    """Return the arguments of `go mod edit` that put released modules in place of the directories below staging."""
    known = json.loads(_go("mod", "edit", "-json", directory=kubernetes))["Replace"]
    names = [one["Old"]["Path"] for one in known if one["Old"]["Path"].startswith("k8s.io/")]
    return [f"-replace={name}={name}@{LIBRARIES}" for name in names]


def _archive(name: str) -> Path:
    """Return the sources of a sidecar, unpacked anew: they may be of another release than those before."""
    given = os.environ.get("SOURCES", "")
    archive = Path(given) / f"{name}.tar.gz"
    if not given or not archive.is_file():
        raise BuildError(
            f"the Go proxy has no {ARCHIVES[name]}: give a directory with {name}.tar.gz, the checkout of its release, "
            f"as SOURCES=DIRECTORY (SOURCES is {given or 'not set'})"
        )
    shutil.rmtree(SOURCE / name, ignore_errors=True)
    SOURCE.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as opened:
        opened.extractall(SOURCE, filter="data")
    return SOURCE / name


def _module(module: str, version: str) -> Path:
    return Path(json.loads(_go("mod", "download", "-json", f"{module}@{version}", directory=Path("/")))["Dir"])


def _copy(module: Path, source: Path) -> None:
    """Copy a module out of Go's cache, whose files nobody may change."""
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(module, source, copy_function=shutil.copyfile)
    for directory in (source, *(path for path in source.rglob("*") if path.is_dir())):
        directory.chmod(0o755)


def _go_build(directory: Path, packages: list[str], flags: str = "", name: str = "") -> None:
    out = PROGRAMS / name if name else f"{PROGRAMS}/"
    _go("build", f"-ldflags=-s -w {flags}", "-o", str(out), *packages, directory=directory)


def _go(*words: str, directory: Path) -> str:
    go = subprocess.run([PROJECT / "scripts/go"], capture_output=True, text=True, check=False)
    if go.returncode:
        raise BuildError(f"there is no Go to build with: {go.stderr.strip()}")
    flags = "-buildvcs=false -mod=mod -trimpath -modcacherw"
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": flags, "CGO_ENABLED": "0"}
    command = [go.stdout.strip(), *words]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"go {' '.join(words)} in {directory} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout
