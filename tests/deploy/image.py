"""Builds the stages of the Containerfile where there is no container engine: its own steps, in a root of its own each.

Understood is what the files use: ARG, ENV, FROM, COPY, WORKDIR, USER, RUN and what describes the result. Anything else
is an error. ${BASE} is a minimal Debian, made by mmdebstrap from where this machine's apt looks; any other base is an
image that was built before.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

SUITE = "bookworm"
GUIDE = Path(__file__).parents[2] / "docs/backend-image.md"
DESCRIBED = ("LABEL", "USER", "STOPSIGNAL", "ENTRYPOINT", "CMD")
# Mounts that end with the command: what a container engine gives a build, and no more.
ENTER = (
    'mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && root=$1 && shift && '
    'exec chroot --userspec="$0" "$root" "$@"'
)


@dataclass
class Stage:
    """One stage: its steps from the file, then its files and what was said about them."""

    name: str
    base: str  # the argument that names it
    steps: list[tuple[str, str]] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    directory: str = "/"
    said: dict[str, str] = field(default_factory=dict)

    def filled(self, text: str) -> str:
        return re.sub(r"\$\{(\w+)\}", lambda found: self.variables.get(found[1], found[0]), text)


def stages(text: str) -> list[Stage]:
    """Read the file. Arguments before the first stage are left out: the base is ours."""
    found: list[Stage] = []
    for line in text.replace("\\\n", " ").splitlines():
        instruction, _, rest = line.strip().partition(" ")
        if not instruction or instruction.startswith("#"):
            continue
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            assert re.fullmatch(r"\$\{\w+\}", base), f"stage {name} is not built from a base of our choice"
            found.append(Stage(name, base[2:-1]))
        elif found:
            found[-1].steps.append((instruction, rest))
    return found


class Builder:
    """Stages in directories below one, which must be empty.

    `bases`: images that are built from, by the argument that names them.
    """

    def __init__(
        self,
        directory: Path,
        context: Path,
        arguments: Mapping[str, str],
        bases: Mapping[str, tuple[Stage, Path]] = MappingProxyType({}),
    ) -> None:
        self.directory, self.context, self.arguments = directory, context, arguments
        self.bases = {"BASE": (Stage("base", ""), directory / "base"), **bases}
        self._building: dict[str, Future[Path]] = {}

    def base(self) -> None:
        """Make what ${BASE} stands for, with dpkg as quick as in Debian's own images."""
        root = self.bases["BASE"][1]
        sources = [str(file) for file in Path("/etc/apt/sources.list.d").glob("debian.sources")] or []
        command = ["mmdebstrap", "--quiet", "--variant=minbase", "--mode=root", SUITE, str(root), *sources]
        subprocess.run(command, check=True)
        (root / "etc/dpkg/dpkg.cfg.d/quick").write_text("force-unsafe-io\npath-exclude /usr/share/doc/*\n")
        if Path("/etc/pip.conf").exists():
            shutil.copy("/etc/pip.conf", root / "etc/pip.conf")
        if bundle := os.environ.get("PIP_CERT"):
            shutil.copy(bundle, root / "etc/registries.crt")

    def build(self, stages: list[Stage]) -> dict[str, Path]:
        """Do the steps of all stages side by side; one that copies from another waits for it. Return their roots."""
        with ThreadPoolExecutor(len(stages)) as pool:
            for stage in stages:
                self._building[stage.name] = pool.submit(self._build, stage)
            return {name: building.result() for name, building in self._building.items()}

    def _build(self, stage: Stage) -> Path:
        """Do the stage's steps, in a copy of the base."""
        root = self.directory / stage.name
        base, files = self.bases[stage.base]
        subprocess.run(["cp", "-a", str(files), str(root)], check=True)
        stage.environment, stage.said = dict(base.environment), dict(base.said)
        for instruction, rest in stage.steps:
            self._step(stage, root, instruction, rest)
        return root

    def _step(self, stage: Stage, root: Path, instruction: str, rest: str) -> None:
        if instruction == "ARG":
            name, _, value = rest.partition("=")
            stage.variables[name] = self.arguments.get(name, "".join(shlex.split(value)))
        elif instruction == "ENV":
            stage.environment |= dict(word.split("=", 1) for word in shlex.split(stage.filled(rest)))
        elif instruction == "WORKDIR":
            stage.directory = rest
        elif instruction == "COPY":
            self._copy(root, rest)
        elif instruction == "RUN":
            self.run(stage, root, rest)
        else:
            assert instruction in DESCRIBED, f"a step that is not understood: {instruction} {rest}"
            stage.said[instruction] = rest

    def run(self, stage: Stage, root: Path, command: str) -> None:
        environment = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        environment |= {
            name: value for name, value in os.environ.items() if name in ("PIP_INDEX_URL", "PIP_TRUSTED_HOST")
        }
        if (root / "etc/registries.crt").exists():
            environment["PIP_CERT"] = "/etc/registries.crt"
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        inside = ["/bin/sh", "-c", f"cd {stage.directory} && {command}"]
        done = subprocess.run(
            ["unshare", "--mount", "/bin/sh", "-c", ENTER, stage.said.get("USER", "0:0"), str(root), *inside],
            env={"PATH": path, "HOME": "/root", **environment, **stage.environment, **stage.variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"RUN {command}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"

    def _copy(self, root: Path, rest: str) -> None:
        words = rest.split()
        origin = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else ""
        source, target = words
        if origin:
            into = root / target.lstrip("/")
            into.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(
                ["cp", "-a", str(self._building[origin].result() / source.lstrip("/")), str(into)], check=True
            )
            return
        assert source == ".", "only the whole context is copied"
        for file in context(self.context):
            copy = root / target.lstrip("/") / file.relative_to(self.context)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)


def prepare_own(source: Path, place: Path, package: str) -> None:
    """Copy the files of a backend of one's own, and make its wheel and hashes there with the commands of the guide."""
    shutil.copytree(source, place)
    commands = re.findall(r"^```sh\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)[0]
    words = ["sh", "-euc", commands.replace("csi-multi-mine", package)]
    subprocess.run(words, cwd=place, env={**os.environ, "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}, check=True)


def context(directory: Path) -> Iterator[Path]:
    """Yield the files that a build sees: everything is left out but what .dockerignore takes back in."""
    lines = (directory / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    taken = [directory / rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    found = {file for one in taken for file in (one.rglob("*") if one.is_dir() else [one]) if file.is_file()}
    yield from (file for file in sorted(found) if seen(file.relative_to(directory), rules))


def seen(file: Path, rules: list[str]) -> bool:
    """Whether a build sees a file: the last rule decides that fits it or a directory above it."""
    answer = True
    for rule in rules:
        pattern = rule.removeprefix("!").replace("**/", "*/")
        if any(
            fnmatch.fnmatchcase(f"/{part}", f"/{pattern}") or fnmatch.fnmatchcase(f"/{part}", pattern)
            for part in (file, *file.parents[:-1])
        ):
            answer = rule.startswith("!")
    return answer
