"""A folder on remote storage (s3:// gs:// hdfs:// and others that fsspec knows), file by file.

It owns how a file is put so that nobody ever sees half of it, and the errors if storage refuses.
What is stored belongs to `remote` (run folders) and `data_cache` (data sets). No TensorFlow.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

from paceline.errors import PassingFault, UserError
from paceline.storage.files import replacing_path

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "hdfs": "hdfs"}
"""Which extra to install for a protocol."""
OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "abfs", "az")
"""An object appears there with its last byte. Elsewhere a file is put under another name first,
and renamed."""
STAMPS = ("etag", "ETag", "md5Hash", "mtime", "updated", "LastModified")
"""Each kind of storage has its own word for when or how a file changed."""
PATIENCE_S = float(os.environ.get("PACELINE_STORAGE_PATIENCE_S") or 60.0)
"""How long passing faults of storage are tried again."""
EXISTS = ("PreconditionFailed", "pre-conditions")
"""What S3 and Google's storage answer if an object that should be new exists."""


class StorageError(UserError):
    """Storage refused, and will again until someone corrects the cause."""


class StorageFault(StorageError, PassingFault):
    """Storage failed, and may not the next time."""


class File(NamedTuple):
    """A remote file; `stamp` changes when its content does."""

    size: int
    stamp: str


def is_remote(path: str | Path) -> bool:
    """Return whether a path is a URL."""
    return "://" in str(path)


def cache_folder() -> Path:
    """Return where this machine keeps copies and indices."""
    return Path(os.environ.get("PACELINE_CACHE") or "~/.cache/paceline").expanduser()


def cached(kind: str, url: str) -> Path:
    """Return where this machine keeps its side of a remote folder."""
    url = url.rstrip("/")
    digest = hashlib.sha256(url.encode()).hexdigest()[:16]
    return cache_folder() / kind / f"{url.rpartition('/')[2]}-{digest}"


class Store:
    """A remote folder. Names in it are relative and may have slashes.

    With `own_connection`, nothing else of this process shares its connections or its thread.
    Building one touches neither disk nor network.
    """

    def __init__(self, url: str, own_connection: bool = False) -> None:
        self.url = url.rstrip("/")
        self.protocol = url.partition("://")[0]
        self._own_connection = own_connection

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        with explained("open", self.url):
            import fsspec

            # A cached listing hides what others write, even from reading a file by its name.
            options: dict[str, Any] = {"use_listings_cache": False}
            if self._own_connection:  # all others share one thread for what they send and receive
                options |= {"skip_instance_cache": True, "loop": _new_loop()}
            system, root = fsspec.core.url_to_fs(self.url, **options)
        return system, root.rstrip("/")

    @property
    def system(self) -> Any:
        """Return fsspec's object for this storage."""
        return self._opened[0]

    def path(self, name: str) -> str:
        """Return how `system` calls a file."""
        return f"{self._opened[1]}/{name}"

    def files(self) -> dict[str, File]:
        """Return all files by name, with those of subfolders; empty if there is no such folder."""
        with explained("list", self.url):
            system, root = self._opened
            listed = sorted(system.find(root, detail=True).items())
        names = {path: path[len(root) + 1 :] for path, _ in listed}
        # Tools that show a bucket as folders make an empty object `train/` for each.
        files = {
            names[path]: _file(facts)
            for path, facts in listed
            if not _is_marker(names[path], facts)
        }
        for name in files:
            if {"", ".", ".."} & set(name.split("/")):
                raise UserError(
                    f"{self.url} has the file {name!r}, which no folder can have; "
                    "give the URL of a folder"
                )
        return files

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if there is none."""
        with explained("read", f"{self.url}/{name}"):
            try:
                return cast(bytes, self.system.cat_file(self.path(name)))
            except FileNotFoundError:
                return None

    def get(
        self, name: str, target: Path, advance: Callable[[int], None] = lambda size: None
    ) -> bool:
        """Copy a file to `target`, whole or not at all; return False if it does not exist.

        `advance` is called with the size of every piece.
        """
        reached = 0

        def on_piece(size: int, value: int, **_: Any) -> None:
            nonlocal reached
            advance(value - reached)
            reached = value

        with explained("fetch", f"{self.url}/{name}"):
            from fsspec.callbacks import Callback

            callback = Callback(hooks={"": on_piece})
            try:
                with replacing_path(target) as new:
                    self.system.get_file(self.path(name), str(new), callback=callback)
            except FileNotFoundError:
                return False
        return True

    def put(self, name: str, content: Path | bytes) -> None:
        """Write a file, from a local one or from bytes; readers see the old or the new, whole."""
        with explained("put", f"{self.url}/{name}"):
            target = self.path(name)
            if self.protocol in OBJECT_STORES:
                self._put(content, target)
                return
            folder, _, last = target.rpartition("/")
            temporary = f"{folder}/.{last}.{uuid.uuid4().hex[:8]}.tmp"
            self.system.makedirs(folder, exist_ok=True)
            self._put(content, temporary)
            if self.protocol == "hdfs":  # it does not rename onto an existing file
                with suppress(FileNotFoundError):
                    self.system.rm_file(target)
            self.system.mv(temporary, target)

    def _put(self, content: Path | bytes, target: str) -> None:
        if isinstance(content, bytes):
            self.system.pipe_file(target, content)
        else:
            self.system.put_file(str(content), target)

    def create(self, name: str, content: bytes) -> bool:
        """Write a file only if there is none; return whether it was written.

        On S3 and Google's storage, exactly one of several processes succeeds.
        """
        with explained("put", f"{self.url}/{name}"):
            target = self.path(name)
            if self.protocol not in OBJECT_STORES:
                self.system.makedirs(target.rpartition("/")[0], exist_ok=True)
            try:
                self.system.pipe_file(target, content, mode="create")
            except Exception as error:
                refused = any(answer in str(error) for answer in EXISTS)
                if refused or isinstance(error, FileExistsError):
                    return False
                raise
        return True

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        with explained("remove", f"{self.url}/{name}"), suppress(FileNotFoundError):
            self.system.rm_file(self.path(name))


@contextmanager
def explained(doing: str, url: str) -> Iterator[None]:
    """Turn any exception into a UserError of one line: every kind of storage has its own."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        protocol = url.partition("://")[0]
        reason = (str(error).strip().splitlines() or [""])[0] or type(error).__name__
        if isinstance(error, ImportError):
            extra = EXTRAS.get(protocol)
            advice = f"install the extra {extra}: pip install 'paceline[{extra}]'"
            raise UserError(
                f"{url} needs a library that is not installed; {advice if extra else reason}"
            ) from error
        if isinstance(error, ValueError) and "not known" in reason:
            known = "://, ".join(EXTRAS)
            raise UserError(
                f"{url}: the protocol {protocol} is not known; use {known}://"
            ) from error
        advice = _advice(error)
        kind = StorageError if advice else StorageFault
        raise kind(f"cannot {doing} {url}: {reason}{advice}") from error


def _new_loop() -> Any:
    """Return a loop for asynchronous storage that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="paceline-storage", daemon=True).start()
    return loop


def _is_marker(name: str, facts: dict[str, Any]) -> bool:
    return facts.get("type") == "directory" or (
        (not name or name.endswith("/")) and not facts["size"]
    )


def _file(facts: dict[str, Any]) -> File:
    stamps = (str(facts[key]) for key in STAMPS if facts.get(key))
    return File(int(facts["size"]), next(stamps, ""))


def _advice(error: Exception) -> str:
    """Return what to do about an error that stays; empty for one that may pass."""
    name = type(error).__name__
    if isinstance(error, PermissionError) or name == "ClientError":
        return "; check the credentials and what they allow"
    if "Credential" in name:
        return "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    if isinstance(error, FileNotFoundError):
        return "; make it first, or give another"
    return ""
