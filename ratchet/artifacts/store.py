"""The artifact store: named bytes that outlive every process, and the cluster."""

from pathlib import Path, PurePosixPath
from typing import Protocol

from ratchet.artifacts.durable import remove, storage_faults, write_atomic
from ratchet.spec.faults import StorageFault


class ArtifactStore(Protocol):
    """Keys are relative POSIX paths (`runs/<run>/checkpoints/1-20/manifest.json`).

    Every method raises StorageFault, naming the path, the cause and the fix.
    """

    def write_atomic(self, key: str, data: bytes | memoryview) -> None:
        """Create or replace; nobody ever sees a part of `data`, and it survives a crash."""
        ...

    def read(self, key: str) -> bytes: ...

    def exists(self, key: str) -> bool: ...

    def list(self, prefix: str) -> list[str]:
        """Names directly below `prefix`, sorted; hidden ones (drafts) left out. Nothing there: []."""
        ...

    def local_folder(self, key: str) -> Path:
        """A folder on this machine for writers and readers that need one. It need not exist yet."""
        ...

    def remove_tree(self, key: str) -> None:
        """Remove everything at and below `key`. Nothing there is no error."""
        ...


class LocalArtifactStore:
    """An ArtifactStore in a folder, which a shared file system makes visible to all machines."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write_atomic(self, key: str, data: bytes | memoryview) -> None:
        path = self._path(key)
        with storage_faults(path, "write"):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data)

    def read(self, key: str) -> bytes:
        path = self._path(key)
        with storage_faults(path, "read"):
            return path.read_bytes()

    def exists(self, key: str) -> bool:
        path = self._path(key)
        with storage_faults(path, "look at"):
            return path.exists()

    def list(self, prefix: str) -> list[str]:
        path = self._path(prefix)
        with storage_faults(path, "list"):
            if not path.exists():
                return []
            return sorted(child.name for child in path.iterdir() if not child.name.startswith("."))

    def local_folder(self, key: str) -> Path:
        return self._path(key)

    def remove_tree(self, key: str) -> None:
        path = self._path(key)
        with storage_faults(path, "remove"):
            remove(path)

    def _path(self, key: str) -> Path:
        parts = PurePosixPath(key).parts
        if not parts or ".." in parts or parts[0] == "/":
            raise StorageFault(f"not an artifact key: {key!r}; a key is a relative path without '..'")
        return self.root.joinpath(*parts)
