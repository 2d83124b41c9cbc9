"""Remote storage, s3:// gs:// hdfs:// and whatever else fsspec knows: a folder there whose files are listed, fetched and put whole.

It owns how a file is put so that nobody ever sees half of it, and what is said when storage refuses. What lies there belongs to
`mirror` (run folders) and `data.remote` (data sets). No TensorFlow; fsspec is imported only when a remote folder is used.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from paceline.errors import UserError

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "hdfs": "hdfs"}
"""What to install for a protocol."""
OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "abfs", "az")
"""An object appears there when its last byte has come. Elsewhere a file is put under another name first, and renamed."""
STAMPS = ("etag", "ETag", "md5Hash", "mtime", "updated", "LastModified")
"""Each kind of storage has its own word for when or how a file changed."""


TELL_EVERY_S = 5.0


class StorageError(UserError):
    """Storage refused; `passing` where it may not the next time."""

    passing = True


class File(NamedTuple):
    """A remote file; `stamp` changes when its content does."""

    size: int
    stamp: str


def is_remote(path: str | Path) -> bool:
    return "://" in str(path)


def cache_folder() -> Path:
    return Path(os.environ.get("PACELINE_CACHE") or "~/.cache/paceline").expanduser()


def cached(kind: str, url: str) -> Path:
    """Where this machine keeps what belongs to a remote folder."""
    url = url.rstrip("/")
    return (
        cache_folder()
        / kind
        / f"{url.rpartition('/')[2]}-{hashlib.sha256(url.encode()).hexdigest()[:16]}"
    )


class Tally:
    """Counts the bytes that were moved, by any thread, and tells of them now and then."""

    def __init__(self, what: str, total: int, tell: Callable[[str], None]) -> None:
        self._what, self._total, self._tell = what, total, tell
        self._done, self._told, self._counting = 0, time.monotonic(), threading.Lock()

    def __call__(self, size: int) -> None:
        with self._counting:
            self._done += size
            if time.monotonic() - self._told > TELL_EVERY_S:
                self._told = time.monotonic()
                self._tell(f"{self._what}: {self._done / 1e6:,.0f} of {self._total / 1e6:,.0f} MB")


class Store:
    """A remote folder; names in it are relative and may have slashes. Building it touches neither disk nor network."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        with explained("open", self.url):
            import fsspec

            # a listing that is kept hides what others write, from reading a file by its name, too
            system, root = fsspec.core.url_to_fs(self.url, use_listings_cache=False)
        return system, root.rstrip("/")

    @property
    def _system(self) -> Any:
        return self._opened[0]

    def _path(self, name: str) -> str:
        return f"{self._opened[1]}/{name}"

    def files(self) -> dict[str, File]:
        """All files by name, of subfolders too; empty where there is no such folder."""
        with explained("list", self.url):
            system, root = self._opened
            found = {
                path[len(root) + 1 :]: facts
                for path, facts in sorted(system.find(root, detail=True).items())
            }
        if strange := [
            name for name in found if not name or {"", ".", ".."} & set(name.split("/"))
        ]:
            raise UserError(
                f"{self.url} has the file {strange[0]!r}, which no folder can have; give the URL of a folder"
            )
        return {name: File(int(facts["size"]), _stamp(facts)) for name, facts in found.items()}

    def read(self, name: str) -> bytes | None:
        """The content of a small file; None where there is none."""
        with explained("read", f"{self.url}/{name}"):
            try:
                return self._system.cat_file(self._path(name))
            except FileNotFoundError:
                return None

    def get(
        self, name: str, target: Path, advance: Callable[[int], None] = lambda size: None
    ) -> bool:
        """Copy a file to `target`, whole or not at all; False where it has gone. `advance` is told of every piece."""
        temporary, reached = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp"), 0

        def on_piece(size: int, value: int, **_: Any) -> None:
            nonlocal reached
            advance(value - reached)
            reached = value

        with explained("fetch", f"{self.url}/{name}"):
            from fsspec.callbacks import Callback

            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._system.get_file(
                    self._path(name), str(temporary), callback=Callback(hooks={"": on_piece})
                )
                os.replace(temporary, target)
            except FileNotFoundError:
                return False
            finally:
                temporary.unlink(missing_ok=True)
        return True

    def put(self, name: str, content: Path | bytes) -> None:
        """Put a file, or the content of one; it replaces an earlier one and is never seen half."""
        with explained("put", f"{self.url}/{name}"):
            protocol, target = self.url.partition("://")[0], self._path(name)
            if protocol in OBJECT_STORES:
                self._put(content, target)
                return
            folder, _, last = target.rpartition("/")
            temporary = f"{folder}/.{last}.{uuid.uuid4().hex[:8]}.tmp"
            self._system.makedirs(folder, exist_ok=True)
            self._put(content, temporary)
            if protocol == "hdfs":  # it renames onto nothing that is there
                with suppress(FileNotFoundError):
                    self._system.rm_file(target)
            self._system.mv(temporary, target)

    def _put(self, content: Path | bytes, target: str) -> None:
        if isinstance(content, bytes):
            self._system.pipe_file(target, content)
        else:
            self._system.put_file(str(content), target)

    def create(self, name: str, content: bytes) -> bool:
        """Put a file only where there is none; S3 and Google's storage let exactly one of several win."""
        with explained("put", f"{self.url}/{name}"):
            target = self._path(name)
            if self.url.partition("://")[0] not in OBJECT_STORES:
                self._system.makedirs(target.rpartition("/")[0], exist_ok=True)
            try:
                self._system.pipe_file(target, content, mode="create")
            except Exception as error:
                if (
                    isinstance(error, FileExistsError)
                    or "PreconditionFailed" in str(error)
                    or "pre-conditions" in str(error)
                ):
                    return False
                raise
        return True

    def remove(self, name: str) -> None:
        with explained("remove", f"{self.url}/{name}"), suppress(FileNotFoundError):
            self._system.rm_file(self._path(name))


@contextmanager
def explained(doing: str, url: str) -> Iterator[None]:
    """Whatever a kind of storage raises, in one line: each has exceptions of its own, and so has what lies below it."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        protocol = url.partition("://")[0]
        reason = (str(error).strip().splitlines() or [""])[0] or type(error).__name__
        if isinstance(error, ImportError):
            extra = EXTRAS.get(protocol, "")
            advice = (
                f"install the extra {extra}: pip install 'paceline[{extra}]'" if extra else reason
            )
            raise UserError(f"{url} needs a library that is not installed; {advice}") from error
        if isinstance(error, ValueError) and "not known" in reason:
            raise UserError(
                f"{url}: the protocol {protocol} is not known; use {'://, '.join(EXTRAS)}://"
            ) from error
        known = _advice(error)
        refused = StorageError(f"cannot {doing} {url}: {reason}{known}")
        refused.passing = not known
        raise refused from error


def _stamp(facts: dict[str, Any]) -> str:
    return next((str(facts[key]) for key in STAMPS if facts.get(key)), "")


def _advice(error: Exception) -> str:
    """What to do about errors that stay; empty for those that may pass."""
    name = type(error).__name__
    if isinstance(error, PermissionError) or name == "ClientError":
        return "; check the credentials and what they allow"
    if "Credential" in name:
        return "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    if isinstance(error, FileNotFoundError):
        return "; make it first, or give another"
    return ""
