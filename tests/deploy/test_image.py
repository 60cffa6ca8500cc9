"""The images: the steps of the Containerfile, done in clean roots, give drivers that check, serve and answer.

So do those of the recipe for a backend of one's own, with the commands of its guide, on top of these images.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from csi_multi.process.driver_process import DriverProcess

from .conftest import ROOT
from .image import Builder, Stage, context, prepare_own, stages

PROGRAM = "/opt/csi-multi/bin/csi-multi"
OWN = ROOT / "examples/third-party-backend"
FILES = (ROOT / "Containerfile", OWN / "Containerfile")
CONFIGS = sorted(file for file in (ROOT / "config").glob("*.yaml") if not file.name.startswith("storageclass-"))
NODE_PROGRAMS = [
    *(
        "lvm",
        "thin_check",
        "rbd",
        "rbd-nbd",
        "mkfs.ext4",
        "mkfs.xfs",
        "mkfs.btrfs",
        "e2fsck",
        "resize2fs",
        "xfs_growfs",
    ),
    *("xfs_repair", "btrfs", "mount", "umount", "blkid", "losetup", "findmnt", "modprobe", "nsenter"),
]


@dataclass(frozen=True)
class Image:
    stage: Stage
    root: Path

    @property
    def user(self) -> str:
        return self.stage.said["USER"]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["chroot", f"--userspec={self.user}", str(self.root), *words]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **self.stage.environment}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    def has(self, program: str) -> bool:
        return any(self._exists(self.root / place / program) for place in ("usr/sbin", "usr/bin", "sbin", "bin"))

    def _exists(self, path: Path) -> bool:
        """Links are followed as in the image: modprobe is one to /bin/kmod, which this machine need not have."""
        while path.is_symlink():
            target = path.readlink()
            path = self.root / target.relative_to("/") if target.is_absolute() else path.parent / target
        return path.exists()


def test_a_build_sees_sources_and_nothing_else() -> None:
    seen = {str(file.relative_to(ROOT)) for file in context(ROOT)}

    assert {"pyproject.toml", "requirements.lock", "csi_multi/process/serve.py", "backends/lvm/pyproject.toml"} <= seen
    assert not [
        name for name in seen if name.startswith(("tests/", "kit/", ".git", "docs/", "config/")) or "/tests/" in name
    ]


def test_a_build_of_your_own_sees_the_wheels_and_their_hashes(tmp_path: Path) -> None:
    shutil.copytree(OWN, tmp_path / "own")
    for name in ("image.lock", "wheels/csi_multi_ramdisk-0.1.0-py3-none-any.whl", ".venv/pyvenv.cfg"):
        (tmp_path / "own" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "own" / name).touch()

    assert sorted(str(file.relative_to(tmp_path / "own")) for file in context(tmp_path / "own")) == [
        "Containerfile",
        "image.lock",
        "wheels/csi_multi_ramdisk-0.1.0-py3-none-any.whl",
    ]


def test_every_backend_that_is_written_for_an_author_has_the_same_recipe() -> None:
    for name in ("Containerfile", ".dockerignore"):
        assert len({file.read_text() for file in ROOT.glob(f"examples/*/{name}")}) == 1


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_no_step_takes_anything_that_is_not_pinned(file: Path) -> None:
    steps = [rest for stage in stages(file.read_text()) for name, rest in stage.steps if name == "RUN"]
    installs = [step for step in steps if "pip" in step and " install" in step and "apt-get" not in step]

    assert installs
    assert not [step for step in installs if "--require-hashes" not in step and "--no-index" not in step]
    assert not [step for step in steps if "curl" in step or "wget" in step]


def test_each_image_says_who_runs_what_and_how_it_is_stopped() -> None:
    said = {stage.name: {name for name, _ in stage.steps} for stage in stages((ROOT / "Containerfile").read_text())}

    assert all({"USER", "STOPSIGNAL", "ENTRYPOINT", "LABEL"} <= said[name] for name in ("controller", "node"))


def test_an_image_of_your_own_is_run_as_the_one_below_it() -> None:
    """What installs packages as root gives the rights back."""
    users = {
        stage.name: [user for name, user in stage.steps if name == "USER"]
        for file in FILES
        for stage in stages(file.read_text())
    }

    assert users == {"build": [], "controller": ["0:0", "65532:65532"], "node": []}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where roots are made."""
    if os.geteuid() != 0:
        pytest.skip("making roots takes root")
    directory = tmp_path_factory.mktemp("images", numbered=True)
    yield directory
    subprocess.run(["rm", "-rf", "--one-file-system", str(directory)], check=True)


@pytest.fixture(scope="module")
def images(directory: Path) -> dict[str, Image]:
    """Both images, built once."""
    file = stages((ROOT / "Containerfile").read_text())
    builder = Builder(directory, ROOT, {"CONTROLLER_PACKAGES": "ceph-common"})
    builder.base()
    roots = builder.build(file)
    return {stage.name: Image(stage, roots[stage.name]) for stage in file}


@dataclass(frozen=True)
class OwnImages:
    """The images of the example, and what they were built with."""

    builder: Builder
    images: dict[str, Image]


@pytest.fixture(scope="module")
def own(images: dict[str, Image], directory: Path) -> OwnImages:
    """The images of the example on top of ours, from the wheel and the hash that the commands of the guide make."""
    place = directory / "own"
    prepare_own(OWN, place / "source", "csi-multi-ramdisk")
    file = stages((OWN / "Containerfile").read_text())
    bases = {name.upper(): (image.stage, image.root) for name, image in images.items()}
    builder = Builder(place, place / "source", {"CONTROLLER_PACKAGES": "lsscsi"}, bases)
    roots = builder.build(file)
    return OwnImages(builder, {stage.name: Image(stage, roots[stage.name]) for stage in file})


@contextmanager
def without_shells(image: Image) -> Iterator[None]:
    shells = [image.root / place for place in ("usr/bin/sh", "usr/bin/bash", "usr/bin/dash")]
    try:
        for shell in shells:
            shell.chmod(0)
        yield
    finally:
        for shell in shells:
            shell.chmod(0o755)


@contextmanager
def changed(file: Path, text: str) -> Iterator[None]:
    """Give a file of a root that other tests use another text for the block."""
    before = file.read_text()
    file.write_text(text)
    try:
        yield
    finally:
        file.write_text(before)


def serves(image: Image, mode: str, config: str, directory: Path) -> None:
    """Start the driver in the image, as its user and with no shell; ask it, and stop it."""
    inside = image.root / str(directory).lstrip("/")
    inside.mkdir(parents=True)
    directory.chmod(0o777)
    script = 'mount --bind "$1" "$2$1" && shift && root=$1 && shift && exec chroot --userspec="$0" "$root" "$@"'
    wrapper = ("unshare", "--mount", "/bin/sh", "-c", script, image.user, str(directory), str(image.root))
    environment = image.stage.environment

    process = DriverProcess(directory, config, mode=mode, environment=environment, wrapper=wrapper, program=(PROGRAM,))
    with without_shells(image):
        try:
            client = process.start()
            assert client.Probe().ready.value
            assert client.GetPluginInfo().name == "multi.csi.example.com"
            client.close()
            assert process.stop() == 0
        finally:
            process.kill()


@pytest.mark.deploy
class TestBuilt:
    @pytest.mark.parametrize("config", CONFIGS, ids=lambda file: file.stem)
    @pytest.mark.parametrize("name", ["controller", "node"])
    def test_an_image_knows_the_backends_of_every_example(
        self, images: dict[str, Image], name: str, config: Path
    ) -> None:
        file = images[name].root / "tmp" / config.name
        file.write_text(config.read_text())

        done = images[name].run(PROGRAM, "check", f"/tmp/{config.name}")

        assert done.returncode == 0, done.stderr
        assert "BROKEN" not in done.stdout

    @pytest.mark.parametrize(("name", "mode"), [("controller", "controller"), ("node", "node")])
    def test_a_driver_serves_in_its_image_with_no_shell_and_stops_when_it_is_told(
        self, images: dict[str, Image], name: str, mode: str, tmp_path: Path
    ) -> None:
        config = "driver: {name: multi.csi.example.com}\nbackends: {cloud: {kind: ebs, region: eu-west-1}}\n"

        serves(images[name], mode, config, tmp_path)

    def test_the_nodes_image_has_the_programs_that_backends_and_engine_call(self, images: dict[str, Image]) -> None:
        assert [program for program in NODE_PROGRAMS if not images["node"].has(program)] == []

    def test_the_controllers_image_has_no_tools_of_the_node(self, images: dict[str, Image]) -> None:
        image = images["controller"]

        assert [
            program
            for program in ("lvm", "mkfs.xfs", "mkfs.btrfs", "rbd-nbd", "pip", "pip3", "gcc")
            if image.has(program)
        ] == []
        assert image.user == "65532:65532"
        assert image.has("rbd")

    def test_what_is_installed_is_what_the_driver_needs_and_nothing_for_tests(self, images: dict[str, Image]) -> None:
        listed = images["controller"].run(
            "/opt/csi-multi/bin/python",
            "-c",
            ("import importlib.metadata as m, json; print(json.dumps(sorted(d.name for d in m.distributions())))"),
        )

        names = set(json.loads(listed.stdout))
        assert {"csi-multi", "csi-multi-loop", "csi-multi-lvm", "csi-multi-ebs", "csi-multi-rbd", "grpcio"} <= names
        assert not {"pytest", "moto", "mypy", "pip", "hatchling", "setuptools"} & names

    def test_nobody_but_root_can_change_the_program(self, images: dict[str, Image]) -> None:
        found = subprocess.run(
            [
                "find",
                str(images["controller"].root / "opt/csi-multi"),
                "!",
                "-type",
                "l",
                "(",
                "-perm",
                "/022",
                "-o",
                "!",
                "-uid",
                "0",
                ")",
            ],
            capture_output=True,
            text=True,
            check=True,
        )

        assert found.stdout == ""


OWN_CONFIG = "driver: {name: multi.csi.example.com, node: n1}\nbackends: {ram: {kind: ramdisk, directory: /run/ram}}\n"


@pytest.mark.deploy
class TestOwn:
    @pytest.mark.parametrize("name", ["controller", "node"])
    def test_an_image_of_your_own_has_your_backend_beside_the_others(self, own: OwnImages, name: str) -> None:
        listed = own.images[name].run(PROGRAM, "backends", "--json")

        found = {one["kind"]: one["problem"] for one in json.loads(listed.stdout)}
        assert found == dict.fromkeys(("ebs", "loop", "lvm", "ramdisk", "rbd"), "")

    @pytest.mark.parametrize("name", ["controller", "node"])
    def test_a_driver_serves_your_backend_in_your_image_with_no_shell(
        self, own: OwnImages, name: str, tmp_path: Path
    ) -> None:
        serves(own.images[name], name, OWN_CONFIG, tmp_path)

    def test_an_image_takes_the_configuration_of_the_values(self, own: OwnImages) -> None:
        text = yaml.safe_load((OWN / "values.yaml").read_text())["config"]
        (own.images["node"].root / "tmp/config.yaml").write_text(text)

        done = own.images["node"].run(PROGRAM, "check", "/tmp/config.yaml")

        assert done.returncode == 0, done.stderr
        assert "backend ram (default): ramdisk: NodeLocal" in done.stdout

    def test_packages_are_added_as_root_and_the_controller_is_still_run_as_nobody(self, own: OwnImages) -> None:
        assert own.images["controller"].has("lsscsi")
        assert own.images["controller"].user == "65532:65532"
        assert not own.images["node"].has("lsscsi")
        assert own.images["node"].user == "0:0"

    def test_a_wheel_with_another_hash_ends_the_build(self, own: OwnImages) -> None:
        build = own.images["build"]
        (step,) = [rest for name, rest in build.stage.steps if name == "RUN" and "--require-hashes" in rest]
        lock = build.root / "src/image.lock"
        wrong = re.sub(r"sha256:\w", lambda found: "sha256:" + "01"[found[0][-1] == "0"], lock.read_text())

        with changed(lock, wrong), pytest.raises(AssertionError, match="DO NOT MATCH THE HASHES"):
            own.builder.run(build.stage, build.root, step)

    def test_a_dependency_that_is_in_no_image_ends_the_build(self, own: OwnImages) -> None:
        build = own.images["build"]
        (step,) = [rest for name, rest in build.stage.steps if name == "RUN" and rest.endswith(" check")]
        (metadata,) = (build.root / "opt/csi-multi-own").glob("*.dist-info/METADATA")
        wrong = metadata.read_text().replace("Requires-Dist: csi-multi", "Requires-Dist: csi-multi-else")
        reason = "requires csi-multi-else, which is not installed"

        with changed(metadata, wrong), pytest.raises(AssertionError, match=reason):
            own.builder.run(build.stage, build.root, step)
