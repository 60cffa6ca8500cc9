"""For authors of backends: the contract as checks, fault injection, a backend in memory, an orchestrator that retries.

docs/writing-a-backend.md shows how to use it. `Storage` is what an author fills in; `Disk` is
a filesystem of its own for backends that keep files, `StorageServer` a process that serves the storage.
"""

from .disk import Disk
from .fault_injection import Call
from .storage import Storage, setting
from .storage_server import StorageServer

__all__ = ["Call", "Disk", "Storage", "StorageServer", "setting"]
