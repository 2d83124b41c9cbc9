"""A small server that answers as Google Cloud Storage documents its JSON API.

It has what gcsfs uses: objects with generations that only grow, preconditions on them, simple,
multipart and resumable uploads, downloads, listings with a delimiter and pages. No package of a
registry has a server with preconditions on generations, which are what a lease needs.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c
import pytest

PAGE = 3
"""Objects in one page of a listing; few, so that several pages are asked for."""


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.body = {"error": {"code": status, "message": reason, "errors": [{"message": reason}]}}


class Bucket:
    """Objects by name, as (content, metadata)."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, dict[str, Any]]] = {}
        self._generations = itertools.count(1_700_000_000_000_000)
        self._sessions: dict[str, tuple[str, dict[str, str], bytearray]] = {}
        self._lock = threading.Lock()
        self.writes: list[tuple[str, str | None]] = []
        """Name and ifGenerationMatch of each write that was tried."""

    def put(self, name: str, content: bytes, query: dict[str, str]) -> dict[str, Any]:
        with self._lock:
            self.writes.append((name, query.get("ifGenerationMatch")))
            self._check(name, query)
            generation, md5 = str(next(self._generations)), hashlib.md5(content).digest()
            crc = google_crc32c.value(content).to_bytes(4, "big")
            facts = {
                "kind": "storage#object",
                "bucket": "bucket",
                "name": name,
                "size": str(len(content)),
                "generation": generation,
                "metageneration": "1",
                "md5Hash": base64.b64encode(md5).decode(),
                "crc32c": base64.b64encode(crc).decode(),
                "etag": f"e{generation}",
                "updated": "2026-01-01T00:00:00.000Z",
                "timeCreated": "2026-01-01T00:00:00.000Z",
                "contentType": "application/octet-stream",
            }
            self._objects[name] = content, facts
            return facts

    def get(self, name: str, query: dict[str, str]) -> tuple[bytes, dict[str, Any]]:
        with self._lock:
            found = self._objects.get(name)
            wanted = query.get("generation")
            if not found or (wanted and found[1]["generation"] != wanted):
                raise Refused(404, f"No such object: bucket/{name}")
            return found

    def delete(self, name: str, query: dict[str, str]) -> None:
        with self._lock:
            if name not in self._objects:
                raise Refused(404, f"No such object: bucket/{name}")
            self._check(name, query)
            del self._objects[name]

    def list(self, query: dict[str, str]) -> dict[str, Any]:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        after = query.get("pageToken", "")
        with self._lock:
            names = sorted(name for name in self._objects if name.startswith(prefix))
            folders = set()
            if delimiter:
                for name in names:
                    head, found, _ = name[len(prefix) :].partition(delimiter)
                    folders |= {prefix + head + delimiter} if found else set()
                names = [name for name in names if delimiter not in name[len(prefix) :]]
            page = [name for name in names if name > after][:PAGE]
            answer: dict[str, Any] = {"kind": "storage#objects"}
            answer["items"] = [self._objects[name][1] for name in page]
            answer["prefixes"] = sorted(folders) if not after else []
            if page and page[-1] != names[-1]:
                answer["nextPageToken"] = page[-1]
            return answer

    def begin(self, name: str, query: dict[str, str]) -> str:
        """Begin a resumable upload; return its name."""
        with self._lock:
            self._check(name, query)
            session = f"session-{next(self._generations)}"
            self._sessions[session] = name, query, bytearray()
            return session

    def upload(self, session: str, content: bytes, total: int | None) -> dict[str, Any] | int:
        """Add a piece; return the metadata after the last one, else the bytes so far."""
        name, query, so_far = self._sessions[session]
        so_far += content
        if total is None or len(so_far) < total:
            return len(so_far)
        return self.put(name, bytes(so_far), query)

    def _check(self, name: str, query: dict[str, str]) -> None:
        """Raise 412 if the object has another generation; 0 means that there is none."""
        there = self._objects[name][1]["generation"] if name in self._objects else "0"
        if query.get("ifGenerationMatch", there) != there:
            text = "At least one of the pre-conditions you specified did not hold."
            raise Refused(412, text)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: Bucket

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_PUT(self) -> None:
        self._answer(self._put)

    def do_DELETE(self) -> None:
        self._answer(self._delete)

    def _answer(self, act: Any) -> None:
        url = urlsplit(self.path)
        self.query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        self.content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            act(url.path)
        except Refused as error:
            self._send(error.status, json.dumps(error.body).encode())

    def _name(self, path: str) -> str:
        """Return the name of the object in a path; empty for the list of objects."""
        found = re.fullmatch(r".*/b/bucket/o(?:/(.*))?", path)
        if not found:
            raise Refused(404, f"The specified bucket does not exist: {path}")
        return unquote(found[1] or "")

    def _get(self, path: str) -> None:
        if re.fullmatch(r".*/b/bucket(/storageLayout)?", path):
            facts = {"kind": "storage#bucket", "name": "bucket", "locationType": "region"}
            return self._send(200, json.dumps(facts).encode())
        name = self._name(path)
        if not name:
            return self._send(200, json.dumps(self.bucket.list(self.query)).encode())
        content, facts = self.bucket.get(name, self.query)
        if self.query.get("alt") != "media":
            return self._send(200, json.dumps(facts).encode())
        hashes = f"crc32c={facts['crc32c']},md5={facts['md5Hash']}"
        headers = {"X-Goog-Hash": hashes, "X-Goog-Generation": facts["generation"]}
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(found[1]), int(found[2] or len(content) - 1)
            if first >= len(content):
                raise Refused(416, "Requested range not satisfiable")
            piece = content[first : last + 1]
            span = f"bytes {first}-{first + len(piece) - 1}/{len(content)}"
            return self._send(206, piece, headers | {"Content-Range": span})
        return self._send(200, content, headers)

    def _post(self, path: str) -> None:
        self._name(path)
        if "upload_id" in self.query:  # Google documents PUT, and takes POST, which gcsfs sends
            return self._put(path)
        match self.query.get("uploadType"):
            case "media":
                facts = self.bucket.put(self.query["name"], self.content, self.query)
            case "multipart":
                described, content = self._parts()
                facts = self.bucket.put(json.loads(described)["name"], content, self.query)
            case "resumable":
                name = self.query.get("name") or json.loads(self.content)["name"]
                session = self.bucket.begin(name, self.query)
                host = f"http://{self.headers['Host']}{path}?uploadType=resumable"
                location = {"Location": f"{host}&upload_id={session}"}
                return self._send(200, b"", location)
            case other:
                raise Refused(400, f"uploadType {other}")
        return self._send(200, json.dumps(facts).encode())

    def _parts(self) -> tuple[bytes, bytes]:
        """Return the two parts of a multipart upload: metadata and content."""
        boundary = re.search(r'boundary="?([^";]+)', self.headers["Content-Type"])
        assert boundary
        line = b"--" + boundary[1].encode()
        body = self.content[len(line) : self.content.rindex(b"\n" + line + b"--")]
        described, _, content = body.partition(b"\n" + line)
        parts = [part.partition(b"\n\n")[2] for part in (described, content)]
        return parts[0], parts[1]

    def _put(self, path: str) -> None:
        span = re.fullmatch(r"bytes (?:\d+-\d+|\*)/(\d+|\*)", self.headers["Content-Range"])
        assert span
        total = None if span[1] == "*" else int(span[1])
        done = self.bucket.upload(self.query["upload_id"], self.content, total)
        if isinstance(done, int):
            return self._send(308, b"", {"Range": f"bytes=0-{done - 1}"})
        return self._send(200, json.dumps(done).encode())

    def _delete(self, path: str) -> None:
        self.bucket.delete(self._name(path), self.query)
        self._send(204, b"")

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        kind = "application/octet-stream" if headers else "application/json; charset=UTF-8"
        for name, value in ({"Content-Type": kind} | (headers or {})).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def google_server() -> Iterator[tuple[str, Bucket]]:
    """Serve an empty `bucket`; yield the URL and what it holds."""
    bucket = Bucket()
    handler = type("OwnHandler", (Handler,), {"bucket": bucket})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", bucket
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Serve gs://bucket from here."""
    pytest.importorskip("gcsfs", reason="gcsfs is not installed")
    with google_server() as (url, bucket):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        monkeypatch.setenv("FSSPEC_GS_TOKEN", "anon")
        # by default, gcsfs asks Google's own servers what kind of bucket it is
        monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        yield bucket
