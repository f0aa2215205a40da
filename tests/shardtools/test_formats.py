"""What was built is read by tools that know nothing of streampipe."""

import io
import shutil
import subprocess
import tarfile

import duckdb
import numpy as np
import pytest
import webdataset

SMALL = ("--shard-tokens", 8_000, "--frame-tokens", 1_000)


@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the zstd command")
def test_zstd_and_tar_list_every_document(build, corpus, documents):
    folder = build(corpus, *SMALL)
    names = []
    for shard in sorted(folder.glob("*.tar.zst")):
        done = subprocess.run(f"zstd -dc '{shard}' | tar t", shell=True, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        names += done.stdout.split()
    assert names == [f"{key}.tokens.npy" for key in documents(folder)]


@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs the zstd command")
def test_webdataset_reads_every_document(build, corpus, documents):
    folder = build(corpus, *SMALL)
    wanted = documents(folder)
    found = {}
    for shard in sorted(folder.glob("*.tar.zst")):
        for sample in webdataset.WebDataset(f"pipe:zstd -dcq {shard}", shardshuffle=False).decode():
            found[sample["__key__"]] = sample["tokens.npy"]
    assert found.keys() == wanted.keys()
    assert all(np.array_equal(found[key], wanted[key]) for key in wanted)


def test_duckdb_counts_the_tokens_of_all_indexes(build, corpus, documents):
    folder = build(corpus, *SMALL)
    tokens = sum(len(ids) for ids in documents(folder).values())
    query = f"select sum(tokens), sum(documents), sum(list_sum(lengths)) from '{folder}/*.index.parquet'"
    assert duckdb.sql(query).fetchall() == [(tokens, 400, tokens)]


def test_without_compression_the_shard_is_a_plain_tar(build, corpus, documents, tmp_path):
    plain = build(corpus, *SMALL, "--compression", "none", output=tmp_path / "plain")
    packed = documents(build(corpus, *SMALL, output=tmp_path / "packed"))
    found = {}
    for shard in sorted(plain.glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                found[member.name] = np.load(io.BytesIO(tar.extractfile(member).read()))
    assert [name.removesuffix(".tokens.npy") for name in found] == list(packed)
    assert all(np.array_equal(found[f"{key}.tokens.npy"], ids) for key, ids in packed.items())
