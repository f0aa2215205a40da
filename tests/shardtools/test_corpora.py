"""Ways of storing rows: whatever the container, the rows are those that line-by-line JSON would give."""

import gzip
import io
import json
import sys
import tarfile
from dataclasses import replace
from importlib.metadata import EntryPoint
from itertools import product
from types import ModuleType

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from shardtools.corpus import known
from shardtools.corpus.fields import FieldPath
from shardtools.corpus.files import InputFile
from shardtools.corpus.formats.lines import LINES
from shardtools.corpus.inputs import discover
from shardtools.corpus.known import known_corpora
from shardtools.corpus.rows import RowReader
from shardtools.corpus.scan import scan
from shardtools.corpus.tally import Tally
from shardtools.corpus.texts import TextReader
from shardtools.looking.documents import origin_of
from streampipe.errors import ConfigError, SourceError
from streampipe.shards import Source

CHATS = [
    {"messages": [{"role": "user", "content": f"q {i}"}, {"role": "assistant", "content": "a" * i}], "id": i}
    for i in range(40)
]


def read(argument, unit=1, on_bad_row="error"):
    """Returns [(place, row)] of an argument, unit by unit, and the counts."""
    tally, reader, found = Tally(on_bad_row), RowReader(), []
    for file in discover([str(argument)]):
        units = scan(file, unit, {}).units
        found.append([(row.row, row.value) for unit in units for row in reader.read([unit], tally)])
        assert found[-1] == [(row.row, row.value) for row in reader.read(units, Tally(on_bad_row))]
    return [row for rows in found for row in rows], dict(tally.reasons)


def rows_of(argument, unit=1):
    return [value for _, value in read(argument, unit)[0]]


def packed(data, packing):
    if packing == ".gz":
        return gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :])
    if packing == ".zst":
        return b"".join(zstandard.compress(part) for part in (data[:7], data[7:]))
    return data


def write(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    return tmp_path / name


# JSON


@pytest.mark.parametrize(("packing", "indent"), list(product(["", ".gz", ".zst"], [None, 2])))
@pytest.mark.parametrize("unit", [1, 500, 1 << 30])
def test_an_array_of_rows_gives_what_json_gives(tmp_path, packing, indent, unit):
    rows = [*CHATS, {"text": 'brackets ]}[{ and quotes \\" , in text \\'}, {"empty": {}, "list": []}]
    data = json.dumps(rows, indent=indent, ensure_ascii=False).encode()
    found, counts = read(write(tmp_path, f"in.json{packing}", packed(data, packing)), unit)
    assert found == list(enumerate(rows))
    assert counts == {}


@settings(deadline=None)
@given(
    rows=st.lists(
        st.dictionaries(
            st.text(max_size=3), st.recursive(st.text(max_size=4) | st.none() | st.integers(), st.lists), max_size=3
        ),
        max_size=5,
    ),
    unit=st.integers(1, 40),
    ascii_only=st.booleans(),
)
def test_any_array_cut_anywhere_gives_its_rows_once(tmp_path_factory, rows, unit, ascii_only):
    text = json.dumps(rows, ensure_ascii=ascii_only)
    path = tmp_path_factory.mktemp("a") / "in.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    if rows and not any("\ud800" <= c <= "\udfff" for c in text):
        assert rows_of(path, unit) == json.loads(text)


@pytest.mark.parametrize(
    ("data", "good", "reason"),
    [
        (b'[{"a":1},{"a":2},{"a"', 2, "malformed"),
        (b'[{"a":1},{"a":2}', 2, "malformed"),
        (b'[{"a":1},{"a":2},', 2, "malformed"),
        (b'[{"a":1},{"a":2}] {"a":3}', 2, "malformed"),
        (b'[{"a":1} {"a":2}]', 1, "malformed"),
        (b'[{"a":1},{"a":"\xff"},{"a":3}]', 2, "not_utf8"),
        (b"[", 0, "malformed"),
    ],
)
@pytest.mark.parametrize("unit", [1, 1000])
def test_a_damaged_array_is_an_error_or_one_counted_row_never_a_shorter_array(tmp_path, data, good, reason, unit):
    path = write(tmp_path, "in.json", data)
    with pytest.raises(SourceError, match=r"in\.json"):
        read(path, unit)
    found, counts = read(path, unit, "count")
    assert len(found) == good
    assert counts == {reason: 1}


def test_json_lines_of_lists_stay_lines(tmp_path):
    path = write(tmp_path, "in.json", b'[{"role":"user"}]\n[{"role":"system"}]\n')
    assert rows_of(path) == [[{"role": "user"}], [{"role": "system"}]]


def test_lists_that_begin_with_null_and_keys_of_two_types_are_read_as_they_are(tmp_path):
    rows = [
        {"messages": [None, {"a": i}], "ids": [None, 1], "arguments": {"time": i if i % 2 else str(i)}}
        for i in range(99)
    ]
    path = write(tmp_path, "in.jsonl", b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    assert rows_of(path, 1000) == [json.loads(line) for line in path.read_bytes().splitlines()] == rows


# Parquet and Arrow


TOOLS = [
    {"tool": {"name": "f", "parameters": {"city": {"type": "x"}}}},
    {"tool": {"name": "g", "parameters": {"x": {"type": "y"}}}},
]


def write_columns(tmp_path, rows, kind):
    table = pa.Table.from_pylist(rows)
    path = tmp_path / f"in.{'parquet' if kind == 'parquet' else 'arrow'}"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=15)
    else:
        opened = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with opened(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    return path


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
@pytest.mark.parametrize("unit", [1, 10, 1000])
def test_nested_columns_give_the_rows_of_json_lines(tmp_path, kind, unit):
    found, _ = read(write_columns(tmp_path, CHATS, kind), unit)
    assert found == list(enumerate(CHATS))


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_no_row_gets_keys_of_another_rows_dict(tmp_path, kind):
    assert rows_of(write_columns(tmp_path, TOOLS, kind)) == TOOLS


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_an_arrow_file_cut_anywhere_is_an_error(tmp_path, kind):
    path = write_columns(tmp_path, CHATS, kind)
    data = path.read_bytes()
    for cut in range(0, len(data), 97):
        path.write_bytes(data[:cut])
        with pytest.raises(SourceError, match=r"in\.arrow"):
            read(path)
    path.write_bytes(data[: len(data) - 8])  # a stream without its end marker
    with pytest.raises(SourceError, match=r"in\.arrow"):
        read(path)


def test_a_nested_row_group_too_large_to_be_read_whole_is_read_in_batches(tmp_path):
    large, count = "x" * 1_000_000, 2_300  # pyarrow reads no row group of more than 2 GiB of nested text
    row = pa.Table.from_pylist([{"messages": [{"role": "user", "content": large}]}])
    pq.write_table(pa.concat_tables([row] * count), tmp_path / "in.parquet", row_group_size=count)
    (file,) = discover([str(tmp_path / "in.parquet")])
    assert pq.ParquetFile(file.path).num_row_groups == 1
    before, peak, read = pa.total_allocated_bytes(), 0, 0
    for row in RowReader().read(scan(file, 1000, {}).units, Tally()):
        assert row.value["messages"][0]["content"] == large
        peak, read = max(peak, pa.total_allocated_bytes() - before), read + 1
    assert read == count
    assert peak < 200e6, "of 2.3 GB"


# Folders saved by `datasets`, and the Hub


@pytest.fixture(scope="module")
def datasets():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")  # read when the library is imported
        return pytest.importorskip("datasets")


@pytest.fixture
def cache(tmp_path, monkeypatch, datasets):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path


@pytest.mark.filterwarnings("ignore")
def test_a_saved_data_set_is_its_rows_and_none_of_its_descriptions(cache, datasets, tmp_path):
    saved = datasets.Dataset.from_list(CHATS)
    saved.save_to_disk(tmp_path / "saved", num_shards=3)
    assert rows_of(tmp_path / "saved") == CHATS
    datasets.DatasetDict(train=saved).save_to_disk(tmp_path / "one")
    assert rows_of(tmp_path / "one") == CHATS
    datasets.DatasetDict(train=saved, test=saved).save_to_disk(tmp_path / "two")
    with pytest.raises(ConfigError, match="test, train"):
        discover([str(tmp_path / "two")])
    assert rows_of(tmp_path / "two" / "test") == CHATS
    next((tmp_path / "saved").glob("*.arrow")).unlink()
    with pytest.raises(SourceError, match="not there"):
        discover([str(tmp_path / "saved")])


@pytest.mark.filterwarnings("ignore")
def test_json_columns_of_a_data_set_keep_each_rows_own_shape(cache, datasets, tmp_path):
    if not hasattr(datasets, "Json"):
        pytest.skip("this release of datasets has no Json columns")
    rows = [{"calls": [{"time": 1}]}, {"calls": [{"time": "noon", "zone": None}]}, {"calls": None}]
    features = datasets.Features({"calls": datasets.List(datasets.Json())})
    saved = datasets.Dataset.from_list(rows, features=features)
    saved.save_to_disk(tmp_path / "saved")
    saved.to_parquet(tmp_path / "in.parquet")
    assert rows_of(tmp_path / "saved") == rows_of(tmp_path / "in.parquet") == rows


@pytest.mark.filterwarnings("ignore")
def test_a_data_set_is_streamed_from_the_hub_in_parts_that_can_be_cut(cache, datasets, tmp_path):
    folder = tmp_path / "hub"
    folder.mkdir()
    for i in range(3):
        rows = CHATS[i * 10 : i * 10 + 10]
        (folder / f"train-{i}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    address = f"hf:{folder}:train"
    assert [file.kind for file in discover([address])] == ["hub"] * 3
    for unit in (1, 3, 1000):
        assert rows_of(address, unit) == CHATS[:30]
    first = [scan(file, 4, {}) for file in discover([address])]
    assert first == [scan(file, 4, {}) for file in discover([address])]
    for wrong in ("hf:owner/name", f"hf:{folder}:train:train:train", f"hf:{folder}@main"):
        with pytest.raises(ConfigError, match="hf:owner/name:split"):
            discover([wrong])
    with pytest.raises(SourceError, match="cannot be opened"):
        discover([f"hf:{folder}:no_such_split"])


# Tars


def tar_of(members, format=tarfile.USTAR_FORMAT):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if data is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                tar.addfile(info)
            else:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


SAMPLES = [
    ("a/0.txt", b"zero"),
    ("a/1.json", b'{"text":"one"}'),
    ("a/2.jsonl.gz", gzip.compress(b'{"text":"two"}\n\n{"text":"three"}\n')),
    ("a/3.txt", b"four"),
    ("a/3.json", b'{"id":4}'),
    ("a/3.jpg", b"\xff\xd8"),
    ("a/4.txt.zst", zstandard.compress("fünf".encode())),
    ("a/" + "long" * 40 + ".txt", b"six"),
]
WANTED = ["zero", "one", "two", "three", "four", "fünf", "six"]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("packing", ["", ".gz", ".zst"])
@pytest.mark.parametrize("unit", [1, 2000, 1 << 30])
def test_a_tar_of_samples_gives_a_row_for_each(tmp_path, format, packing, unit):
    members = [(name if format or len(name) < 100 else "a/6.txt", data) for name, data in SAMPLES]
    found, counts = read(write(tmp_path, f"in.tar{packing}", packed(tar_of(members, format), packing)), unit)
    assert [row["text"] for _, row in found] == WANTED
    assert found[4][1] == {"text": "four", "id": 4}
    places = [place for place, _ in found]
    assert places == sorted(set(places))
    assert counts == {}


def test_a_tar_without_its_end_or_with_another_behind_it_is_an_error(tmp_path):
    data = tar_of([(f"{i}.txt", b"t" * 700) for i in range(4)])
    end = 4 * (512 + 1024)
    for cut in (0, 512, 512 + 1024, 2 * (512 + 1024), end - 512, end):
        with pytest.raises(SourceError, match=r"in\.tar"):
            read(write(tmp_path, "in.tar", data[:cut]))
    with pytest.raises(SourceError, match="split joined tars"):
        read(write(tmp_path, "in.tar", data + data))
    broken = bytearray(data)
    broken[1536 + 5] ^= 1
    with pytest.raises(SourceError, match="damaged"):
        read(write(tmp_path, "in.tar", bytes(broken)))
    assert rows_of(write(tmp_path, "in.tar", tar_of([]))) == []


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("0.txt", None)], "not_a_file"),
        ([("0.txt", b"a"), ("0.json", b'{"text":"b"}')], "ambiguous"),
        ([("0.txt", b"a"), ("0.txt", b"b")], "ambiguous"),
        ([("0.txt", b"a"), ("0.txt.gz", gzip.compress(b"b"))], "ambiguous"),
        ([("0.txt", b"\xff")], "not_utf8"),
        ([("0.json", b'{"text"')], "malformed"),
    ],
)
def test_a_sample_that_cannot_be_read_is_an_error_or_counted(tmp_path, members, reason):
    path = write(tmp_path, "in.tar", tar_of([*members, ("1.txt", b"good")]))
    with pytest.raises(SourceError, match=r"in\.tar: row 1"):
        read(path)
    found, counts = read(path, 1, "count")
    assert [row for _, row in found] == [{"text": "good"}]
    assert counts == {reason: 1}


def test_samples_whose_files_are_not_together_are_an_error(tmp_path):
    path = write(tmp_path, "in.tar", tar_of([("0.txt", b"a"), ("1.txt", b"b"), ("0.json", b"{}")]))
    with pytest.raises(SourceError, match="'0'"):
        read(path)


def test_a_file_of_a_tar_that_unpacks_too_far_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("shardtools.corpus.formats.tars.MAX_MEMBER_BYTES", 1_000_000)
    path = write(tmp_path, "in.tar", tar_of([("0.txt.zst", zstandard.compress(bytes(50_000_000)))]))
    with pytest.raises(SourceError, match=r"0\.txt\.zst"):
        read(path)


# Every corpus builds, and another one can be added


@pytest.mark.filterwarnings("ignore")
def test_every_corpus_builds_the_same_texts(tmp_path, build, texts):
    rows = [{"text": f"row {i} " + "w " * i} for i in range(30)]
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    inputs = [
        write(tmp_path, "in.jsonl", lines),
        write(tmp_path, "array.json", json.dumps(rows).encode()),
        write(
            tmp_path,
            "in.tar.zst",
            zstandard.compress(tar_of([(f"{i:03}.json", json.dumps(row).encode()) for i, row in enumerate(rows)])),
        ),
        write_columns(tmp_path, rows, "stream"),
        write_columns(tmp_path, rows, "parquet"),
    ]
    found = [sorted(texts(build(path, output=tmp_path / f"source-{i}"))) for i, path in enumerate(inputs)]
    assert found == [sorted(row["text"] for row in rows)] * len(inputs)


def test_a_package_of_ones_own_adds_a_corpus(tmp_path, monkeypatch):
    mine = replace(LINES, kind="mine", packing=lambda name, records: "" if name.endswith(".mine") else None)
    package = ModuleType("a_package_of_ones_own")
    package.MINE = mine
    monkeypatch.setitem(sys.modules, "a_package_of_ones_own", package)
    point = EntryPoint("mine", "a_package_of_ones_own:MINE", known.GROUP)
    monkeypatch.setattr(known, "entry_points", lambda group: [point] if group == known.GROUP else [])
    known_corpora.cache_clear()
    try:
        path = write(tmp_path, "in.mine", b'{"text":"a"}\n')
        assert [file.kind for file in discover([str(path)])] == ["mine"]
        assert rows_of(path) == [{"text": "a"}]
        for wrong in ("a_package_of_ones_own:NONE", "no_such_package:X", "json:loads"):
            known_corpora.cache_clear()
            monkeypatch.setattr(known, "entry_points", lambda group, w=wrong: [EntryPoint("bad", w, known.GROUP)])
            with pytest.raises(ConfigError, match="bad"):
                known_corpora()
    finally:
        monkeypatch.undo()
        known_corpora.cache_clear()
    with pytest.raises(ConfigError, match="mine"):
        scan(InputFile("x", "x", "", 1, "mine"), 1, {})


# One answer for each oddity, whatever the container (docs/building.md)

ODD = [
    (b'{"text":"a","text":"b"}', "b"),
    (b'{"text":"a\\u0000b"}', "a\0b"),
    (b'{"text":"a\0b"}', "a\0b"),
    (b'{"text":"a","x":NaN}', "a"),
    (b'{"text":"a","x":-Infinity}', "a"),
    (b'{"text":"a","x":"\\ud800"}', "a"),
    (b'{"text":"\\ud83d\\ude42"}', "🙂"),
    (b'{"text":"null"}', "null"),
    (b'{"text":null}', "null: null"),
    (b"{}", "null: missing"),
    (b'{"text":""}', "null: empty"),
    (b'{"text":" \\u00a0\\n"}', "null: blank"),
    (b'{"text":NaN}', "bad: wrong_type"),
    (b'{"text":"a\\ud800"}', "bad: lone_surrogate"),
    (b'{"text":"\xff"}', "bad: not_utf8"),
    (b"[1]", "bad: not_an_object"),
    (b'"text"', "bad: not_an_object"),
]


@pytest.mark.parametrize(("row", "answer"), ODD)
def test_odd_rows_have_one_answer_in_lines_arrays_and_tars(tmp_path, row, answer):
    paths = [
        write(tmp_path, "in.jsonl", b'{"text":"before"}\n' + row + b'\n{"text":"after"}\n'),
        write(tmp_path, "in.json", b'[\n{"text":"before"},' + row + b',{"text":"after"}]'),
        write(tmp_path, "in.tar", tar_of([("0.json", b'{"text":"before"}'), ("1.json", row), ("2.txt", b"after")])),
    ]
    for path in paths:
        reader = TextReader(FieldPath.parse("text"))
        (file,) = discover([str(path)])
        units, tally = scan(file, 1 << 20, {}).units, Tally("count")
        found = [text.text for text in reader.read(units, tally)]
        kind, _, reason = answer.partition(": ")
        if reason:
            assert (found, dict(tally.reasons)) == (["before", "after"], {reason: 1})
        else:
            assert (found, dict(tally.reasons)) == (["before", answer, "after"], {})
        if kind == "bad":
            with pytest.raises(SourceError, match="--on-bad-row count"):
                list(reader.read(units, Tally()))
        else:
            list(reader.read(units, Tally()))


def test_every_container_is_read_from_urls_too(tmp_path):
    memory = fsspec.filesystem("memory")
    rows = [{"text": f"{i}"} for i in range(5)]
    stream = write_columns(tmp_path, rows, "stream").read_bytes()
    memory.pipe(
        {
            "/corpora/in.json.gz": gzip.compress(json.dumps(rows).encode()),
            "/corpora/in.tar.zst": zstandard.compress(tar_of([(f"{i}.txt", b"%d" % i) for i in range(5)])),
            "/corpora/saved/data-00000-of-00001.arrow": stream,
            "/corpora/saved/dataset_info.json": b"{}",
            "/corpora/saved/state.json": json.dumps(
                {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
            ).encode(),
        }
    )
    for name in ("in.json.gz", "*.json.gz", "in.tar.zst", "saved"):
        assert rows_of(f"memory://corpora/{name}") == rows, name


@pytest.mark.filterwarnings("ignore")
def test_a_data_set_of_the_hub_builds_the_texts_and_tells_their_origin(cache, datasets, tmp_path, build, texts):
    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": f"row {i}"}) + "\n" for i in range(9)))
    output = build(f"hf:{folder}:train", "--shuffle", "none")
    assert texts(output) == [f"row {i}" for i in range(9)]
    manifest = json.loads((output / "manifest.json").read_bytes())
    (entry,) = manifest["inputs"]
    assert entry["path"] == f"hf:{folder}:train#00000/1"
    assert entry["bytes"] > 0
    source = Source.open("hub", str(output))
    assert origin_of(source, 3) == f"{entry['path']}:4"
