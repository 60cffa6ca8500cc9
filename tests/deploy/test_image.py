"""The images: the steps of the Containerfile, done in clean roots, give drivers that check, serve and answer."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from csi_multi.process.driver_process import DriverProcess

from .conftest import ROOT
from .image import Builder, Stage, context, stages

PROGRAM = "/opt/csi-multi/bin/csi-multi"
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
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        )

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


def test_no_step_takes_anything_that_is_not_pinned() -> None:
    steps = [
        rest for stage in stages((ROOT / "Containerfile").read_text()) for name, rest in stage.steps if name == "RUN"
    ]
    installs = [step for step in steps if "pip" in step and " install" in step and "apt-get" not in step]

    assert installs
    assert not [step for step in installs if "--require-hashes" not in step and "--no-index" not in step]
    assert not [step for step in steps if "curl" in step or "wget" in step]


def test_each_image_says_who_runs_what_and_how_it_is_stopped() -> None:
    said = {stage.name: {name for name, _ in stage.steps} for stage in stages((ROOT / "Containerfile").read_text())}

    assert all({"USER", "STOPSIGNAL", "ENTRYPOINT", "LABEL"} <= said[name] for name in ("controller", "node"))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Image]]:
    """Both images, built once."""
    if os.geteuid() != 0:
        pytest.skip("making roots takes root")
    file = stages((ROOT / "Containerfile").read_text())
    arguments = {"CONTROLLER_PACKAGES": "ceph-common"}
    directory = tmp_path_factory.mktemp("images", numbered=True)
    builder = Builder(directory, ROOT, arguments)
    try:
        builder.base()
        roots = builder.build(file)
        yield {stage.name: Image(stage, roots[stage.name]) for stage in file}
    finally:
        subprocess.run(["rm", "-rf", "--one-file-system", str(directory)], check=True)


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
        image = images[name]
        for place in ("usr/bin/sh", "usr/bin/bash", "usr/bin/dash"):
            (image.root / place).chmod(0)
        inside = image.root / str(tmp_path).lstrip("/")
        inside.mkdir(parents=True)
        config = "driver: {name: multi.csi.example.com}\nbackends: {cloud: {kind: ebs, region: eu-west-1}}\n"
        tmp_path.chmod(0o777)
        mounted = (
            "unshare",
            "--mount",
            "/bin/sh",
            "-c",
            'mount --bind "$1" "$2$1" && shift && root=$1 && shift && exec chroot --userspec="$0" "$root" "$@"',
        )
        wrapper = (*mounted, image.user, str(tmp_path), str(image.root))

        process = DriverProcess(tmp_path, config, mode=mode, wrapper=wrapper, program=(PROGRAM,))
        try:
            client = process.start()
            assert client.Probe().ready.value
            assert client.GetPluginInfo().name == "multi.csi.example.com"
            client.close()
            assert process.stop() == 0
        finally:
            process.kill()

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
