"""A folder on remote storage: list it, read and write its files, replace one conditionally.

obstore reads and writes S3 and Google Cloud Storage, where an object appears with its last byte.
Data sets can also be read from other storage through fsspec. Both are imported only if needed.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from paceline.errors import PassingFault, UserError
from paceline.experiment.fields import Json
from paceline.storage.files import growing_pauses, replacing_path, retry
from paceline.storage.locations import seconds
from paceline.storage.progress_bar import late_bar

T = TypeVar("T")
Version = Mapping[str, str]
Advance = Callable[[int], None]
"""Takes the number of bytes that were copied."""
Report = Callable[[str], None]

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "hdfs": "hdfs", "http": "http", "https": "http"}
"""Which extra to install for a protocol."""
PATIENCE_S = seconds("PACELINE_STORAGE_PATIENCE_S", 60.0)
"""How long passing faults of storage are tried again."""
FIRST_PAUSE_S = 1.0
REQUEST_S, SILENCE_S = 3600.0, 60.0
"""Longest request, such as the download of one file; longest wait for its next bytes."""
PARALLEL = 16
STAMPS = ("etag", "ETag", "mtime", "modification_time", "updated", "LastModified")
"""fsspec's file systems have different words for when or how a file changed."""


class StorageError(UserError):
    """Storage refused, and will again until someone corrects the cause."""


class StorageFault(StorageError, PassingFault):
    """Storage failed, and may not the next time."""


class File(NamedTuple):
    """A remote file; `stamp` changes when its content does."""

    size: int
    stamp: str


class Store:
    """A folder on S3 or on Google Cloud Storage, with its own connections.

    No request takes longer than `request_s`. Building one touches neither disk nor network.
    """

    def __init__(self, url: str, request_s: float = REQUEST_S) -> None:
        self.url = url.rstrip("/")
        self._request_s = request_s

    @cached_property
    def _objects(self) -> Any:
        with _explained("open", self.url):
            from obstore.store import from_url

            limits = {"timeout": self._request_s, "read_timeout": min(SILENCE_S, self._request_s)}
            options: Json = {} if self.url.startswith("gs:") else _s3_options()
            options["client_options"] = {
                "allow_http": True,  # an endpoint without TLS is used only if the user gives one
                **{name: f"{1000 * limit_s:.0f}ms" for name, limit_s in limits.items()},
            }
            # Faults are tried again by `retry_storage`, which tells the user.
            return from_url(self.url, retry_config={"max_retries": 0}, **options)

    def files(self) -> dict[str, File]:
        """Return all files by name, also in subfolders; empty if there is no such folder."""
        # Tools that show a bucket as folders make an empty file for each folder.
        with _explained("list", self.url):
            listed = [entry for batch in self._objects.list() for entry in batch if entry["size"]]
        found = {str(entry["path"]): File(entry["size"], entry["e_tag"]) for entry in listed}
        return dict(sorted(found.items()))

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if there is none."""
        found = self.read_versioned(name)
        return found[0] if found else None

    def read_versioned(self, name: str) -> tuple[bytes, Version] | None:
        """Return the content of a small file with its version; None if there is none."""
        with _explained("read", f"{self.url}/{name}"):
            try:
                found = self._objects.get(name)
                return bytes(found.bytes()), _version(found.meta)
            except FileNotFoundError:
                return None

    def get(self, name: str, target: Path, advance: Advance = lambda size: None) -> bool:
        """Copy a file to `target`, complete or not at all; return False if it does not exist."""
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
            self._objects.put(name, content, max_concurrency=4)

    def swap(self, name: str, content: bytes, version: Version | None) -> Version | None:
        """Write a small file if it still has this version (None: if there is none).

        Returns its new version, or None if the file has changed. Storage compares and writes in one
        step. After an error it is not known whether the file was written.
        """
        mode = "create" if version is None else dict(version)
        with _explained("put", f"{self.url}/{name}"):
            from obstore.exceptions import AlreadyExistsError, PreconditionError

            try:
                return _version(self._objects.put(name, content, mode=mode, use_multipart=False))
            except (AlreadyExistsError, PreconditionError):
                return None

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        with _explained("remove", f"{self.url}/{name}"), suppress(FileNotFoundError):
            self._objects.delete(name)


class ReadOnlyFolder:
    """A folder on any storage that fsspec supports, such as hdfs://, with methods of `Store`."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    @cached_property
    def _opened(self) -> Any:
        with _explained("open", self.url):
            import fsspec

            return fsspec.core.url_to_fs(self.url, use_listings_cache=False)

    def files(self) -> dict[str, File]:
        """Return all files by name, also in subfolders."""
        with _explained("list", self.url), ThreadPoolExecutor(PARALLEL) as pool:
            system, root = self._opened
            if not (found := system.find(root, detail=True)):
                system.ls(root)  # `find` does not say that a server did not answer
            # pages of a web server name files without their sizes
            unknown = [path for path, facts in found.items() if facts.get("size") is None]
            found |= zip(unknown, pool.map(system.info, unknown), strict=True)
        files = {}
        for path, facts in sorted(found.items()):
            name = path[len(root) + 1 :]
            if facts.get("size") is None:
                raise StorageError(f"{path}: its server does not say its size; copy it first")
            if leaves_folder(name):
                raise UserError(
                    f"{self.url} contains the file {name!r}, which a folder cannot contain; give "
                    "the URL of a folder"
                )
            stamps = (str(facts[key]) for key in STAMPS if facts.get(key))
            files[name] = File(int(facts["size"]), next(stamps, ""))
        return files

    def get(self, name: str, target: Path, advance: Advance = lambda size: None) -> bool:
        """Copy a file as `Store.get` does."""
        with _explained("fetch", f"{self.url}/{name}"):
            system, root = self._opened
            try:
                with replacing_path(target) as new:
                    system.get_file(f"{root}/{name}", str(new))
                    advance(new.stat().st_size)
                    return True
            except FileNotFoundError:
                return False


def open_to_read(url: str) -> Store | ReadOnlyFolder:
    """Return a folder whose files can be listed and copied."""
    return Store(url) if url.startswith(("s3:", "s3a:", "gs:")) else ReadOnlyFolder(url)


def open_to_write(url: str) -> Store:
    """Return a folder that can be written; UserError if its protocol has no conditional writes."""
    if isinstance(store := open_to_read(url), Store):
        return store
    raise UserError(
        f"{url} cannot be a run folder; give a path, or a URL that begins with s3:// or gs://"
    )


def leaves_folder(name: str) -> bool:
    """Return whether no folder can contain a file of this name."""
    return bool({"", ".", ".."} & set(name.split("/")))


def retry_storage(action: Callable[[], T], warn: Report = lambda text: None) -> T:
    """Return the result of `action`; while storage fails, try again for `PATIENCE_S`."""
    pauses_s = growing_pauses(FIRST_PAUSE_S, 30.0, PATIENCE_S)
    return retry(action, pauses_s, lambda error: isinstance(error, StorageFault), warn)


def fetch_files(
    store: Store | ReadOnlyFolder, targets: Mapping[str, Path], total_bytes: int, report: Report
) -> list[str]:
    """Copy each file to its target, several at once; return the names that no longer exist."""
    done, reported, counting = 0, time.monotonic(), threading.Lock()

    def advance(size: int) -> None:
        nonlocal done, reported
        with counting:
            done += size
            show(size)
            if time.monotonic() - reported > 5.0:
                reported = time.monotonic()
                report(f"{text}: {done / 1e6:,.0f} of {total_bytes / 1e6:,.0f} MB")

    def fetch(name: str) -> bool:
        return retry_storage(lambda: store.get(name, targets[name], advance), report)

    text = f"copying {store.url}"
    with late_bar(text, total_bytes) as show, ThreadPoolExecutor(PARALLEL) as pool:
        copies = {name: pool.submit(fetch, name) for name in targets}
        try:
            return [name for name, copy in copies.items() if not copy.result()]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _s3_options() -> Json:
    """Return the credentials, the region and the endpoint that AWS's own tools would use."""
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        options: Json = {"credential_provider": Boto3CredentialProvider()}
    except ValueError as error:
        raise UserError(
            "there are no credentials for s3://; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or AWS_PROFILE"
        ) from error
    if endpoint := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        options["endpoint"] = endpoint
    return options


def _version(facts: Any) -> Version:
    return {name: facts[name] for name in ("e_tag", "version") if facts[name] is not None}


@contextmanager
def _explained(doing: str, url: str) -> Iterator[None]:
    """Turn any exception into a UserError of one line: every kind of storage has its own."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        text = str(error).strip()
        message = re.search(r"<Message>(.*?)</Message>", text, re.DOTALL)  # the server's own
        reason = message[1].strip() if message else text.partition("\n")[0] or type(error).__name__
        advice = _advice(error, EXTRAS.get(url.partition("://")[0], ""))
        kind = StorageError if advice else StorageFault
        raise kind(f"cannot {doing} {url}: {reason}{advice}") from error


def _advice(error: Exception, extra: str) -> str:
    """Return what to do about an error that stays; empty for one that may pass."""
    kind, text = type(error).__name__, str(error)
    if isinstance(error, ImportError):
        return f"; install the extra {extra}: pip install 'paceline[{extra}]'"
    if isinstance(error, ValueError) and "not known" in text:
        return f"; use {'://, '.join(EXTRAS)}://"
    if isinstance(error, FileNotFoundError) or "NoSuchBucket" in text:
        return "; create it first, or use another one"
    if kind == "InvalidPathError":
        return "; give the URL of a folder whose files a disk can have"
    if "TimeTooSkewed" in text:
        return "; set the clock of this machine"
    answer = re.search(r"status code: (4\d\d)", text)
    denied = isinstance(error, PermissionError) or kind.startswith(("Permission", "Unauth"))
    if denied or (answer and answer[1] not in ("408", "409", "429")):  # those may pass
        return "; check the credentials and what they allow"
    return ""
