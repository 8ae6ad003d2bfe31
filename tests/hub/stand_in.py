"""A Hugging Face hub on 127.0.0.1 that serves folders, as far as loading models and data sets by name goes.

It answers what huggingface_hub, transformers and datasets ask for: metadata of files (HEAD), files (GET), repositories
and folders. Reach it through `HF_ENDPOINT`, which those libraries read when they are imported: in a new process.
"""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


class StandInHub(ThreadingHTTPServer):
    """A running hub, for `with`; `folders` has the folder of each repository and revision."""

    daemon_threads = True

    def __init__(self, folders: dict[tuple[str, str], Path]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.folders = folders
        self.is_closed, self.ended = False, 0  # whether connections are ended at once, and how many were
        self.downloads: list[str] = []  # the names of the files that were sent
        # shutdown() waits as long as the pause between two looks at the stop flag
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        self.ended += self.is_closed
        return not self.is_closed

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: StandInHub
    protocol_version = "HTTP/1.1"  # keeps connections open, as the clients expect
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body in one packet

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        is_api, address = path.startswith("/api/"), path.removeprefix("/api/").lstrip("/")
        address = address if address.startswith(("models/", "datasets/")) else f"models/{address}"
        parts = address.split("/", 5)
        repository, action, revision, inner = ("/".join(parts[:3]), *[*parts[3:], "", "", ""][:3])
        if all(repository != known for known, _ in self.server.folders):
            return self._error(401, "RepoNotFound")  # without a token, one must not learn whether it exists
        revisions = {name: folder for (known, name), folder in self.server.folders.items() if known == repository}
        revisions |= {_sha(folder): folder for folder in revisions.values()}
        if (folder := revisions.get(revision or "main")) is None:
            return self._error(404, "RevisionNotFound")
        if not is_api:
            return self._send_file(folder, inner)
        if action == "tree":
            is_recursive = "recursive=true" in self.path.lower()
            found = sorted((folder / inner).rglob("*") if is_recursive else (folder / inner).glob("*"))
            if found:
                return self._send_json([_entry(folder, path) for path in found])
            return self._error(404, "EntryNotFound")
        files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        siblings = [{"rfilename": name} for name in files]
        name = repository.partition("/")[2]
        return self._send_json({"id": name, "sha": _sha(folder), "private": False, "tags": [], "siblings": siblings})

    do_HEAD = do_GET

    def _send_file(self, folder: Path, name: str) -> None:
        commit = {"X-Repo-Commit": _sha(folder)}
        if not (folder / name).is_file():
            return self._error(404, "EntryNotFound", **commit)
        if self.command == "GET":
            self.server.downloads.append(Path(name).name)
        data = (folder / name).read_bytes()
        return self._send(200, data, ETag=f'"{hashlib.sha1(data).hexdigest()}"', **commit)

    def _send_json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), **{"Content-Type": "application/json"})

    def _error(self, status: int, code: str, **headers: str) -> None:
        """The code decides which exception the client raises (huggingface_hub.utils.hf_raise_for_status)."""
        self._send(status, b"{}", **{"X-Error-Code": code, "X-Error-Message": code, **headers})

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Keeps the test's stderr clean."""


def _sha(folder: Path) -> str:
    return hashlib.sha1(str(folder).encode()).hexdigest()


def _entry(folder: Path, path: Path) -> dict[str, Any]:
    name = path.relative_to(folder).as_posix()
    kind, data = ("file", path.read_bytes()) if path.is_file() else ("directory", name.encode())
    return {"type": kind, "oid": hashlib.sha1(data).hexdigest(), "size": len(data), "path": name}
