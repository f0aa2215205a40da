"""Test runs have several processes, which fetch the same package at the same time when nothing is there yet."""

import multiprocessing
import time
from pathlib import Path

from fetched import once


def fetch(cache: Path) -> str:
    def fill(folder: Path) -> None:
        with (cache / "fetches").open("a") as told:
            told.write("one\n")
        (folder / "file").write_text("half")
        time.sleep(0.2)
        (folder / "file").write_text("half and half")

    return (once(cache, "@of/package@1.0", fill) / "file").read_text()


def test_one_of_many_processes_fetches_and_nobody_sees_a_half(tmp_path):
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.map(fetch, [tmp_path] * 3, chunksize=1) == ["half and half"] * 3
    assert (tmp_path / "fetches").read_text() == "one\n"


def test_what_could_not_be_fetched_is_tried_again(tmp_path):
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError

    for _ in range(2):
        try:
            once(tmp_path, "package==1.0", fail)
        except OSError:
            continue
        raise AssertionError("it was thought to be there")
    assert [path.name for path in tmp_path.iterdir()] == ["package==1.0.lock"]
