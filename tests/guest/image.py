"""What a guest boots: a stock Debian kernel, downloaded but never installed, and for QEMU a small initramfs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
CACHE = PROJECT / ".tools" / "guest"
WORK_SIZE = 8 << 30  # bytes; the file is sparse
META_PACKAGE = "linux-image-amd64"  # depends on the package that has the newest kernel of the distribution
USER_MODE = "user-mode-linux"  # has the kernel that is a program
BOOT_MODULES = ("virtio_pci", "virtio_console", "virtio_blk", "9pnet_virtio", "9p", "ext4")  # what init.sh mounts


class ImageError(Exception):
    """The guest cannot be prepared; the text says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel package, unpacked."""

    root: Path  # has lib/modules
    version: str
    image: Path

    @property
    def modprobe(self) -> tuple[str, ...]:
        """The options that let modprobe find this kernel's modules."""
        return ("-d", str(self.root), "-S", self.version)


def kernel() -> Kernel:
    """Return the kernel for QEMU from the cache; if there is none, download it and install missing programs."""
    root = _root("kernel", _newest)
    image = next(root.glob("boot/vmlinuz-*"), None)
    if image is None:
        raise ImageError(f"no boot/vmlinuz-* in {root}; remove that directory to download it again")
    return Kernel(root=root, version=image.name.removeprefix("vmlinuz-"), image=image)


def user_mode_kernel() -> Kernel:
    """Return the kernel that is a program, as kernel() does."""
    root = _root("uml", _user_mode_package)
    image = root / "usr/bin/linux.uml"
    modules = next(root.glob("lib/modules/*"), None)
    if modules is None or not image.exists():
        raise ImageError(f"no usr/bin/linux.uml or lib/modules/* in {root}; remove that directory to download it again")
    return Kernel(root=root, version=modules.name, image=image)


def _root(name: str, package: Callable[[], str]) -> Path:
    """Return the directory of an unpacked kernel package."""
    if os.geteuid() != 0:
        raise ImageError("needs root: the guest uses this machine's files as root")
    print(_call(str(PROJECT / "scripts" / "guest-packages")), end="", file=sys.stderr)
    root = CACHE / name
    if not root.is_dir():
        if shutil.which("apt-get") is None:
            raise ImageError(f"no apt-get here; unpack a kernel with its modules and modules.dep in {root}")
        _download(root, package())
    return root


def initramfs(kernel: Kernel, modules: Iterable[str], file: Path) -> None:
    """Write an initramfs that loads these modules, mounts the machine's files and switches to them."""
    busybox = shutil.which("busybox") or "busybox"
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        for name in ("bin", "dev", "machine", "modules", "work"):
            (tree / name).mkdir()
        shutil.copy2(busybox, tree / "bin" / "busybox")
        shutil.copy2(Path(__file__).with_name("init.sh"), tree / "init")
        (tree / "init").chmod(0o755)
        for number, module in enumerate(module_files(kernel, (*BOOT_MODULES, *modules))):
            shutil.copy2(module, tree / "modules" / f"{number:02}-{module.name}")
        names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
        _call("cpio", "--create", "--format=newc", "--quiet", f"--file={file}", stdin=names, directory=tree)


def work_disk(file: Path) -> None:
    """Write a sparse disk for temporary files: loop devices with direct I/O refuse a file on tmpfs or 9p."""
    with file.open("wb") as disk:
        disk.truncate(WORK_SIZE)
    _call("mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard", str(file))


def module_files(kernel: Kernel, modules: Iterable[str]) -> list[Path]:
    """Return the files of these modules and of what they need, in the order in which they load."""
    files: dict[Path, None] = {}
    for module in modules:
        for line in _call("modprobe", *kernel.modprobe, "--show-depends", module).splitlines():
            word, _, rest = line.partition(" ")
            if word == "insmod":
                files[Path(rest.split()[0])] = None
    return list(files)


def _download(root: Path, package: str) -> None:
    """Unpack the kernel package at root, all of it or nothing, so that two downloads at once are safe."""
    print(f"guest: downloading {package} into {CACHE}, not installing it", file=sys.stderr)
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, ignore_cleanup_errors=True) as directory:
        _call("apt-get", "-o", "APT::Sandbox::User=root", "download", "-q", package, directory=Path(directory))
        archive = next(Path(directory).glob("*.deb"))
        unpacked = Path(directory) / "unpacked"
        _call("dpkg-deb", "-x", str(archive), str(unpacked))
        if not (unpacked / "lib").exists():  # where user-mode-linux does not have them
            (unpacked / "lib").mkdir()
            (unpacked / "usr/lib/uml/modules").rename(unpacked / "lib/modules")
        for modules in unpacked.glob("lib/modules/*"):
            _call("depmod", "-b", str(unpacked), modules.name)
        try:
            unpacked.rename(root)
        except OSError:
            if not root.is_dir():  # otherwise another process has put it there
                raise


def _newest() -> str:
    """Return the name of the package that has the distribution's newest kernel."""
    needed = [line.split()[1] for line in _listed("depends", META_PACKAGE) if line.split()[:1] == ["Depends:"]]
    images = [name for name in needed if name.startswith("linux-image-")]
    if not images:
        raise ImageError(f"apt knows no {META_PACKAGE}; is the distribution's main section in the apt sources?")
    return images[0]


def _user_mode_package() -> str:
    if not _listed("show", USER_MODE):
        raise ImageError(f"apt knows no {USER_MODE}; is the distribution's main section in the apt sources?")
    return USER_MODE


def _listed(verb: str, package: str) -> list[str]:
    """Return what apt-cache shows of a package; if that is nothing, update the lists first."""
    command = ("apt-cache", verb, package)
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    if not shown.strip():
        _call("apt-get", "update", "-q")
        shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return [line for line in shown.splitlines() if line.strip()]


def _call(*command: str, stdin: str = "", directory: Path | None = None) -> str:
    """Run a command and return its standard output; its standard error is inherited."""
    environment = {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"}
    try:
        done = subprocess.run(
            command, input=stdin, stdout=subprocess.PIPE, text=True, check=True, cwd=directory, env=environment
        )
    except FileNotFoundError:
        raise ImageError(f"{command[0]} is not installed") from None
    except subprocess.CalledProcessError as error:
        raise ImageError(f"{command[0]} failed with status {error.returncode}") from None
    return done.stdout
