"""A hub on 127.0.0.1: the three calls that huggingface_hub makes for a model, over files in memory."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMITS = {"main": "1" * 40, "old": "2" * 40}


class HubServer(ThreadingHTTPServer):
    """`files` by "OWNER/NAME" and file name; content above 1 KB is "large" and has a sha256."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.lies: dict[str, bytes] = {}  # sent in place of a file, though the hashes are the file's
        self.gated: set[str] = set()
        self.cut = 0  # answers with a file end after so many bytes, and the next ones are a 500
        self.stall = threading.Event()  # with `cut`: the connection stays open until it is set
        self.stall.set()
        self.half_sent = threading.Event()
        self.asked: list[tuple[str, str]] = []  # path and Range of each request
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def stop(self) -> None:
        self.stall.set()
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append((path, self.headers.get("Range", "")))
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            revision = "/".join(parts[5:]) if parts[4:5] == ["revision"] else "main"
            self._model("/".join(parts[2:4]), revision)
        elif parts[2:3] == ["resolve"]:
            self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self._refuse(404, "EntryNotFound")

    def _model(self, repo: str, revision: str) -> None:
        files = self.server.files.get(repo)
        commit = COMMITS.get(revision, revision if revision in COMMITS.values() else "")
        if files is None:
            self._refuse(404, "RepoNotFound")
        elif not commit:
            self._refuse(404, "RevisionNotFound")
        else:
            siblings = [_sibling(name, data) for name, data in files.items()]
            body = {
                "_id": "0",
                "id": repo,
                "modelId": repo,
                "sha": commit,
                "siblings": siblings,
                "gated": False,
            }
            self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _file(self, repo: str, commit: str, name: str) -> None:
        if repo in self.server.gated:
            self._refuse(403, "GatedRepo")
            return
        data = self.server.lies.get(name, self.server.files[repo][name])
        begin = int(self.headers.get("Range", "bytes=0-")[6:].split("-")[0])
        headers = {"Content-Range": f"bytes {begin}-{len(data) - 1}/{len(data)}"} if begin else {}
        if not self.server.cut:
            self._send(206 if begin else 200, data[begin:], headers)
        elif self.server.cut < 0:
            self._refuse(500, "")
        else:
            self._head(200, len(data), headers)
            self.wfile.write(data[: self.server.cut])
            self.wfile.flush()
            self.server.cut = -1
            self.server.half_sent.set()
            self.server.stall.wait(60)
            self.close_connection = True

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code} if code else {})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self._head(status, len(body), headers)
        self.wfile.write(body)

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(length), **headers}.items():
            self.send_header(name, value)
        self.end_headers()


def _sibling(name: str, data: bytes) -> dict[str, Any]:
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    made: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": blob}
    if len(data) > 1000:
        made["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 100}
    return made
