"""Reading rows: laws 4 and 5. Nothing is lost, nothing invented, everything left out is counted."""

import gzip
import json
import subprocess
import sys

import pytest
import zstandard
from tokenizers import Tokenizer

from shardtools.corpus.inputs import discover
from shardtools.corpus.scan import scan
from shardtools.corpus.tally import Tally
from shardtools.corpus.texts import FieldPath, TextReader
from streampipe.errors import SourceError


def read(path, field="text", on_bad_row="error", unit=1 << 20):
    """Returns the texts and the counts of one file, read unit by unit."""
    tally = Tally(on_bad_row)
    reader = TextReader(FieldPath.parse(field))
    units = [piece for file in discover([str(path)]) for piece in scan(file, unit, {}).units]
    return [text.text for text in reader.read(units, tally)], dict(tally.reasons)


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_a_byte_order_mark_at_a_line_start_is_no_text(jsonl, bom):
    part = bom + '{"text":"a\ufeffb"}\n{"text":"c"}\n'.encode()
    assert read(jsonl(part + part))[0] == ["a\ufeffb", "c"] * 2


def test_only_a_newline_ends_a_line(jsonl):
    line = '{"text":"one\u2028two\u0085three\x1efour"}'.encode()
    assert read(jsonl(line + b"\r\n" + line))[0] == ["one\u2028two\u0085three\x1efour"] * 2


def test_crlf_gives_the_same_texts_as_lf(jsonl):
    rows = b'{"text":"a"}\n{"text":"b"}\n'
    assert read(jsonl(rows)) == read(jsonl(rows.replace(b"\n", b"\r\n"), "crlf.jsonl"))


def test_blank_lines_are_skipped_and_rows_around_them_survive(jsonl):
    assert read(jsonl(b'\n{"text":"a"}\n\n   \n\t\r\n{"text":"b"}\n\n')) == (["a", "b"], {})


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"text":"a"}{"text":"b"}', "malformed"),
        (b'{"text":"abc', "malformed"),
        (b'{"text":1}', "wrong_type"),
        (b'{"text":["a"]}', "wrong_type"),
        (b'["text"]', "not_an_object"),
        (b'{"text":"\xff"}', "not_utf8"),
        (b'{"text":"a\\ud800b"}', "lone_surrogate"),
        (b"[" * 100_000, "malformed"),
        (b'{"text.x":"a"', "malformed"),
    ],
)
def test_a_bad_row_is_an_error_with_its_line_or_counted_on_request(jsonl, bad, reason):
    path = jsonl(b'{"text":"before"}\n\n' + bad + b'\n{"text":"after"}\n')
    with pytest.raises(SourceError, match=r"in\.jsonl:3: .*--on-bad-row count"):
        read(path)
    assert read(path, on_bad_row="count") == (["before", "after"], {reason: 1})


def test_rows_without_a_text_are_counted_by_reason(jsonl):
    rows = [{"text": None}, {"text": "null"}, {}, {"text": ""}, {"text": " "}, {"text": "\u00a0"}, {"text": "b"}]
    assert read(jsonl(rows)) == (["null", "b"], {"null": 1, "missing": 1, "empty": 1, "blank": 2})


def test_a_column_of_nulls_that_becomes_text_late_is_read(jsonl):
    rows = [{"text": "a" * 500, "title": None}] * 5_000 + [{"text": "last", "title": "abc"}]
    assert len(read(jsonl(rows), "text")[0]) == 5_001
    assert read(jsonl(rows), "title") == (["abc"], {"null": 5_000})


def test_odd_values_in_other_fields_do_not_matter(jsonl):
    lines = b'{"text":"a","x":NaN}\n{"x":[null,1],"text":"b"}\n{"x":"\\udc00","text":"c"}\n{"x":' + b"9" * 30
    assert read(jsonl(lines + b',"text":"d"}\n'))[0] == ["a", "b", "c", "d"]


def test_a_key_with_a_dot_wins_over_a_nested_one_and_both_are_ambiguous(jsonl):
    both = {"meta.text": "x", "meta": {"text": "y"}}
    assert read(jsonl([{"meta.text": "x"}, {"meta": {"text": "y"}}]), "meta.text")[0] == ["x", "y"]
    with pytest.raises(SourceError, match="both"):
        read(jsonl([both]), "meta.text")
    assert read(jsonl([both]), r"meta\.text")[0] == ["x"]


@pytest.mark.parametrize("unit", [1, 7, 20, 64, 1000])
def test_units_of_any_size_hold_each_line_once(jsonl, unit):
    wanted = [f"{'x' * (i % 40)}{i}" for i in range(200)]
    for ending in (b"\n", b""):
        data = b"\n".join(json.dumps({"text": text}).encode() for text in wanted) + ending
        assert read(jsonl(data), unit=unit)[0] == wanted


def compress(parts, packing):
    if packing == "gz":
        return [gzip.compress(part, mtime=0) for part in parts]
    return [zstandard.ZstdCompressor().compress(part) for part in parts]


@pytest.mark.parametrize("packing", ["gz", "zst"])
@pytest.mark.parametrize("unit", [50, 5_000])
def test_all_frames_of_a_compressed_file_are_read(jsonl, packing, unit):
    rows = [json.dumps({"text": f"row {i} " + "word " * (i % 30)}).encode() + b"\n" for i in range(300)]
    stream = b"".join(rows)
    parts = compress([stream[:1000], b"", stream[1000:1010], stream[1010:]], packing)
    skippable = b"\x50\x2a\x4d\x18\x05\x00\x00\x00hello" if packing == "zst" else b""
    path = jsonl(skippable + b"".join(parts), f"in.jsonl.{packing}")
    plain, _ = read(jsonl(stream), unit=unit)
    assert read(path, unit=unit)[0] == plain
    # any run of units can be read on its own
    (file,) = discover([str(path)])
    units = scan(file, unit, {}).units
    reader = TextReader(FieldPath.parse("text"))
    middle = len(units) // 2
    halves = [list(reader.read(half, Tally())) for half in (units[:middle], units[middle:])]
    assert [text.text for half in halves for text in half] == plain
    assert [text.row for half in halves for text in half] == list(range(300))


@pytest.mark.parametrize("packing", ["gz", "zst"])
def test_every_truncation_of_a_compressed_file_is_an_error(jsonl, packing):
    parts = compress([b'{"text":"a"}\n' * 50, b'{"text":"b"}\n' * 50], packing)
    data = b"".join(parts)
    for cut in range(len(data)):
        if cut == len(parts[0]):
            continue  # a whole frame is a whole file
        path = jsonl(data[:cut], f"in.jsonl.{packing}")
        with pytest.raises(SourceError, match=rf"in\.jsonl\.{packing}"):
            read(path)


@pytest.mark.parametrize("packing", ["gz", "zst"])
@pytest.mark.parametrize("junk", [b"x", b"junk behind the end", b'{"text":"b"}\n'])
def test_junk_behind_compressed_data_is_an_error(jsonl, packing, junk):
    path = jsonl(compress([b'{"text":"a"}\n'], packing)[0] + junk, f"in.jsonl.{packing}")
    with pytest.raises(SourceError, match=rf"in\.jsonl\.{packing}"):
        read(path)


def test_a_file_that_changes_after_the_scan_is_an_error(jsonl):
    path = jsonl([{"text": "a"}, {"text": "b"}])
    (file,) = discover([str(path)])
    units = scan(file, 1, {}).units
    jsonl([{"text": "a"}, {"text": "c"}])
    with pytest.raises(SourceError, match="changed"):
        list(TextReader(FieldPath.parse("text")).read(units, Tally()))


@pytest.mark.parametrize("megabytes", [8, pytest.param(80, marks=pytest.mark.slow)])
@pytest.mark.parametrize("word", ["the loader reads ", "x"])
def test_a_huge_line_is_read_in_bounded_memory(tmp_path, tokenizer, documents, megabytes, word):
    path = tmp_path / "huge.jsonl"
    text = word * (megabytes * 1_000_000 // len(word))
    path.write_text('{"text":"before"}\n{"text":"' + text + '"}\n{"text":"after"}\n')
    script = (
        "import pathlib, sys; from shardtools.cli import main; code = main(sys.argv[1:]);"
        "print(pathlib.Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]); sys.exit(code)"
    )
    command = ["build", path, "--tokenizer", tokenizer, "--output", tmp_path / "out", "--workers", "1"]
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, command)], capture_output=True, text=True, check=True, timeout=120
    )
    ids = documents(tmp_path / "out")
    assert len(ids) == 3
    longest = max(ids.values(), key=len)
    assert Tokenizer.from_file(str(tokenizer)).decode(longest.tolist()) == text
    peak = int(done.stdout.split()[-1]) * 1024
    assert peak < 400e6 + 8 * path.stat().st_size, f"{peak / 1e6:.0f} MB for a line of {megabytes} MB"
