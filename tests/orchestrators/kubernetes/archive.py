"""An image as an archive that containerd imports: a root directory becomes its one layer."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TYPE = "application/vnd.oci.image"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A root directory and what is started in it. `names`: with registry and tag, as pods ask for it."""

    names: tuple[str, ...]
    root: Path
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    user: str = ""
    environment: tuple[str, ...] = ()

    def write(self, archive: Path) -> None:
        """Write the archive. It is there as a whole or not at all."""
        layer, draft = archive.with_suffix(".layer"), archive.with_suffix(".new")
        archive.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._write_layer(layer)
            with tarfile.open(draft, "w") as tar:
                self._write_index(tar, layer)
            draft.replace(archive)
        finally:
            layer.unlink(missing_ok=True)
            draft.unlink(missing_ok=True)

    def _write_layer(self, layer: Path) -> None:
        left_out = [f"--exclude=./{name}/*" for name in ("proc", "sys", "dev", "run", "tmp")]
        ids = ["--numeric-owner", "--sort=name", "--mtime=@1767225600"]
        subprocess.run(["tar", *ids, *left_out, "-C", str(self.root), "-cf", str(layer), "."], check=True)

    def _write_index(self, tar: tarfile.TarFile, layer: Path) -> None:
        with layer.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        tar.add(layer, f"blobs/sha256/{digest}")
        content = {"mediaType": f"{TYPE}.layer.v1.tar", "digest": f"sha256:{digest}", "size": layer.stat().st_size}
        config = self._config(content["digest"])
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{TYPE}.manifest.v1+json",
            "config": {"mediaType": f"{TYPE}.config.v1+json", **_blob(tar, config)},
            "layers": [content],
        }
        found = {"mediaType": manifest["mediaType"], **_blob(tar, manifest)}
        found["platform"] = {"architecture": "amd64", "os": "linux"}
        named = [{**found, "annotations": {"io.containerd.image.name": name}} for name in self.names]
        _add(tar, "index.json", {"schemaVersion": 2, "manifests": named})
        _add(tar, "oci-layout", {"imageLayoutVersion": "1.0.0"})

    def _config(self, layer: Any) -> dict[str, Any]:
        run = {
            "Env": [PATH, *self.environment],
            "Entrypoint": list(self.entrypoint),
            "Cmd": list(self.command),
            "User": self.user,
            "WorkingDir": "/",
        }
        return {
            "architecture": "amd64",
            "os": "linux",
            "config": run,
            "rootfs": {"type": "layers", "diff_ids": [layer]},
        }


def _blob(tar: tarfile.TarFile, value: Any) -> dict[str, Any]:
    data = json.dumps(value).encode()
    digest = hashlib.sha256(data).hexdigest()
    _add(tar, f"blobs/sha256/{digest}", value)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def _add(tar: tarfile.TarFile, path: str, value: Any) -> None:
    data = json.dumps(value).encode()
    member = tarfile.TarInfo(path)
    member.size, member.mode = len(data), 0o644
    tar.addfile(member, io.BytesIO(data))
