"""The answers of the server, without a client library."""

from __future__ import annotations

import hashlib
import http.client
import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from .server import StandInHub

RESOLVE = "/someone/model/resolve"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "repo" / "deep" / "er").mkdir(parents=True)
    (tmp_path / "repo" / "config.json").write_text("{}")
    (tmp_path / "repo" / "deep" / "er" / "notes.txt").write_text("notes")
    (tmp_path / "repo" / "model.safetensors").write_bytes(bytes(range(100)))
    return tmp_path / "repo"


@pytest.fixture
def small_hub(folder: Path):
    with StandInHub() as hub:
        hub.add_model("someone/model", folder)
        yield hub


def ask(url: str, method: str = "GET", body: str | None = None, **headers: str):
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=10)
    try:
        connection.request(method, f"{parts.path}?{parts.query}", body=body, headers=headers)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def test_a_text_file_has_gits_own_id_as_its_etag(small_hub: StandInHub) -> None:
    response, body = ask(f"{small_hub.endpoint}{RESOLVE}/main/config.json")
    assert (response.status, body) == (200, b"{}")
    assert response.headers["ETag"] == '"9e26dfeeb6e641a33dae4961196235bdb965b21b"'  # git hash-object
    assert len(response.headers["X-Repo-Commit"]) == 40


def test_a_head_request_gives_the_length_and_no_body(small_hub: StandInHub) -> None:
    response, body = ask(f"{small_hub.endpoint}{RESOLVE}/main/config.json", "HEAD")
    assert (response.headers["Content-Length"], body) == ("2", b"")


def test_weights_are_redirected_to_another_origin_that_has_them(small_hub: StandInHub) -> None:
    response, _ = ask(f"{small_hub.endpoint}{RESOLVE}/main/model.safetensors", "HEAD")
    assert response.status == 302
    assert response.headers["X-Linked-Size"] == "100"
    assert response.headers["X-Linked-ETag"] == f'"{hashlib.sha256(bytes(range(100))).hexdigest()}"'
    location = response.headers["Location"]
    assert urlsplit(location).netloc != urlsplit(small_hub.endpoint).netloc
    assert ask(location)[1] == bytes(range(100))


@pytest.mark.parametrize(
    ("wanted", "status", "body"),
    [
        ("bytes=90-", 206, bytes(range(90, 100))),
        ("bytes=3-5", 206, bytes([3, 4, 5])),
        ("bytes=98-200", 206, bytes([98, 99])),
        ("bytes=100-", 416, b""),
    ],
)
def test_a_range_is_cut_out(small_hub: StandInHub, wanted: str, status: int, body: bytes) -> None:
    response, _ = ask(f"{small_hub.endpoint}{RESOLVE}/main/model.safetensors", "HEAD")
    response, received = ask(response.headers["Location"], Range=wanted)
    assert (response.status, received) == (status, body)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/someone/else/resolve/main/config.json", 401, "RepoNotFound"),
        ("/api/models/someone/else", 401, "RepoNotFound"),
        ("/api/datasets/someone/model", 401, "RepoNotFound"),
        (f"{RESOLVE}/v9/config.json", 404, "RevisionNotFound"),
        ("/api/models/someone/model/revision/v9", 404, "RevisionNotFound"),
        (f"{RESOLVE}/main/nothing.json", 404, "EntryNotFound"),
        ("/api/models/someone/model/tree/main/nothing", 404, "EntryNotFound"),
        ("/api/agent-harnesses", 404, None),
    ],
)
def test_what_is_missing_has_the_hubs_own_code(
    small_hub: StandInHub, path: str, status: int, code: str | None
) -> None:
    response, _ = ask(f"{small_hub.endpoint}{path}")
    assert (response.status, response.headers["X-Error-Code"]) == (status, code)


def test_a_missing_file_still_names_the_commit_so_that_clients_can_remember_it(small_hub: StandInHub) -> None:
    response, _ = ask(f"{small_hub.endpoint}{RESOLVE}/main/nothing.json", "HEAD")
    assert len(response.headers["X-Repo-Commit"]) == 40


def test_a_listing_shows_one_level_or_all(small_hub: StandInHub) -> None:
    tree = f"{small_hub.endpoint}/api/models/someone/model/tree/main"

    def listed(url: str) -> dict[str, str]:
        return {entry["path"]: entry["type"] for entry in json.loads(ask(url)[1])}

    assert listed(tree) == {"config.json": "file", "deep": "directory", "model.safetensors": "file"}
    assert listed(f"{tree}/deep") == {"deep/er": "directory"}
    assert listed(f"{tree}/deep?recursive=True") == {"deep/er": "directory", "deep/er/notes.txt": "file"}


def test_paths_info_leaves_out_what_is_not_there(small_hub: StandInHub) -> None:
    _, body = ask(
        f"{small_hub.endpoint}/api/models/someone/model/paths-info/main",
        "POST",
        "paths=config.json&paths=deep&paths=nothing&expand=False",
    )
    assert [(entry["path"], entry["type"]) for entry in json.loads(body)] == [
        ("config.json", "file"),
        ("deep", "directory"),
    ]


def test_the_same_content_has_the_same_commit(small_hub: StandInHub, folder: Path) -> None:
    first = small_hub.add_model("someone/model", folder)
    assert small_hub.add_model("someone/model", folder, revision="v1") == first


def test_a_new_commit_moves_the_branch_and_keeps_the_old_commit(small_hub: StandInHub, folder: Path) -> None:
    first, _ = ask(f"{small_hub.endpoint}{RESOLVE}/main/config.json")
    (folder / "config.json").write_text('{"a": 1}')
    sha = small_hub.add_model("someone/model", folder)
    assert sha != first.headers["X-Repo-Commit"]
    assert ask(f"{small_hub.endpoint}{RESOLVE}/main/config.json")[1] == b'{"a": 1}'
    assert ask(f"{small_hub.endpoint}{RESOLVE}/{first.headers['X-Repo-Commit']}/config.json")[1] == b"{}"


def test_a_tag_with_a_slash_in_its_name_is_found(small_hub: StandInHub, folder: Path) -> None:
    small_hub.add_model("someone/model", folder, revision="refs/pr/1")
    assert ask(f"{small_hub.endpoint}{RESOLVE}/refs%2Fpr%2F1/config.json")[1] == b"{}"


def test_a_failure_strikes_as_often_as_asked_and_only_where_asked(small_hub: StandInHub) -> None:
    small_hub.fail_with(503, times=2, path_contains="config", method="GET")
    config, notes = f"{small_hub.endpoint}{RESOLVE}/main/config.json", f"{RESOLVE}/main/deep/er/notes.txt"
    assert ask(config, "HEAD")[0].status == 200
    assert ask(f"{small_hub.endpoint}{notes}")[0].status == 200
    assert [ask(config)[0].status for _ in range(3)] == [503, 503, 200]
    assert [request.status for request in small_hub.requests] == [200, 200, 503, 503, 200]
    assert small_hub.downloads() == ["notes.txt", "config.json"]


def test_recovering_ends_a_failure_without_end(small_hub: StandInHub) -> None:
    small_hub.fail_with(500)
    config = f"{small_hub.endpoint}{RESOLVE}/main/config.json"
    assert ask(config)[0].status == 500
    small_hub.recover()
    assert ask(config)[0].status == 200


def test_a_stopped_hub_refuses_connections(small_hub: StandInHub, folder: Path) -> None:
    with StandInHub() as other:
        other.add_model("someone/model", folder)
    with pytest.raises(ConnectionRefusedError):
        ask(f"{other.endpoint}{RESOLVE}/main/config.json")
