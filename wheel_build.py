"""Builds wheels with the compiled kernels in them: setuptools, and what pyproject.toml names here.

If the kernels cannot be compiled, the wheel is one for any platform, and a line says why. An
editable install compiles nothing: `make setup` does that.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  the other hooks of a build backend
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT / "src"))

from paceline.errors import UserError  # noqa: E402
from paceline.kernels.compiler import build_library, find_compiler, target_machine  # noqa: E402


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Add TensorFlow, whose headers the kernels need, if there is a compiler that needs them."""
    requires = build_meta.get_requires_for_build_wheel(config_settings)
    if not _why_not():
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        requires += project["optional-dependencies"]["cpu"]
    return requires


def _why_not() -> str:
    if sys.platform != "linux":
        return "they are for Linux"
    if not (compiler := find_compiler()):
        return "there is no C++ compiler"
    try:
        target_machine(compiler)
    except UserError as error:  # TensorFlow may have no wheel for that machine type either
        return str(error)
    return ""


@functools.cache
def _library() -> tuple[str, bytes]:
    """Return the library's name and content, both empty if it cannot be compiled."""
    try:
        if reason := _why_not():
            raise UserError(reason)
        with tempfile.TemporaryDirectory(prefix="paceline-wheel-") as folder:
            built = build_library(Path(folder))
            return built.name, built.read_bytes()
    except UserError as error:
        print(f"The wheel has no kernels, and TensorFlow's are slower: {error}", file=sys.stderr)
        return "", b""


class BuildWithKernels(build_py):
    """Copies the package, and the one library that fits it."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        # Both may have libraries of other sources: the folder that is copied, and the copy.
        folder = Path(self.build_lib, "paceline", "kernels", "lib")
        shutil.rmtree(folder, ignore_errors=True)
        name, content = _library()
        if name:
            folder.mkdir(parents=True)
            (folder / name).write_bytes(content)


class LinkedMetadata(egg_info):
    """Makes the links of the README absolute, for a package index, and names the project's pages.

    The address is `repository` of `[tool.paceline]`, or PACELINE_REPOSITORY.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        address = os.environ.get("PACELINE_REPOSITORY") or project["tool"]["paceline"]["repository"]
        if address == "URL":
            return
        metadata, version = self.distribution.metadata, project["project"]["version"]
        metadata.long_description = absolute_links(metadata.long_description, address, version)
        metadata.project_urls = project_urls(address, version)


def project_urls(address: str, version: str) -> dict[str, str]:
    """Return what `[project.urls]` would contain."""
    files = f"{address.rstrip('/')}/blob/v{version}"
    return {
        "Repository": address,
        "Documentation": f"{files}/docs/first-steps.md",
        "Changelog": f"{files}/CHANGELOG.md",
        "Issues": f"{address.rstrip('/')}/issues",
    }


def absolute_links(text: str, address: str, version: str) -> str:
    """Return Markdown whose links to files of the repository lead to this version of them."""

    def absolute(link: re.Match[str]) -> str:
        image, words, target = link.groups()
        if ":" in target or target.startswith("#"):
            return link.group()
        kind = "raw" if image else "blob"
        return f"{image}[{words}]({address.rstrip('/')}/{kind}/v{version}/{target})"

    text = re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", absolute, text)
    return re.sub(r"(?<=git clone )URL\b", address, text).replace(
        " `URL` is the address of this repository.", ""
    )


class PlatformWheel(bdist_wheel):
    """Names the platform if the wheel has a library: what the compiler compiles for (CXX). It fits
    every Python of that platform."""

    def finalize_options(self) -> None:
        self.distribution.has_ext_modules = lambda: bool(_library()[0])
        super().finalize_options()

    def get_tag(self) -> tuple[str, str, str]:
        if self.root_is_pure:
            return super().get_tag()
        return "py3", "none", f"linux_{target_machine(find_compiler())}"
