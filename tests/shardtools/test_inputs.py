"""Which files are read, in which order, and Parquet."""

import json
import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardtools.corpus.fields import FieldPath
from shardtools.corpus.inputs import discover
from shardtools.corpus.origins import input_entries, origins_of
from shardtools.corpus.scan import Unit, scan
from shardtools.corpus.tally import Tally
from shardtools.corpus.texts import TextReader
from streampipe.errors import ConfigError


@pytest.fixture
def tree(tmp_path):
    for name in ("b.py", "a/z.py", "a/b.txt", ".git/config", "a/.hidden.py", "data.jsonl", "package.json"):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"text":"in the file"}')
    return tmp_path / "tree"


def names(inputs, include=()):
    return [(file.name, file.kind) for file in discover([str(path) for path in inputs], include)]


def test_a_folder_is_its_visible_files_by_name_with_record_files_read_as_such(tree):
    wanted = [
        ("a/b.txt", "plain"),
        ("a/z.py", "plain"),
        ("b.py", "plain"),
        ("data.jsonl", "lines"),
        ("package.json", "plain"),
    ]
    assert names([tree]) == wanted


def test_include_picks_names_or_paths_and_a_glob_picks_for_itself(tree):
    assert [name for name, _ in names([tree], ["*.py"])] == ["a/.hidden.py", "a/z.py", "b.py"]
    assert [name for name, _ in names([tree], ["a/*.txt"])] == ["a/b.txt"]
    assert [name for name, _ in names([f"{tree}/**/*.py"])] == ["a/z.py", "b.py"]
    assert names([f"{tree}/*.json"]) == [("package.json", "lines")]
    assert names([tree / "package.json"]) == [("package.json", "lines")]


def test_order_is_by_name_whatever_the_listing_says(tree, monkeypatch):
    before = names([tree])
    listing = os.scandir

    class Backwards:
        def __init__(self, path):
            with listing(path) as entries:
                self._entries = sorted(entries, key=lambda entry: entry.name, reverse=True)

        def __enter__(self):
            return iter(self._entries)

        def __exit__(self, *_):
            return None

    monkeypatch.setattr(os, "scandir", Backwards)
    assert names([tree]) == before


def test_an_input_that_is_not_there_matches_nothing_or_comes_twice_is_refused(tree):
    for inputs, include in (
        ([tree / "gone"], ()),
        ([f"{tree}/*.gone"], ()),
        ([tree], ["*.gone"]),
        ([tree, tree / "b.py"], ()),
    ):
        with pytest.raises(ConfigError):
            discover([str(path) for path in inputs], include)


def test_many_plain_files_share_one_entry_of_the_manifest(tree):
    scans = [scan(file, 1000, {}) for file in discover([str(tree)])]
    assert origins_of(scans) == [(i, 0) for i in range(5)]
    entries = input_entries(scans, limit=4)
    assert [entry.path for entry in entries] == ["data.jsonl", "(4 plain files)"]
    assert origins_of(scans, limit=4) == [(1, 0), (1, 1), (1, 2), (0, 0), (1, 3)]


ROWS = [{"text": None if i % 7 == 0 else f"row {i} " + "w" * (i % 50), "n": i} for i in range(1_000)]


def test_parquet_gives_the_documents_of_jsonl(tmp_path, build, jsonl, texts):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "in.parquet", row_group_size=300)
    from_parquet = build(tmp_path / "in.parquet", "--shard-tokens", 2_000, output=tmp_path / "p")
    from_jsonl = build(jsonl(ROWS), "--shard-tokens", 2_000, output=tmp_path / "j")
    assert texts(from_parquet) == texts(from_jsonl) == [row["text"] for row in ROWS if row["text"]]
    assert len(list(from_parquet.glob("*.tar.zst"))) > 3
    counts = [json.loads((folder / "manifest.json").read_bytes())["counts"] for folder in (from_parquet, from_jsonl)]
    assert counts == [{"null": 143}, {"null": 143}]


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()), pa.null()], ids=str
)
def test_every_kind_of_text_column_is_read(tmp_path, build, texts, kind):
    values = [None] * 3 if kind == pa.null() else ["null", None, "c"]
    pq.write_table(pa.table({"text": pa.array(values, kind)}), tmp_path / "in.parquet")
    output = build(tmp_path / "in.parquet", code=1 if kind == pa.null() else 0)
    if kind != pa.null():
        assert texts(output) == ["null", "c"]


def test_nested_parquet_fields_and_dots_follow_the_rule_of_jsonl(tmp_path, build, texts):
    nested = pa.Table.from_pylist([{"meta": {"text": "y", "other": 1}}, {"meta": None}])
    pq.write_table(nested, tmp_path / "nested.parquet")
    assert texts(build(tmp_path / "nested.parquet", "--text-field", "meta.text", output=tmp_path / "a")) == ["y"]
    literal = pa.Table.from_pylist([{"meta.text": "x", "meta": {"text": "y"}}])
    pq.write_table(literal.select(["meta.text"]), tmp_path / "literal.parquet")
    assert texts(build(tmp_path / "literal.parquet", "--text-field", "meta.text", output=tmp_path / "b")) == ["x"]
    pq.write_table(literal, tmp_path / "both.parquet")
    build(tmp_path / "both.parquet", "--text-field", "meta.text", output=tmp_path / "c", code=1)


def test_broken_parquet_and_missing_columns_are_errors_that_name_the_file(tmp_path, build, capsys):
    pq.write_table(pa.table({"body": ["a"] * 100}), tmp_path / "in.parquet")
    build(tmp_path / "in.parquet", code=2)
    error = capsys.readouterr().err
    assert "in.parquet" in error
    assert "body" in error
    data = (tmp_path / "in.parquet").read_bytes()
    for cut in (0, 3, len(data) // 2, len(data) - 1):
        (tmp_path / "in.parquet").write_bytes(data[:cut])
        build(tmp_path / "in.parquet", code=1)
        assert "in.parquet" in capsys.readouterr().err


def test_text_that_is_bytes_or_not_utf8_is_a_bad_row(tmp_path, build, texts, capsys):
    broken = pa.array([b"good", b"\xff\xfe", b"fine"], pa.binary()).view(pa.string())
    for name, column in (("bytes", pa.array([b"good"], pa.binary())), ("utf8", broken)):
        pq.write_table(pa.table({"text": column}), tmp_path / f"{name}.parquet", store_schema=False)
        build(tmp_path / f"{name}.parquet", output=tmp_path / name, code=1)
        assert f"{name}.parquet: row" in capsys.readouterr().err
    output = build(tmp_path / "utf8.parquet", "--on-bad-row", "count", output=tmp_path / "counted")
    assert texts(output) == ["good", "fine"]


def test_one_huge_row_group_is_read_in_small_batches(tmp_path):
    values = [random.Random(i).randbytes(1_000).hex() for i in range(30_000)]
    pq.write_table(pa.table({"text": values}), tmp_path / "in.parquet", row_group_size=30_000)
    (file,) = discover([str(tmp_path / "in.parquet")])
    before, peak = pa.total_allocated_bytes(), 0
    reader = TextReader(FieldPath.parse("text"))
    for i, text in enumerate(reader.read([Unit(file, 0, 30_000)], Tally())):
        assert text.text == values[i]
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert i == 29_999
    assert peak < 20e6, "of 60 MB"
