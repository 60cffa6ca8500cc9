"""`csi-multi new-backend`: writes a backend in a package of its own, as a start for an author.

What it writes is an example of this project under another name. In a checkout skeletons/ has links to the examples, in
a wheel their files, so that each text is written, tested and released once.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import entry_points
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from csi_multi.config.document import ConfigError
from csi_multi.contract import GROUP

SKELETONS = {"local": "ramdisk", "network": "filer"}  # directory below skeletons/: the kind in it
ROOT_FILES = (
    *("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", ".gitignore"),
    *("Containerfile", ".dockerignore", "values.yaml"),
)
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
LONGEST = 20  # characters of a name: lines with it still fit
NEXT = """\
wrote {count} files to {directory}: a backend of kind {kind!r} that works, with its tests
next, in that directory and in an environment of its own:
  pip install --editable '.[test]'
  csi-multi backends
  python -m pytest        # as root, because the devices are loop devices"""


@dataclass(frozen=True, slots=True)
class BackendNames:
    """The names of one backend, which all follow from its kind."""

    kind: str

    @property
    def distribution(self) -> str:
        return f"csi-multi-{self.kind}"

    @property
    def package(self) -> str:
        return f"csi_multi_{self.kind.replace('-', '_')}"

    @property
    def class_name(self) -> str:
        return "".join(part.capitalize() for part in self.kind.split("-")) + "Backend"

    def renamed(self, text: str, to: BackendNames) -> str:
        """Return a text of this backend as one of the other."""
        new = {self.package: to.package, self.class_name: to.class_name, self.kind: to.kind}
        return re.sub("|".join(new), lambda found: new[found[0]], text)


def new_backend(options: Namespace) -> int:
    """Write the package, and print what to do next. Raises ConfigError when nothing was written."""
    names = BackendNames(options.name)
    refuse_name(names)
    directory: Path = options.dir or Path(names.distribution)
    refuse_directory(directory)
    files = dict(package_files(options.skeleton, names))
    try:
        write_package(directory, files)
    except OSError as error:
        raise ConfigError(f"new-backend: cannot write {directory}: {error.strerror or error}") from None
    print(NEXT.format(count=len(files), directory=directory, kind=names.kind))
    return 0


def write_package(directory: Path, files: Mapping[str, str]) -> None:
    """Write all files or none: in a temporary directory first, on the same filesystem. Raises OSError."""
    exists = directory.is_dir()
    beside = directory if exists else directory.parent
    beside.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".new-backend-", dir=beside) as temporary:
        package = Path(temporary, "package")
        for path, text in files.items():
            file = package / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        if not exists:
            package.rename(directory)
            return
        for entry in sorted(package.iterdir()):  # the directory may be where the user is: it is not replaced
            entry.rename(directory / entry.name)


def refuse_name(names: BackendNames) -> None:
    """Raise ConfigError for a name that cannot be one, or that is taken on this machine."""
    if not NAME.fullmatch(names.kind) or len(names.kind) > LONGEST:
        raise ConfigError(
            f"new-backend: {names.kind!r} cannot be the name of a backend; use at most {LONGEST} of a-z, 0-9 and '-', "
            "with a letter first and '-' only inside, for example 'my-filer'"
        )
    for point in entry_points(group=GROUP, name=names.kind):
        owner = f"package {point.dist.name}" if point.dist else point.value
        raise ConfigError(f"new-backend: kind {names.kind!r} is taken by {owner}, which is installed; use another name")
    if find_spec(names.package):
        raise ConfigError(f"new-backend: a package {names.package} is installed already; use another name")


def refuse_directory(directory: Path) -> None:
    """Raise ConfigError unless the directory is empty or does not exist."""
    try:
        used = any(directory.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"new-backend: {directory} cannot be used: {error.strerror}; name another by --dir") from None
    if used:
        raise ConfigError(f"new-backend: directory {directory} is not empty; name another by --dir")


def package_files(skeleton: str, names: BackendNames) -> Iterator[tuple[str, str]]:
    """Yield the path below the new package's directory, and the text, of every file."""
    old = BackendNames(SKELETONS[skeleton])
    source = resources.files("csi_multi_testing") / "skeletons" / skeleton
    files = [(name, source / name) for name in ROOT_FILES]
    for name in (".github", old.package, "tests"):
        files += _below(name, source / name)
    for path, file in files:
        yield old.renamed(path, names), old.renamed(file.read_text(encoding="utf-8"), names)


def _below(path: str, directory: Traversable) -> Iterator[tuple[str, Traversable]]:
    """Yield the files below a directory, without what tools leave in a checkout."""
    for entry in sorted(directory.iterdir(), key=lambda one: one.name):
        if entry.name.startswith((".", "__pycache__")):
            continue
        if entry.is_file():
            yield f"{path}/{entry.name}", entry
        else:
            yield from _below(f"{path}/{entry.name}", entry)
