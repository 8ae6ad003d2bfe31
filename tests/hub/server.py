"""A Hugging Face hub on 127.0.0.1, as far as loading models and data sets by name goes.

`StandInHub` answers what huggingface_hub, transformers and datasets ask for: file metadata (HEAD), files (GET),
repository information, folder listings, and the hub's own error codes. Reach it through `HF_ENDPOINT`,
which those libraries read when they are imported: in a new process. It knows no users, tokens, uploads or Xet.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

from .contents import Blob, Commit, Repository

BLOBS = "/blobs/"  # only the second server, which plays the content delivery network, has addresses like these
_TRUE = ("true", "True", "1")


class Request(NamedTuple):
    """One request as the server saw it: `path` is unquoted and has no query string."""

    method: str
    path: str
    status: int


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_json(cls, value: Any) -> Reply:
        return cls(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    @classmethod
    def error(cls, status: int, code: str, message: str, **headers: str) -> Reply:
        """`code` decides which exception the client raises (huggingface_hub.utils.hf_raise_for_status)."""
        body = json.dumps({"error": message}).encode()
        known = {"X-Error-Code": code} if code else {}
        return cls(status, body, {"Content-Type": "application/json", "X-Error-Message": message, **known, **headers})


class Failure(NamedTuple):
    """The status for requests whose path contains a text, and whose method is this one if it is not None."""

    status: int
    path_contains: str
    method: str | None


class StandInHub:
    """A running hub; use it as a context manager, or call `stop()`.

    ```python
    with StandInHub() as hub:
        hub.add("models", "google-bert/bert-base-cased", folder)
        subprocess.run(command, env={**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HOME": cache})
    ```
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._repositories: dict[tuple[str, str], Repository] = {}
        self._failures: list[Failure] = []
        self._lock = threading.Lock()
        # Two servers, because a redirect to another origin (the port is part of it) is what the client gets for big
        # files: it then reads their size and ETag from the redirect itself instead of following it.
        self._servers = [_serve(self), _serve(self)]
        self.endpoint, self._storage = (f"http://127.0.0.1:{server.server_port}" for server in self._servers)

    def __enter__(self) -> StandInHub:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop answering: from here on clients get "connection refused"."""
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def add(self, kind: str, repo_id: str, folder: Path, revision: str = "main") -> None:
        """Serves `folder` as `repo_id` at `revision` (a branch or tag name); `kind` is "models" or "datasets"."""
        repository = self._repositories.setdefault((kind, repo_id), Repository(kind, repo_id))
        repository.add(Path(folder), revision)

    def fail_with(self, status: int, path_contains: str, method: str | None = None) -> None:
        """Answers with `status` until `recover()`.

        Args:
            path_contains: only requests whose path contains this, "model.safetensors" for instance. Blobs keep the
                name of their file in their address, so a name covers the metadata, the file and the redirect's target.
            method: only this HTTP method.
        """
        self._failures.append(Failure(status, path_contains, method))

    def recover(self) -> None:
        """Takes back every `fail_with`."""
        self._failures.clear()

    def downloads(self) -> list[str]:
        """The names of the files whose content was handed out, in the order of the requests."""
        return [
            request.path.rpartition("/")[2]
            for request in self.requests
            if request.method == "GET" and request.status == 200 and not request.path.startswith("/api/")
        ]

    def answer(self, method: str, target: str, form: str = "") -> Reply:
        """The reply to one request. `target` is the quoted path and query, `form` the body of a POST."""
        path, query = urlsplit(target).path, urlsplit(target).query
        with self._lock:
            failing = (f for f in self._failures if f.path_contains in unquote(path) and f.method in (None, method))
            failure = next(failing, None)
            if failure is not None:
                reply = Reply.error(failure.status, "", "Failure asked for by a test")
            else:
                reply = self._route(path, parse_qs(query), parse_qs(form))
            self.requests.append(Request(method, unquote(path), reply.status))
        return reply

    def _route(self, path: str, query: dict[str, list[str]], form: dict[str, list[str]]) -> Reply:
        if path.startswith(BLOBS):
            return self._blob(path.split("/")[2])
        is_api = path.startswith("/api/")
        address = path[len("/api/") :] if is_api else path.lstrip("/")
        if not address.startswith(("models/", "datasets/")):
            if is_api:
                return Reply.error(404, "", f"This stand-in does not answer {path}")
            address = f"models/{address}"  # a model's files have no prefix
        found = self._find(address)
        if found is None:
            # What the hub says to someone without a token, who must not learn whether a private repository exists.
            return Reply.error(401, "RepoNotFound", "Invalid username or password.")
        repository, rest = found
        action, _, rest = rest.partition("/")
        quoted_revision, _, quoted_path = rest.partition("/")
        revision = unquote(quoted_revision) or "main"
        commit = repository.at(revision)
        if commit is None:
            return Reply.error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        inner = unquote(quoted_path)
        if is_api:
            return self._api(repository, commit, action, inner, query, form)
        if action == "resolve":
            return self._file(commit, inner)
        return Reply.error(404, "", f"This stand-in has no pages, asked for {path}")

    def _find(self, address: str) -> tuple[Repository, str] | None:
        for (kind, repo_id), repository in self._repositories.items():
            prefix = f"{kind}/{repo_id}"
            if address == prefix or address.startswith(f"{prefix}/"):
                return repository, address[len(prefix) + 1 :]
        return None

    def _api(
        self,
        repository: Repository,
        commit: Commit,
        action: str,
        path: str,
        query: dict[str, list[str]],
        form: dict[str, list[str]],
    ) -> Reply:
        if action in ("", "revision"):
            return Reply.of_json(_describe(repository, commit))
        if action == "tree":
            entries = commit.entries(path, recursive=query.get("recursive", [""])[0] in _TRUE)
            if entries is None:
                return Reply.error(404, "EntryNotFound", f"{path} does not exist", **{"X-Repo-Commit": commit.sha})
            return Reply.of_json(entries)
        if action == "paths-info":
            return Reply.of_json([entry for path in form.get("paths", []) if (entry := commit.entry(path))])
        return Reply.error(404, "", f"This stand-in does not answer {action}")

    def _file(self, commit: Commit, path: str) -> Reply:
        blob = commit.blobs.get(path)
        headers = {"X-Repo-Commit": commit.sha}
        if blob is None:
            return Reply.error(404, "EntryNotFound", "Entry not found", **headers)
        headers["ETag"] = f'"{blob.etag}"'
        if not blob.stored_apart:
            return Reply(200, blob.data, headers)
        headers["X-Linked-Size"] = str(len(blob.data))
        headers["X-Linked-ETag"] = f'"{blob.etag}"'
        name = path.rpartition("/")[2]
        headers["Location"] = f"{self._storage}{BLOBS}{blob.sha256}/{quote(name)}"
        return Reply(302, b"", headers)

    def _blob(self, sha256: str) -> Reply:
        for blob in self._blobs():
            if blob.sha256 == sha256:
                return Reply(200, blob.data, {"ETag": f'"{sha256}"'})
        return Reply.error(404, "", "No such blob")

    def _blobs(self) -> list[Blob]:
        commits = [commit for repository in self._repositories.values() for commit in repository.commits.values()]
        return [blob for commit in commits for blob in commit.blobs.values()]


def _describe(repository: Repository, commit: Commit) -> dict[str, Any]:
    return {
        "_id": "0" * 24,
        "id": repository.repo_id,
        "author": repository.repo_id.partition("/")[0],
        "sha": commit.sha,
        "private": False,
        "gated": False,
        "disabled": False,
        "tags": [],
        "downloads": 0,
        "likes": 0,
        "createdAt": "2024-01-01T00:00:00.000Z",
        "lastModified": "2024-01-01T00:00:00.000Z",
        "siblings": [{"rfilename": name} for name in commit.blobs],
    }


def _serve(hub: StandInHub) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # keeps connections open, as the clients expect
        disable_nagle_algorithm = True
        wbufsize = -1  # headers and body in one packet

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            form = self.rfile.read(length).decode()
            reply = hub.answer(self.command, self.path, form)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)

        do_HEAD = do_GET
        do_POST = do_GET

        def log_message(self, *args: object) -> None:
            """Keep the test's stderr clean: the requests are in `StandInHub.requests`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    # The pause between looks at the stop flag is what stop() waits for: 0.5 s by default.
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    return server
