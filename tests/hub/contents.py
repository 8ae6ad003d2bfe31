"""The contents of a stand-in hub: files by commit, and the names (`main`, `v1`) that point at commits."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

# The hub keeps files of these kinds in its blob storage (git LFS) and answers for them with a redirect to another
# host, so weights and tables take another path through the client than text files do.
STORED_APART = (".bin", ".parquet", ".safetensors")


@dataclass(frozen=True)
class Blob:
    """The content of one file. `path` is relative to the repository, with forward slashes."""

    path: str
    data: bytes

    @property
    def stored_apart(self) -> bool:
        return self.path.endswith(STORED_APART)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def oid(self) -> str:
        """The id that git gives this content."""
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()

    @property
    def etag(self) -> str:
        """The name of the file in the cache of the client."""
        return self.sha256 if self.stored_apart else self.oid

    def describe(self) -> dict[str, Any]:
        """The file's entry in answers of `/tree` and `/paths-info`."""
        entry: dict[str, Any] = {"type": "file", "oid": self.oid, "size": len(self.data), "path": self.path}
        if self.stored_apart:
            entry["lfs"] = {"oid": self.sha256, "size": len(self.data), "pointerSize": 134}
        return entry


@dataclass(frozen=True)
class Commit:
    sha: str
    blobs: dict[str, Blob]

    @classmethod
    def of_folder(cls, folder: Path) -> Commit:
        """Every file below `folder`. The same content always gives the same sha (40 hexadecimal digits)."""
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        if not names:
            raise ValueError(f"{folder} holds no files to serve")
        blobs = {name: Blob(name, (folder / name).read_bytes()) for name in names}
        listing = "".join(f"{blob.oid} {name}\n" for name, blob in blobs.items())
        return cls(hashlib.sha1(listing.encode()).hexdigest(), blobs)

    def entries(self, below: str = "", recursive: bool = False) -> list[dict[str, Any]] | None:
        """Files and folders in the folder `below` ("" is the root), or None when there is no such folder."""
        prefix = f"{below}/" if below else ""
        found: dict[str, dict[str, Any]] = {}
        for name, blob in self.blobs.items():
            if not name.startswith(prefix):
                continue
            inner = name[len(prefix) :].split("/")
            for depth in range(1, len(inner)):
                if depth == 1 or recursive:
                    folder = prefix + "/".join(inner[:depth])
                    found[folder] = self._describe_folder(folder)
            if len(inner) == 1 or recursive:
                found[name] = blob.describe()
        return list(found.values()) if found else None

    def entry(self, path: str) -> dict[str, Any] | None:
        """The file or folder at `path`, or None."""
        if path in self.blobs:
            return self.blobs[path].describe()
        return self._describe_folder(path) if self.entries(path) else None

    def _describe_folder(self, path: str) -> dict[str, Any]:
        oid = hashlib.sha1(f"{self.sha}/{path}".encode()).hexdigest()
        return {"type": "directory", "oid": oid, "size": 0, "path": path}


@dataclass
class Repository:
    """`kind` is the plural the hub's addresses use: "models" or "datasets"."""

    kind: str
    repo_id: str
    commits: dict[str, Commit] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def add(self, folder: Path, revision: str) -> str:
        """Make `revision` point at what `folder` holds now. Earlier commits stay reachable by their sha."""
        commit = Commit.of_folder(folder)
        self.commits[commit.sha] = commit
        self.names[revision] = commit.sha
        return commit.sha

    def at(self, revision: str) -> Commit | None:
        return self.commits.get(self.names.get(revision, revision))
