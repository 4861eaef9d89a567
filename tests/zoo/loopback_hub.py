"""A Hugging Face Hub on the loopback: what huggingface_hub 2.4 asks for when it sends and fetches model repositories,
and when it sends Spaces.

whoami, create, validate-yaml, preupload, LFS batch and blobs, commit; repository info, tree, resolve. Like the
Hub it answers 401 to a wrong token and hides private repositories, keeps every commit, and takes a commit whole or
not at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlparse

TOKEN, USER = "hf_right", "me"


@dataclass
class Repo:
    """One repository: `commits` maps each commit to all its files."""

    private: bool
    commits: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"0" * 40: {}})
    main: str = "0" * 40
    gated: bool = False
    """Whether its files, not its listing, are kept from everybody: nobody has accepted its terms."""

    @property
    def files(self) -> dict[str, bytes]:
        """Content of the main branch."""
        return self.commits[self.main]


class LoopbackHub(ThreadingHTTPServer):
    """`url` is the endpoint; `break_uploads` makes it hang up in the middle of every blob."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.break_uploads = False
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are part of the tests."""


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: LoopbackHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Silent."""

    def answer(self, status: int, body: Any = None, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body if body is not None else {}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline().strip() or b"0", 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    @property
    def token(self) -> str | None:
        return self.headers.get("Authorization", "").removeprefix("Bearer ") or None

    def repo(self, name: str) -> Repo | None:
        """The repository, or an answer of 401 or 404 and None."""
        if self.token not in (None, TOKEN):
            self.answer(401, {"error": "Invalid credentials"})
            return None
        found = self.server.repos.get(name)
        if found is None or (found.private and self.token is None):
            self.answer(404 if self.token else 401, {"error": "not found"}, X_Error_Code="RepoNotFound")
            return None
        return found

    # Reading ------------------------------------------------------------------------------------------

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlparse(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        if path == "/api/whoami-v2":
            right = self.token == TOKEN
            self.answer(200 if right else 401, {"name": USER, "type": "user"} if right else {"error": "Invalid"})
        elif found := re.fullmatch(r"/api/(?:models/)?((?:spaces/)?[^/]+/[^/]+)/tree/([^/]+)(/.*)?", path):
            self.tree(found[1], found[2])
        elif found := re.fullmatch(r"/api/(?:models/)?((?:spaces/)?[^/]+/[^/]+)(?:/revision/([^/]+))?", path):
            self.info(found[1], found[2] or "main")
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(*found.groups())
        else:
            self.answer(404, {"error": path})

    def commit_of(self, repo: Repo, revision: str) -> str | None:
        commit = repo.main if revision == "main" else revision
        if commit in repo.commits:
            return commit
        self.answer(404, {"error": "no such revision"}, X_Error_Code="RevisionNotFound")
        return None

    def info(self, name: str, revision: str) -> None:
        if (repo := self.repo(name)) and (commit := self.commit_of(repo, revision)):
            siblings = [{"rfilename": file, "size": len(data)} for file, data in repo.commits[commit].items()]
            self.answer(200, {"id": name, "sha": commit, "private": repo.private, "siblings": siblings})

    def tree(self, name: str, revision: str) -> None:
        if (repo := self.repo(name)) and (commit := self.commit_of(repo, revision)):
            files = repo.commits[commit].items()
            self.answer(200, [{"type": "file", "path": path, "size": len(x), "oid": sha1(x)} for path, x in files])

    def resolve(self, name: str, revision: str, file: str) -> None:
        if (repo := self.repo(name)) and (commit := self.commit_of(repo, revision)):
            data = repo.commits[commit].get(file)
            if repo.gated:
                self.answer(403 if self.token else 401, {"error": "restricted"}, X_Error_Code="GatedRepo")
            elif data is None:
                self.answer(404, {"error": file}, X_Error_Code="EntryNotFound")
            else:
                self.answer(200, data, ETag=f'"{sha1(data)}"', X_Repo_Commit=commit)

    # Writing ------------------------------------------------------------------------------------------

    def do_PUT(self) -> None:
        self.server.requests.append(f"PUT {self.path}")
        if self.server.break_uploads:
            self.rfile.read(100)
            self.close_connection = True
            self.connection.close()
            return
        data = self.body()
        assert hashlib.sha256(data).hexdigest() == self.path.rsplit("/", 1)[-1]
        self.server.blobs[self.path.rsplit("/", 1)[-1]] = data
        self.answer(200)

    def do_POST(self) -> None:
        path = unquote(urlparse(self.path).path)
        self.server.requests.append(f"POST {path}")
        body = self.body()
        if path == "/api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
        elif self.token != TOKEN:
            self.answer(401, {"error": "Invalid credentials"})
        elif path == "/api/repos/create":
            self.create(json.loads(body))
        elif found := re.fullmatch(r"/api/(?:models/)?((?:spaces/)?[^/]+/[^/]+)/preupload/main", path):
            self.preupload(found[1], json.loads(body))
        elif found := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            self.batch(json.loads(body))
        elif found := re.fullmatch(r"/api/(?:models/)?((?:spaces/)?[^/]+/[^/]+)/commit/main", path):
            self.commit(found[1], [json.loads(line) for line in body.splitlines() if line])
        else:
            self.answer(404, {"error": path})

    def create(self, wanted: dict[str, Any]) -> None:
        kind = "spaces/" if wanted.get("type") == "space" else ""
        name = f"{kind}{wanted.get('organization') or USER}/{wanted['name']}"
        answer = {"url": f"{self.server.url}/{name}", "id": name}
        if name in self.server.repos:
            self.answer(409, answer | {"error": "You already created this model repo"})
            return
        self.server.repos[name] = Repo(private=wanted.get("visibility") == "private")
        self.answer(200, answer)

    def preupload(self, name: str, wanted: dict[str, Any]) -> None:
        if self.repo(name) is None:
            return
        big = (".safetensors", ".mp4", ".npz")
        self.answer(
            200,
            {
                "files": [
                    {
                        "path": one["path"],
                        "uploadMode": "lfs" if one["path"].endswith(big) else "regular",
                        "shouldIgnore": False,
                    }
                    for one in wanted["files"]
                ]
            },
        )

    def batch(self, wanted: dict[str, Any]) -> None:
        objects = []
        for one in wanted["objects"]:
            action = {"upload": {"href": f"{self.server.url}/blobs/{one['oid']}"}}
            known = one["oid"] in self.server.blobs
            objects.append({**one, **({} if known else {"actions": action})})
        self.answer(200, {"transfer": "basic", "objects": objects})

    def commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        if (repo := self.repo(name)) is None:
            return
        files = dict(repo.files)
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.blobs[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        repo.main = sha1(json.dumps([sorted(files), len(repo.commits)]).encode())
        repo.commits[repo.main] = files
        self.answer(200, {"success": True, "commitOid": repo.main, "commitUrl": f"{self.server.url}/{name}"})


def sha1(data: bytes) -> str:
    """Forty hexadecimal digits."""
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
