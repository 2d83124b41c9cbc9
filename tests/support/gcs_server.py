"""A small server that answers as Google Cloud Storage documents its XML API.

It has what obstore uses: objects with generations that only grow, preconditions on them, uploads,
downloads, listings in pages. No package of a registry has a server with
preconditions on generations, which are what a lease needs.
"""

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

PAGE = 3
"""Objects in one page of a listing; few, so that several pages are asked for."""


class Refused(Exception):
    """An answer other than success: (status, reason)."""


class Bucket:
    """Objects by name, as (content, generation)."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, str]] = {}
        self._generations = itertools.count(1_700_000_000_000_000)
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

    def answer(
        self, method: str, name: str, query: dict[str, str], content: bytes, wanted: str | None
    ) -> tuple[str | bytes, str]:
        """Return the content and the generation with which a request is answered."""
        if method == "GET" and not name:
            return self.list(query.get("prefix", ""), query.get("continuation-token", "")), ""
        if method == "GET":
            return self.get(name)
        if method == "DELETE":
            return self.delete(name) or "", ""
        return "", self.put(name, content, wanted)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: Bucket

    def log_message(self, *_: object) -> None: ...

    def do(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        bucket, _, name = unquote(url.path).lstrip("/").partition("/")
        wanted = self.headers.get("x-goog-if-generation-match")
        status, generation = 204 if self.command == "DELETE" else 200, ""
        try:
            if bucket != "bucket":
                raise Refused(404, "The specified bucket does not exist.")
            body, generation = self.bucket.answer(self.command, name, query, content, wanted)
        except Refused as error:
            status, reason = error.args
            body = f"<Error><Code>{status}</Code><Message>{reason}</Message></Error>"
        body = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        if generation:
            self.send_header("ETag", f"e{generation}")
            self.send_header("x-goog-generation", generation)
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_DELETE = do


@contextmanager
def google_server() -> Iterator[tuple[str, Bucket]]:
    """Serve an empty `bucket`; yield the URL and what it holds."""
    bucket = Bucket()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"bucket": bucket}))
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
