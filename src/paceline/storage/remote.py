"""A folder on remote storage: list it, read and write its files, replace one conditionally.

obstore reads and writes S3 and Google Cloud Storage, where an object appears with its last byte.
Data sets can also be read from other storage through fsspec (`ReadOnlyFolder`). Both libraries are
imported only if they are needed. Many files at once belong to `transfer`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from paceline.errors import PassingFault, UserError
from paceline.storage.files import replacing_path
from paceline.storage.retry import growing_pauses, retry

T = TypeVar("T")

OBJECT_STORES = ("s3", "s3a", "gs")
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "hdfs": "hdfs", "http": "http", "https": "http"}
"""Which extra to install for a protocol."""
PATIENCE_S = float(os.environ.get("PACELINE_STORAGE_PATIENCE_S") or 60.0)
"""How long passing faults of storage are tried again."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
REQUEST_S = 3600.0
"""Longest request, such as the upload of one piece or the download of one file."""
SILENCE_S = 60.0
"""Longest wait for the next bytes of an answer."""
PARTS = 4
"""How many parts of a large file are uploaded at the same time."""
STAMPS = ("etag", "ETag", "mtime", "modification_time", "updated", "LastModified")
"""fsspec's file systems have different words for when or how a file changed."""
TRANSIENT = (408, 409, 429)
"""HTTP answers of the 4xx range that may not come again."""


class StorageError(UserError):
    """Storage refused, and will again until someone corrects the cause."""


class StorageFault(StorageError, PassingFault):
    """Storage failed, and may not the next time."""


class File(NamedTuple):
    """A remote file; `stamp` changes when its content does."""

    size: int
    stamp: str


@dataclass(frozen=True)
class Stamped:
    """The content of a file, and the version that a conditional write can ask for."""

    content: bytes
    version: Mapping[str, str]


class Store:
    """A folder on S3 or on Google Cloud Storage.

    Names in it are relative and may have slashes. Each Store has its own connections, and no
    request takes longer than `request_s`. Building one touches neither disk nor network.
    """

    def __init__(self, url: str, request_s: float = REQUEST_S) -> None:
        self.url = url.rstrip("/")
        self._request_s = request_s

    @cached_property
    def _objects(self) -> Any:
        with _explained("open", self.url):
            from obstore.store import from_url

            # Faults are tried again by `retry_storage`, which tells the user.
            options: dict[str, Any] = {"retry_config": {"max_retries": 0}}
            options["client_options"] = self._limits()
            if protocol_of(self.url) != "gs":
                options |= _s3_options()
            return from_url(self.url, **options)

    def _limits(self) -> dict[str, Any]:
        limits = {"timeout": self._request_s, "read_timeout": min(SILENCE_S, self._request_s)}
        # An endpoint without TLS is used only if the user gives one.
        in_words = {name: f"{1000 * limit_s:.0f}ms" for name, limit_s in limits.items()}
        return in_words | {"allow_http": True}

    def files(self) -> dict[str, File]:
        """Return all files by name, also in subfolders; empty if there is no such folder.

        Empty files are left out: tools that show a bucket as folders make one for each folder, and
        obstore does not tell `train/` from `train`.
        """
        with _explained("list", self.url):
            listed = [entry for batch in self._objects.list() for entry in batch if entry["size"]]
        return {
            entry["path"]: File(entry["size"], entry["e_tag"])
            for entry in sorted(listed, key=lambda entry: str(entry["path"]))
        }

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if there is none."""
        found = self.read_stamped(name)
        return found.content if found else None

    def read_stamped(self, name: str) -> Stamped | None:
        """Return the content of a small file with its version; None if there is none."""
        with _explained("read", f"{self.url}/{name}"):
            try:
                found = self._objects.get(name)
                return Stamped(bytes(found.bytes()), _version(found.meta))
            except FileNotFoundError:
                return None

    def get(
        self, name: str, target: Path, advance: Callable[[int], None] = lambda size: None
    ) -> bool:
        """Copy a file to `target`, complete or not at all; return False if it does not exist.

        `advance` is called with the size of every piece.
        """
        with _explained("fetch", f"{self.url}/{name}"):
            try:
                found = self._objects.get(name)
            except FileNotFoundError:
                return False
            with replacing_path(target) as new, open(new, "wb") as file:
                for piece in found.stream():
                    file.write(piece)
                    advance(len(piece))
        return True

    def put(self, name: str, content: Path | bytes) -> None:
        """Write a file, from a local one or from bytes; readers see the old or the new one."""
        with _explained("put", f"{self.url}/{name}"):
            self._objects.put(name, content, max_concurrency=PARTS)

    def swap(
        self, name: str, content: bytes, version: Mapping[str, str] | None
    ) -> Mapping[str, str] | None:
        """Write a small file if it still has this version (None: if there is none).

        Returns its new version, or None if the file has changed. Storage compares and writes in one
        step. After an error it is not known whether the file was written.
        """
        mode = "create" if version is None else dict(version)
        with _explained("put", f"{self.url}/{name}"):
            from obstore.exceptions import AlreadyExistsError, PreconditionError

            try:
                put = self._objects.put(name, content, mode=mode, use_multipart=False)
                return _version(put)
            except (AlreadyExistsError, PreconditionError):
                return None

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        with _explained("remove", f"{self.url}/{name}"), suppress(FileNotFoundError):
            self._objects.delete(name)


class ReadOnlyFolder:
    """A folder on any storage that fsspec supports, such as hdfs://. Building one touches nothing.

    It has the methods of `Store` that a copy of a data set needs.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        with _explained("open", self.url):
            import fsspec

            system, root = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        return system, root.rstrip("/")

    def files(self) -> dict[str, File]:
        """Return all files by name, also in subfolders."""
        with _explained("list", self.url):
            system, root = self._opened
            listed = sorted(system.find(root, detail=True).items())
        files = {}
        for path, facts in listed:
            name = path[len(root) + 1 :]
            if {"", ".", ".."} & set(name.split("/")):
                raise UserError(
                    f"{self.url} contains the file {name!r}, which a folder cannot contain; give "
                    "the URL of a folder"
                )
            stamps = (str(facts[key]) for key in STAMPS if facts.get(key))
            files[name] = File(int(facts["size"]), next(stamps, ""))
        return files

    def get(
        self, name: str, target: Path, advance: Callable[[int], None] = lambda size: None
    ) -> bool:
        """Copy a file as `Store.get` does."""
        with _explained("fetch", f"{self.url}/{name}"):
            system, root = self._opened
            try:
                with replacing_path(target) as new:
                    system.get_file(f"{root}/{name}", str(new))
                    advance(new.stat().st_size)
            except FileNotFoundError:
                return False
        return True


def open_to_read(url: str) -> Store | ReadOnlyFolder:
    """Return a folder whose files can be listed and copied."""
    return Store(url) if protocol_of(url) in OBJECT_STORES else ReadOnlyFolder(url)


def open_to_write(url: str) -> Store:
    """Return a folder that can be written; raise UserError if its protocol does not allow it."""
    if protocol_of(url) not in OBJECT_STORES:
        raise UserError(
            f"{url} cannot be written; give a path, or a URL that begins with s3:// or gs://"
        )
    return Store(url)


def protocol_of(url: str) -> str:
    """Return `s3` for s3://bucket/folder."""
    return url.partition("://")[0]


def retry_storage(action: Callable[[], T], warn: Callable[[str], None] = lambda text: None) -> T:
    """Return the result of `action`; while storage fails, try again for `PATIENCE_S`."""
    pauses_s = growing_pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S, PATIENCE_S)
    return retry(action, pauses_s, lambda error: isinstance(error, StorageFault), warn)


def _s3_options() -> dict[str, Any]:
    """Return the credentials, the region and the endpoint that AWS's own tools would use."""
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        options: dict[str, Any] = {"credential_provider": Boto3CredentialProvider()}
    except ValueError as error:
        raise UserError(
            "there are no credentials for s3://; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or AWS_PROFILE"
        ) from error
    if endpoint := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        options["endpoint"] = endpoint
    return options


def _version(facts: Any) -> dict[str, str]:
    return {name: facts[name] for name in ("e_tag", "version") if facts[name] is not None}


@contextmanager
def _explained(doing: str, url: str) -> Iterator[None]:
    """Turn any exception into a UserError of one line: every kind of storage has its own."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        advice = _advice(error, EXTRAS.get(protocol_of(url), ""))
        kind = StorageError if advice else StorageFault
        raise kind(f"cannot {doing} {url}: {_reason(error)}{advice}") from error


def _reason(error: Exception) -> str:
    """Return the server's own message, or the first line of an error."""
    text = str(error).strip()
    if message := re.search(r"<Message>(.*?)</Message>", text, re.DOTALL):
        return message[1].strip()
    return (text.splitlines() or [""])[0] or type(error).__name__


def _advice(error: Exception, extra: str) -> str:
    """Return what to do about an error that stays; empty for one that may pass."""
    if isinstance(error, ImportError):
        return f"; install the extra {extra}: pip install 'paceline[{extra}]'"
    if isinstance(error, ValueError) and "not known" in str(error):
        return f"; use {'://, '.join(EXTRAS)}://"
    kind, answer = type(error).__name__, re.search(r"status code: (4\d\d)", str(error))
    if isinstance(error, FileNotFoundError) or "NoSuchBucket" in str(error):
        return "; make it first, or give another"
    if kind == "InvalidPathError":
        return "; give the URL of a folder whose files a disk can have"
    denied = isinstance(error, PermissionError) or kind.startswith(("Permission", "Unauth"))
    if denied or (answer and int(answer[1]) not in TRANSIENT):
        return "; check the credentials and what they allow"
    return ""
