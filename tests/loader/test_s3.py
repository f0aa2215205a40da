"""Streaming from, and building to, a real S3 server."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from laws import assert_same_future, take
from streams import CODE, WEB, raw_stream, stream_of, write_source, write_stream

from shardtools.cli import main as shardtools
from streampipe import ShardCorruptError, ShardMissingError, StreamConfig, build_loader, config_from
from streampipe.cli import main as streampipe
from streampipe.storage import open_store
from streampipe.tools.digest import digest_steps

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

Options = dict[str, object]


def with_options(folder: str, options: Options, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    raw = raw_stream(folder, changes)
    for source in raw["sources"]:
        source["storage"] = options
    return raw


@pytest.fixture(scope="module")
def bucket(s3_options: Options) -> str:
    url = f"s3://bucket/{uuid4().hex}"
    write_source(f"{url}/web", 0, WEB, options=s3_options)
    write_source(f"{url}/code", 1, CODE, options=s3_options)
    return url


def on_s3(bucket: str, options: Options, changes: dict[str, Any] | None = None) -> StreamConfig:
    return config_from(with_options(bucket, options, changes))


@pytest.mark.parametrize(("dp_size", "workers"), [(1, 0), (4, 0), (2, 2)])
def test_a_bucket_gives_the_digests_of_the_local_copy(
    corpora: Path, bucket: str, s3_options: Options, dp_size: int, workers: int
) -> None:
    config = on_s3(bucket, s3_options, {"loader.num_workers": workers})
    local = [step["sha256"] for step in digest_steps(stream_of(corpora), 8, 1)]
    assert [step["sha256"] for step in digest_steps(config, 8, dp_size)] == local


def test_a_run_moves_from_a_disk_to_a_bucket_and_goes_on(corpora: Path, bucket: str, s3_options: Options) -> None:
    whole = take(stream_of(corpora), 16)
    assert_same_future(take(on_s3(bucket, s3_options), 8, None, whole[7]["cursor"]), whole[8:])


def test_the_command_line_takes_a_config_with_storage_options(
    corpora: Path, bucket: str, s3_options: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "stream.yaml"
    config.write_text(json.dumps(with_options(bucket, s3_options)))
    local = write_stream(tmp_path / "local.yaml", corpora)
    printed = []
    for path in (config, local):
        assert streampipe(["digest", "--config", str(path), "--steps", "3", "--json"]) == 0
        printed.append(json.loads(capsys.readouterr().out))
    assert printed[0] == printed[1]


def test_a_damaged_and_a_missing_object_are_named_with_their_url_and_without_secrets(s3_options: Options) -> None:
    url = f"s3://bucket/{uuid4().hex}"
    write_source(f"{url}/web", 0, WEB, options=s3_options)
    write_source(f"{url}/code", 1, CODE, options=s3_options)
    store = open_store(f"{url}/web", s3_options)
    data = store.read("train-00000.tar.zst")
    store.write("train-00000.tar.zst", data[: len(data) // 2])
    with build_loader(on_s3(url, s3_options)) as loader, pytest.raises(ShardCorruptError) as corrupt:
        for _ in loader:
            pass
    assert f"{url}/web/train-00000.tar.zst" in str(corrupt.value)
    store.delete("train-00000.tar.zst")
    with build_loader(on_s3(url, s3_options)) as loader, pytest.raises(ShardMissingError) as missing:
        for _ in loader:
            pass
    assert "train-00000.tar.zst" in str(missing.value)
    assert "testsecret" not in f"{corrupt.value!r}{missing.value!r}"


def test_what_shardtools_builds_to_a_bucket_trains_like_a_local_build(
    s3_endpoint: str, s3_options: Options, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, tokenizer = tmp_path / "corpus.jsonl", str(tmp_path / "tokenizer.json")
    texts = [f"{name} {i}: " + " ".join(f"{name}{i * j}" for j in range(i % 40)) for i in range(200) for name in "ab"]
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert shardtools(["train-tokenizer", str(corpus), "--vocab-size", "300", "--output", tokenizer]) == 0
    s3, local = f"s3://bucket/{uuid4().hex}", str(tmp_path / "built")
    options = [word for key, value in s3_options.items() for word in ("--storage-option", f"{key}={value}")]
    cuts = ["--frame-tokens", "500", "--shard-tokens", "4000"]
    build = ["build", str(corpus), "--tokenizer", tokenizer, "--workers", "2", *cuts, "--output"]
    assert shardtools([*build, s3, *options]) == 0
    assert shardtools([*build, local]) == 0
    assert shardtools(["verify", s3, *options]) == 0
    assert open_store(s3, s3_options).read("manifest.json") == open_store(local).read("manifest.json")
    capsys.readouterr()

    def digests(path: str, storage: Options) -> list[dict[str, Any]]:
        source = {"name": "corpus", "path": path, "storage": storage, "epochs": 2}
        batch = {"global_batch_size": 8, "micro_batch_size": 2}
        return list(digest_steps(config_from({"seq_length": 128, "sources": [source], "batch": batch}), 100, 2))

    assert digests(s3, s3_options) == digests(local, {})
    assert len(digests(local, {})) > 10
