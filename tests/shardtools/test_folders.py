"""Law 5 for folders and globs: what cannot be read there is an error, links are followed, and no folder comes twice."""

import os
import socket
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from shardtools.corpus.inputs import discover
from streampipe.errors import StorageError
from streampipe.storage import open_store

SHAPES = ("", "/**/*", "/**/*.txt", "/*/*.txt", "/part*/*")


@pytest.fixture
def tree(tmp_path):
    for name in ("tree/part-1/a.txt", "tree/part-2/b.txt", "tree/part-2/deep/c.txt", "elsewhere/below/d.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a text")
    return tmp_path / "tree"


def names(argument, include=()):
    return [file.name for file in discover([str(argument)], include)]


def deny(monkeypatch, folder):
    """Makes the listing of one folder fail, also for root."""
    listing = os.scandir

    def scandir(path="."):
        if Path(path) == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return listing(path)

    monkeypatch.setattr(os, "scandir", scandir)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_folder_that_cannot_be_listed_is_named_and_not_left_out(tree, monkeypatch, shape):
    deny(monkeypatch, tree / "part-2")
    with pytest.raises(StorageError, match=r"part-2: cannot list this folder: Permission denied; make it readable"):
        discover([f"{tree}{shape}"])


def test_a_folder_that_is_not_wanted_needs_not_be_readable(tree, monkeypatch):
    (tree / ".trash").mkdir()
    deny(monkeypatch, tree / ".trash")
    assert names(tree) == ["part-1/a.txt", "part-2/b.txt", "part-2/deep/c.txt"]
    assert names(f"{tree}/part-2/*.txt") == ["b.txt"]
    with pytest.raises(StorageError, match=r"\.trash: cannot list"):
        names(tree, ["*.txt"])


def test_an_input_below_a_folder_that_may_not_be_entered_is_an_error_in_words(tree, monkeypatch):
    look = Path.stat

    def stat(path, **options):
        if path.parent == tree / "part-1":
            raise PermissionError(13, "Permission denied", str(path))
        return look(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    for argument in (tree / "part-1" / "a.txt", tree):
        with pytest.raises(StorageError, match=r"a\.txt: cannot look at it: Permission denied"):
            names(argument)


def test_links_to_folders_are_followed(tree):
    (tree / "part-3").symlink_to(tree.parent / "elsewhere")
    plain = ["part-1/a.txt", "part-2/b.txt", "part-2/deep/c.txt"]
    assert names(tree) == names(f"{tree}/**/*.txt") == names(f"{tree}/**") == [*plain, "part-3/below/d.txt"]
    assert names(f"{tree}/*/below/*.txt") == ["part-3/below/d.txt"]
    assert names(f"{tree}/part*/**/d.txt") == ["part-3/below/d.txt"]


@pytest.mark.parametrize("target", [".", "..", "../part-1", "deep"])
def test_a_link_that_leads_back_is_no_endless_walk_and_no_folder_comes_twice(tree, target):
    (tree / "part-2" / "again").symlink_to(target)
    (tree / "part-1" / "across").symlink_to("../part-2")
    assert names(tree) == names(f"{tree}/**/*.txt") == ["part-1/a.txt", "part-2/b.txt", "part-2/deep/c.txt"]


def test_a_folder_outside_that_several_links_lead_to_has_the_name_of_the_first(tree):
    (tree / "z").symlink_to(tree.parent / "elsewhere" / "below")
    (tree / "y").symlink_to(tree.parent / "elsewhere" / "below")
    (tree / "part-1" / "up").symlink_to(tree.parent)
    assert names(tree) == ["part-1/a.txt", "part-1/up/elsewhere/below/d.txt", "part-2/b.txt", "part-2/deep/c.txt"]


def test_a_link_to_a_hidden_folder_is_followed(tree):
    (tree / "part-1").rename(tree / ".kept")
    (tree / "part-1").symlink_to(".kept")
    assert names(tree) == ["part-1/a.txt", "part-2/b.txt", "part-2/deep/c.txt"]


@pytest.mark.parametrize("target", ["gone", "part-3"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_link_that_leads_nowhere_is_an_error_unless_the_pattern_passes_it_by(tree, shape, target):
    (tree / "part-3").symlink_to(target)
    with pytest.raises(StorageError, match="part-3: a link to a file or folder that is not there"):
        names(f"{tree}{shape}")
    assert names(f"{tree}/part-2/*.txt") == ["b.txt"]
    assert names(f"{tree}/*-1/*") == ["part-1/a.txt"]
    (tree / "part-3").rename(tree / ".part-3")
    assert "part-1/a.txt" in names(tree)


def test_a_link_to_a_file_that_is_gone_is_passed_by_where_that_is_not_wanted(tree):
    (tree / "notes.md").symlink_to("gone.md")
    (tree / ".venv").mkdir()
    (tree / ".venv" / "python").symlink_to("gone")
    assert len(names(tree, ["*.txt"])) == len(names(f"{tree}/**/*.txt")) == 3
    with pytest.raises(StorageError, match=r"notes\.md: a link to a file or folder that is not there"):
        names(tree)


@pytest.mark.parametrize("shape", ["", "/*", "/**/*"])
def test_what_is_neither_file_nor_folder_is_an_error_unless_include_passes_it_by(tree, monkeypatch, shape):
    monkeypatch.chdir(tree)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("talk")
        with pytest.raises(StorageError, match="talk: neither a file nor a folder"):
            names(f"{tree}{shape}")
        assert len(names(tree, ["*.txt"])) == 3
        assert len(names(f"{tree}/**/*.txt")) == 3


class LinkingFileSystem(MemoryFileSystem):
    """Tells of a link, as an SFTP server does."""

    protocol = "linking"
    store: dict = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012

    def find(self, path, **options):
        found = super().find(path, **options)
        for name in found:
            if name.endswith("link.txt"):
                found[name]["type"] = "link"
        return found


def test_what_a_server_calls_neither_file_nor_folder_is_an_error():
    fsspec.register_implementation("linking", LinkingFileSystem, clobber=True)
    for name in ("a.txt", "link.txt"):
        open_store("linking://in").write(name, b"a text")
    for argument in ("linking://in", "linking://in/*"):
        with pytest.raises(StorageError, match=r"link\.txt is neither a file nor a folder, but of type 'link'"):
            names(argument)
    assert names("linking://in", ["a.*"]) == ["a.txt"]
