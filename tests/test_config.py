"""A config is a valid stream, or an error that names the place inside it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from streams import raw_stream, write_source

from streampipe import ConfigError, DocumentTooLongError, StreamConfig, build_loader, config_from, load_config
from streampipe.config_file import parse_setting
from streampipe.cursor import read_cursor

MINIMAL = {"seq_length": 64, "sources": [{"name": "web", "path": "s3://data/web"}]}


def with_value(path: str, value: Any) -> dict[str, Any]:
    """Return the minimal config with one value put in by its path, by hand."""
    raw: dict[str, Any] = yaml.safe_load(yaml.safe_dump(MINIMAL))
    here: Any = raw
    *heads, last = path.removeprefix("$.").replace("[0]", ".0").split(".")
    for head in heads:
        here = here[int(head)] if head.isdigit() else here.setdefault(head, {})
    here[last] = value
    return raw


def test_the_smallest_config_has_the_documented_defaults() -> None:
    config = config_from(MINIMAL)
    assert (config.seed, config.seq_length) == (0, 64)
    assert config.shuffle_of(0) == 4
    assert (config.packing.policy, config.packing.document_multiple) == ("best_fit", 1)
    assert (config.plan.windows, config.plan.resolved_window_tokens(64)) == (64, 2**20)
    assert config.plan.resolved_window_tokens(2**20) == 8 * 2**20
    assert (config.batch.layout, config.batch.labels, config.batch.token_dtype) == ("thd", "aligned", "int64")
    assert config.batch.fields == ("tokens", "labels", "position_ids", "loss_mask")
    assert config.storage.budget() == 256 * 2**20
    assert config.loader.num_workers == 0


# Values out of range: the message begins with the path of the key.


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("$.seq_length", 0),
        ("$.seq_length", -1),
        ("$.seq_length", "long"),
        ("$.seq_length", None),
        ("$.seq_length", 1.5),
        ("$.seed", "one"),
        ("$.seed", None),
        ("$.sources", []),
        ("$.sources", None),
        ("$.sources", "web"),
        ("$.sources[0].name", ""),
        ("$.sources[0].name", "n" * 65),
        ("$.sources[0].name", None),
        ("$.sources[0].path", 7),
        ("$.sources[0].weight", []),
        ("$.sources[0].epochs", 0),
        ("$.sources[0].epochs", True),
        ("$.sources[0].epochs", 1.5),
        ("$.sources[0].split", None),
        ("$.sources[0].shuffle.shards", 0),
        ("$.sources[0].shuffle.shards", True),
        ("$.sources[0].shuffle", 4),
        ("$.sources[0].storage", "fast"),
        ("$.shuffle.shards", 0),
        ("$.shuffle.shards", -3),
        ("$.shuffle.shards", "all"),
        ("$.packing.policy", "first_fit"),
        ("$.packing.overlong", "ignore"),
        ("$.packing.document_multiple", 0),
        ("$.packing.document_multiple", 7),
        ("$.plan.windows", 0),
        ("$.plan.window_tokens", 0),
        ("$.batch.layout", "bshd"),
        ("$.batch.global_batch_size", 0),
        ("$.batch.micro_batch_size", 0),
        ("$.batch.micro_batch_size", "two"),
        ("$.batch.labels", "shifted"),
        ("$.batch.token_dtype", "int16"),
        ("$.batch.fields", ["labels"]),
        ("$.batch.fields", ["tokens", "tokens"]),
        ("$.batch.fields", []),
        ("$.storage.prefetch_bytes", 0),
        ("$.storage.prefetch_bytes", -5),
        ("$.storage.prefetch_bytes", "much"),
        ("$.storage.prefetch_bytes", "1e999"),
        ("$.storage.prefetch_bytes", "nan"),
        ("$.storage.prefetch_bytes", ""),
        ("$.storage.threads", -1),
        ("$.storage.threads", 1000),
        ("$.loader.num_workers", -1),
        ("$.loader.prefetch", 0),
        ("$.loader.log_every", -1),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_path(path: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from(with_value(path, value))
    assert str(caught.value).startswith(f"{path}: ") or str(caught.value).startswith(f"{path}[")


@pytest.mark.parametrize(
    "mock",
    [
        {"documents": 0},
        {"mean": 0},
        {"mean": math.nan},
        {"mean": math.inf},
        {"sigma": -1},
        {"sigma": math.nan},
        {"min": 0},
        {"min": 9, "max": 8},
        {"max": 2**40},
        {"vocab_size": 0},
        {"mean": "long"},
        {"median": 5},
    ],
    ids=str,
)
def test_a_mock_without_lengths_is_refused_with_its_path(mock: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^\$\.sources\[0\]\.mock"):
        config_from({"seq_length": 64, "sources": [{"name": "mock", "mock": mock}]})


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("$.sede", "no such key"),
        ("$.sources[0].wieght", "no such key"),
        ("$.packing.polcy", "no such key"),
        ("$.plan.window", "no such key"),
        ("$.batch.size", "no such key"),
        ("$.storage.prefetch", "no such key"),
        ("$.loader.workers", "no such key"),
        ("$.cache", "this release does not build it yet"),
        ("$.storage.give_up_after", "this release does not build it yet"),
    ],
)
def test_a_key_that_would_be_ignored_is_refused_by_name(path: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from(with_value(path, 1))
    assert str(caught.value) == f"{path}: {told}; remove it"


SOURCE = {"name": "web", "path": "/data/web"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"batch": {"layout": "sbhd"}}, r"\$\.batch\.layout: sbhd .*'best_fit'.*set packing\.policy: none"),
        (
            {"batch": {"layout": "sbhd"}, "packing": {"policy": "concat"}},
            r"\$\.batch\.layout: sbhd .*'concat'.*set packing\.policy: none",
        ),
        ({"packing": {"policy": "concat", "document_multiple": 8}}, r"\$\.packing: `concat` .*document_multiple: 1"),
        ({"sources": [SOURCE, SOURCE]}, r"\$\.sources: two sources are named 'web'"),
        ({"sources": [SOURCE, {**SOURCE, "name": "b", "weight": 1}]}, r"\$\.sources: 'web' has no weight but others"),
        ({"sources": [{"name": "web"}]}, r"\$\.sources\[0\]: give either `path` or `mock`, but got neither"),
        ({"sources": [{**SOURCE, "mock": {}}]}, r"\$\.sources\[0\]: give either `path` or `mock`, but got both"),
        (
            {"sources": [{**SOURCE, "on_exhausted": "stop"}]},
            r"\$\.sources\[0\]\.on_exhausted: stop .*set epochs, or remove it",
        ),
        ({"sources": [{"name": "m", "mock": {}, "split": "held-out"}]}, r"\$\.sources\[0\]\.split: .* a mock .*remove"),
        (
            {"sources": [{"name": "m", "mock": {}, "storage": {"a": 1}}]},
            r"\$\.sources\[0\]\.storage: .* a mock .*remove",
        ),
    ],
)
def test_a_combination_without_meaning_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        config_from(MINIMAL | changes)


@pytest.mark.parametrize(
    "source",
    [
        SOURCE | {"on_exhausted": "renormalise", "split": "train", "storage": {}, "accept_loss": False},
        SOURCE | {"on_exhausted": "repeat", "storage": {"anon": True}},  # as for data that was staged, by an override
        {"name": "m", "mock": {}, "split": "train", "storage": {}, "accept_loss": True},
    ],
)
def test_what_does_no_harm_may_be_written_down_where_it_decides_nothing(source: dict[str, Any]) -> None:
    assert config_from(MINIMAL | {"sources": [source]})


@pytest.mark.parametrize("raw", [None, [], "seed: 1", 5, {}, {"seq_length": 5}, {"sources": []}])
def test_what_is_no_config_is_refused(raw: Any) -> None:
    with pytest.raises(ConfigError, match=r"^\$"):
        config_from(raw)


# What only opened sources can tell


@pytest.mark.parametrize("weight", [-1, -0.5, math.nan, math.inf, "1/0", "many", "-1/2", ""])
def test_a_weight_that_is_no_share_is_refused_with_its_path(tmp_path: Path, weight: Any) -> None:
    write_source(tmp_path / "web", 0, [5] * 20)
    write_source(tmp_path / "code", 1, [5] * 20)
    raw = raw_stream(tmp_path)
    raw["sources"][1]["weight"] = weight
    with pytest.raises(ConfigError, match=r"\$\.sources\[1\]\.weight: .* share of tokens"):
        build_loader(config_from(raw))


def test_a_source_without_weight_is_not_even_opened(tmp_path: Path) -> None:
    write_source(tmp_path / "web", 0, [5] * 20)
    raw = raw_stream(tmp_path)
    raw["sources"][1]["weight"] = 0
    with build_loader(config_from(raw)) as loader:
        assert set(next(loader)["source_ids"].tolist()) <= {0, -1}
    raw["sources"][0]["weight"] = 0.0
    with pytest.raises(ConfigError, match="every weight is 0"):
        build_loader(config_from(raw))


def test_sources_of_different_tokenizers_are_refused_naming_both(tmp_path: Path) -> None:
    write_source(tmp_path / "web", 0, [5] * 20)
    write_source(tmp_path / "code", 1, [5] * 20, core_hash="e" * 64)
    with pytest.raises(ConfigError, match=r"another tokenizer.*build them with the same one") as caught:
        build_loader(config_from(raw_stream(tmp_path)))
    assert "'web'" in str(caught.value)
    assert "'code'" in str(caught.value)


def test_documents_too_long_for_overlong_error_are_refused_at_the_start(tmp_path: Path) -> None:
    write_source(tmp_path / "web", 0, [5, 129])
    write_source(tmp_path / "code", 1, [128])
    config = config_from(raw_stream(tmp_path, {"packing.overlong": "error"}))
    with pytest.raises(DocumentTooLongError, match=r"\$\.sources\[0\].*seq_length 128 .*129 tokens.*choose split"):
        build_loader(config)


def test_a_size_of_steps_that_is_not_used_is_told(caplog: pytest.LogCaptureFixture) -> None:
    config_from(MINIMAL | {"batch": {"global_batch_tokens": 128}})
    config_from(MINIMAL | {"batch": {"global_batch_size": 2, "global_batch_tokens": None}})
    assert not caplog.text
    config_from(MINIMAL | {"batch": {"global_batch_size": 1, "global_batch_tokens": 128}})
    assert "$.batch.global_batch_size is not used, since global_batch_tokens is given too" in caplog.text


# Files and overrides


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("seed: [1, 2")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00seed")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("seq_length: 0\nsources: [{name: a, path: b}]")
    keys = tmp_path / "keys.yaml"
    keys.write_text("seed: 1\n? [1, 2]\n: 3\n")
    inner = tmp_path / "inner.yaml"
    inner.write_text("sources:\n- ? {name: web}\n  : 3\n")
    date = tmp_path / "date.yaml"
    date.write_text("seed: 2024-02-30\n")
    for path, told in (
        (keys, r"not YAML: (?s:.*)unhashable key\n.* line 2, column 3"),
        (inner, r"not YAML: (?s:.*)unhashable key\n.* line 2, column 5"),
        (date, "not YAML: day"),
        (tmp_path / "absent.yaml", "cannot read the config"),
        (tmp_path, "cannot read the config"),
        (broken, "not YAML"),
        (binary, "not YAML"),
        (wrong, r"\$\.seq_length: must be at least 1"),
    ):
        with pytest.raises(ConfigError, match=told) as caught:
            load_config(path)
        assert str(caught.value).startswith(f"{path}: ")


def test_a_key_written_twice_is_refused_not_overruled(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("seed: 1\nseq_length: 8\nsources: [{name: a, path: b}]\nseed: 2\n")
    with pytest.raises(ConfigError, match="seed"):
        load_config(path)


@pytest.mark.parametrize(
    ("setting", "read"),
    [
        ("seed=9", lambda config: config.seed == 9),
        ("sources[0].weight=0.3", lambda config: config.sources[0].weight == 0.3),
        ("sources[0].weight='1/3'", lambda config: config.sources[0].weight == "1/3"),
        ("sources[0].shuffle=false", lambda config: config.shuffle_of(0) is None),
        ("sources[0].shuffle.shards=2", lambda config: config.shuffle_of(0) == 2),
        ("sources[0].path=s3://bucket/a=b", lambda config: config.sources[0].path == "s3://bucket/a=b"),
        ("sources[0].storage={endpoint_url: 'http://x'}", lambda config: "endpoint_url" in config.sources[0].storage),
        ("sources[0].storage.anon=true", lambda config: config.sources[0].storage == {"anon": True}),
        ("batch.fields=[tokens]", lambda config: config.batch.fields == ("tokens",)),
        ("batch.micro_batch_size=4", lambda config: config.batch.micro_batch_size == 4),
        ("plan.window_tokens=null", lambda config: config.plan.window_tokens is None),
        ("sources=[{name: b, path: c}]", lambda config: config.sources[0].name == "b"),
    ],
)
def test_an_override_reaches_its_key(tmp_path: Path, setting: str, read: Any) -> None:
    path = tmp_path / "stream.yaml"
    path.write_text(yaml.safe_dump(MINIMAL))
    assert read(load_config(path, dict([parse_setting(setting)])))
    assert not read(config_from(MINIMAL)) or "null" in setting


def test_an_override_reaches_a_source_whose_name_has_a_dash() -> None:
    raw = MINIMAL | {"sources": [{"name": "web-en", "path": "a"}], "phases": [{"start": 5, "weights": {"web-en": 1}}]}
    config = config_from(raw, dict([parse_setting("phases[0].weights.web-en=0.25")]))
    assert config.phases[0].weights == {"web-en": 0.25}


def test_overrides_leave_the_data_alone() -> None:
    raw = with_value("$.plan.windows", 8)
    config_from(raw, {"plan.windows": 2, "sources[0].weight": 5, "batch.micro_batch_size": 3})
    assert raw == with_value("$.plan.windows", 8)


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("", "not a path"),
        ("a..b", "not a path"),
        ("plan.²", r"no such key"),
        ("sources[x].weight", "not a path"),
        ("sources[1].weight", r"no element \[1\]"),
        ("sources[0][0]", r"no element \[0\]|not inside"),
        ("seed.x", r"\$\.seed: Expected"),
        ("missing[0].x", "no 'missing'"),
        ("sources.weight", "nothing to stand in|not inside a mapping"),
        ("plan.windoes", "no such key"),
    ],
)
def test_an_override_that_leads_nowhere_is_refused(key: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        config_from(MINIMAL, {key: 1})


@pytest.mark.parametrize("text", ["seed", "=5", "", "seed=[1", "seed={[1]: 2}", "seed=2024-02-30"])
def test_a_setting_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--set"):
        parse_setting(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates(),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), children, max_size=3)
    ),
    max_leaves=8,
)
KEYS = ["seed", "seq_length", "sources", "shuffle", "packing", "plan", "batch", "storage", "loader"]
INNER = ["name", "path", "mock", "weight", "shards", "policy", "windows", "fields", "threads", "prefetch_bytes", "mean"]


@given(
    raw=st.dictionaries(st.sampled_from(KEYS), json_values | st.dictionaries(st.sampled_from(INNER), json_values)),
    source=st.dictionaries(st.sampled_from(INNER), json_values),
)
def test_any_data_is_a_config_or_a_config_error(raw: dict[str, Any], source: dict[str, Any]) -> None:
    for data in (raw, MINIMAL | raw, MINIMAL | {"sources": [{"name": "a", "path": "b"} | source]}):
        try:
            assert isinstance(config_from(data), StreamConfig)
        except ConfigError as error:
            assert str(error).startswith("$")


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, 2**64 - 1, 2**64, -(2**70)])
def test_any_seed_is_one_that_a_cursor_can_hold_or_is_refused(seed: int) -> None:
    raw = {"seq_length": 64, "sources": [{"name": "mock", "mock": {"documents": 100, "max": 64}}], "seed": seed}
    try:
        config = config_from(raw)
    except ConfigError as error:
        assert str(error).startswith("$.seed: ")
        assert not -(2**63) <= seed < 2**63
        return
    with build_loader(config) as loader:
        next(loader)
        loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert read_cursor(json.dumps(loader.state_dict())).to_dict() == loader.state_dict()
