"""A small server that answers as Google Cloud Storage documents its XML API.

It has what obstore uses: objects with generations that only grow, preconditions on them, simple and
multipart uploads, downloads, listings in pages. No package of a registry has a server with
preconditions on generations, which are what a lease needs.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

PAGE = 3
"""Objects in one page of a listing; few, so that several pages are asked for."""
CHANGED = "Thu, 01 Jan 2026 00:00:00 GMT"
GENERATION = "x-goog-generation"
MATCH = "x-goog-if-generation-match"


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.body = f"<Error><Code>{status}</Code><Message>{escape(reason)}</Message></Error>"


class Bucket:
    """Objects by name, as (content, generation)."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, str]] = {}
        self._generations = itertools.count(1_700_000_000_000_000)
        self._parts: dict[str, dict[int, bytes]] = {}
        self._lock = threading.Lock()
        self.writes: list[tuple[str, str | None]] = []
        """Name and wanted generation of each write that was tried."""

    def put(self, name: str, content: bytes, wanted: str | None) -> str:
        """Write an object if it has the wanted generation; 0 means that there is none."""
        with self._lock:
            self.writes.append((name, wanted))
            there = self._objects.get(name, (b"", "0"))[1]
            if wanted not in (None, there):
                raise Refused(412, "At least one of the pre-conditions did not hold.")
            generation = str(next(self._generations))
            self._objects[name] = content, generation
            return generation

    def get(self, name: str) -> tuple[bytes, str]:
        with self._lock:
            if name not in self._objects:
                raise Refused(404, "The specified key does not exist.")
            return self._objects[name]

    def delete(self, name: str) -> None:
        self.get(name)
        del self._objects[name]

    def list(self, prefix: str, after: str) -> str:
        with self._lock:
            names = sorted(name for name in self._objects if name.startswith(prefix))
            page = [name for name in names if name > after][:PAGE]
            entries = "".join(
                f"<Contents><Key>{escape(name)}</Key><Size>{len(self._objects[name][0])}</Size>"
                f"<LastModified>2026-01-01T00:00:00Z</LastModified>"
                f"<ETag>e{self._objects[name][1]}</ETag></Contents>"
                for name in page
            )
        if page and page[-1] != names[-1]:
            entries += f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
        return f"<ListBucketResult>{entries}</ListBucketResult>"

    def begin(self) -> str:
        """Begin an upload in parts; return its name."""
        upload = f"upload-{next(self._generations)}"
        self._parts[upload] = {}
        return upload

    def add(self, upload: str, number: int, content: bytes) -> None:
        self._parts[upload][number] = content

    def joined(self, upload: str) -> bytes:
        return b"".join(content for _, content in sorted(self._parts.pop(upload).items()))


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
        query = parse_qs(url.query, keep_blank_values=True)
        self.query = {name: values[-1] for name, values in query.items()}
        self.content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        bucket, _, name = unquote(url.path).lstrip("/").partition("/")
        try:
            if bucket != "bucket":
                raise Refused(404, "The specified bucket does not exist.")
            act(name)
        except Refused as error:
            self._send(error.status, error.body.encode())

    def _get(self, name: str) -> None:
        if not name:
            after = self.query.get("continuation-token", "")
            self._send(200, self.bucket.list(self.query.get("prefix", ""), after).encode())
            return
        content, generation = self.bucket.get(name)
        self._send(200, content, generation)

    def _put(self, name: str) -> None:
        if "partNumber" in self.query:
            number = int(self.query["partNumber"])
            self.bucket.add(self.query["uploadId"], number, self.content)
            self._send(200, b"", f"part-{number}")
            return
        self._send(200, b"", self.bucket.put(name, self.content, self.headers.get(MATCH)))

    def _post(self, name: str) -> None:
        if "uploads" in self.query:
            upload = f"<UploadId>{self.bucket.begin()}</UploadId>"
            body = f"<InitiateMultipartUploadResult>{upload}</InitiateMultipartUploadResult>"
            self._send(200, body.encode())
            return
        content = self.bucket.joined(self.query["uploadId"])
        generation = self.bucket.put(name, content, self.headers.get(MATCH))
        etag = f"<ETag>e{generation}</ETag>"
        body = f"<CompleteMultipartUploadResult>{etag}</CompleteMultipartUploadResult>"
        self._send(200, body.encode(), generation)

    def _delete(self, name: str) -> None:
        self.bucket.delete(name)
        self._send(204, b"")

    def _send(self, status: int, content: bytes, generation: str = "") -> None:
        self.send_response(status)
        if generation:
            self.send_header("ETag", f"e{generation}")
            self.send_header(GENERATION, generation)
            self.send_header("Last-Modified", CHANGED)
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
    pytest.importorskip("obstore", reason="obstore is not installed")
    with google_server() as (url, bucket):
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", key_of(url))
        yield bucket


def key_of(url: str) -> str:
    """Return a key with which obstore asks this server, and nobody for a token."""
    empty = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    return json.dumps(empty | {"gcs_base_url": url, "disable_oauth": True})
