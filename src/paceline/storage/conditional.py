"""Conditional writes: replace a small file on storage only if it is still the one that was read.

S3 compares the ETag, Google's storage the generation, both in one step. Other storage has no such
operation: there the file is read again just before it is written (`is_atomic` is False).
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from paceline.storage.backends import Store, explained

S3 = ("s3", "s3a")
GOOGLE = ("gs", "gcs")
REFUSED = ("PreconditionFailed", "pre-conditions", "ConditionalRequestConflict")
"""What S3 answers if the condition does not hold, or another write came in between."""
READS = 5


class Stamped(NamedTuple):
    """The content of a file, and a stamp that no other content of it has."""

    content: bytes
    stamp: str


def is_atomic(store: Store) -> bool:
    """Return whether storage compares and writes in one step."""
    return store.protocol in S3 + GOOGLE


def read_stamped(store: Store, name: str) -> Stamped | None:
    """Return a file's content with its stamp; None if there is no such file."""
    with explained("read", f"{store.url}/{name}"):
        try:
            if is_atomic(store):
                return _read_pinned(store, name)
            content = store.system.cat_file(store.path(name))
        except FileNotFoundError:
            return None
        return Stamped(content, _digest(content))


def swap(store: Store, name: str, content: bytes, stamp: str | None) -> str | None:
    """Write a file if it still has `stamp` (None: if there is none); return its new stamp.

    Returns None if the file has changed. After an error it is not known whether the file was
    written.
    """
    if stamp is None:
        if not store.create(name, content):
            return None
        written = read_stamped(store, name)
        return written.stamp if written and written.content == content else None
    if not is_atomic(store):
        found = read_stamped(store, name)
        if found is None or found.stamp != stamp:
            return None
        store.put(name, content)
        return _digest(content)
    with explained("put", f"{store.url}/{name}"):
        try:
            write = _swap_s3 if store.protocol in S3 else _swap_google
            return write(store.system, store.path(name), content, stamp)
        except (FileNotFoundError, FileExistsError):  # the latter is Google's answer
            return None
        except Exception as error:
            if any(answer in f"{error} {error.__cause__}" for answer in REFUSED):
                return None
            raise


def _read_pinned(store: Store, name: str) -> Stamped:
    """Read the content of exactly the version whose stamp is returned."""
    key = "ETag" if store.protocol in S3 else "generation"
    path = store.path(name)
    for _ in range(READS - 1):
        with store.system.open(path, "rb", cache_type="none") as file:
            stamp = str(file.details[key])
            try:
                content = file.read()
            except FileNotFoundError:
                raise
            except OSError:  # it was replaced in between: S3 refuses to mix two versions
                continue
        if store.protocol in S3 or str(store.system.info(path)[key]) == stamp:
            return Stamped(content, stamp)
    raise OSError("it changes faster than it can be read")


def _swap_s3(system: Any, path: str, content: bytes, stamp: str) -> str:
    return str(system.pipe_file(path, content, IfMatch=stamp)["ETag"])


def _swap_google(system: Any, path: str, content: bytes, stamp: str) -> str:
    bucket, key, _ = system.split_path(path)
    answer = system.call(
        "POST",
        f"{system._location}/upload/storage/v1/b/{bucket}/o",
        name=key,
        uploadType="media",
        ifGenerationMatch=stamp,
        headers={"Content-Type": "application/json"},
        data=content,
        json_out=True,
    )
    return str(answer["generation"])


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
