"""A source without data draws Megatron's lengths and keeps its positions closed-form."""

import pickle

import numpy as np
import pytest

from streampipe.errors import ConfigError
from streampipe.mock import MockSource
from streampipe.mock_config import MockConfig


def source(seed=1, **config):
    return MockSource("web", MockConfig(**config), seed)


def test_lengths_have_megatrons_meaning():
    """With 1024/2048/1536/1.1, Megatron-LM draws 57.1 % at the least, 20.9 % at the most, 1331.8 in the mean."""
    lengths = MockConfig(min=1024, max=2048, mean=1536, sigma=1.1).quantiles()
    assert abs((lengths == 1024).mean() - 0.571) < 0.002
    assert abs((lengths == 2048).mean() - 0.209) < 0.002
    assert abs(lengths.mean() - 1331.8) < 2


def test_every_shard_holds_equally_many_tokens_and_its_index_agrees():
    mock = source(documents=200_000)
    assert len(set(mock.shard_tokens.tolist())) == 1
    for shard in range(len(mock.shard_tokens)):
        index = mock.index(shard)
        assert index.lengths.sum() == mock.shard_tokens[shard] == index.tokens.sum()
        assert index.first_document[-1] == len(index.lengths) <= mock.shard_documents[shard]
        assert index.tokens[:-1].min() >= 65_536


def test_frames_hold_what_the_index_says():
    mock = source(documents=10_000)
    index = mock.index(0)
    for frame in (0, 3):
        raw = np.frombuffer(mock.read_frames([(0, frame)])[0], mock.token_dtype)
        assert len(raw) == index.tokens[frame]
        first, last = index.first_document[frame : frame + 2]
        ends = index.payload_offsets[first:last] // 2 + index.lengths[first:last]
        assert ends[-1] == len(raw)
        assert raw.max() < 32_000


def test_separators_stand_where_the_index_says_and_nowhere_else():
    mock = source(documents=20_000, vocab_size=40, fragments_at=7, fragment_mean=300)
    index = mock.index(0)
    assert abs(len(index.fragments.values) * 300 / index.lengths.sum() - 1) < 0.02
    for frame in (0, 11, len(index.tokens) - 1):
        tokens = np.frombuffer(mock.read_frames([(0, frame)])[0], mock.token_dtype)
        assert set(tokens.tolist()) == set(range(40)), "the other ids are made up as before"
        for row in range(*index.first_document[frame : frame + 2]):
            document = tokens[index.payload_offsets[row] // 2 :][: index.lengths[row]]
            listed = index.fragments.values[index.fragments.offsets[row] : index.fragments.offsets[row + 1]]
            assert np.flatnonzero(document == 7).tolist() == listed.tolist()
    assert source(documents=20_000).index(0).fragments is None


def test_ten_billion_documents_take_no_memory_for_them():
    mock = source(documents=10**10)
    assert mock.shard_tokens.nbytes < 2 * 2**20
    assert abs(mock.shard_tokens.sum() / 10**10 / mock._quantiles.mean() - 1) < 1e-6
    assert mock.index(len(mock.shard_tokens) - 1).lengths.sum() == mock.shard_tokens[-1]


def test_another_seed_or_name_is_another_source():
    one, two = source(seed=1), source(seed=2)
    assert one.content_hash != two.content_hash
    assert one.index(0).lengths[:50].tolist() != two.index(0).lengths[:50].tolist()
    assert one.content_hash == source(seed=1).content_hash
    assert one.content_hash != source(seed=1, sigma=1.3).content_hash


def test_a_mock_source_can_be_sent_to_a_worker():
    mock = source(documents=1000)
    sent = pickle.loads(pickle.dumps(mock))
    assert sent.index(0).lengths.tolist() == mock.index(0).lengths.tolist()


def test_lengths_can_come_from_a_file_and_no_line_is_taken_for_a_header(tmp_path):
    (tmp_path / "lengths").write_text("7\n9\n")
    lengths = source(documents=1000, lengths=str(tmp_path / "lengths")).index(0).lengths
    assert set(lengths[:-1].tolist()) == {7, 9}


def test_a_file_of_lengths_is_known_by_every_line_and_not_by_its_place(tmp_path):
    texts = {"one": [1000] * 107, "other": [1000] * 107, "moved": [1000] * 107}
    texts["other"][1] = 8138
    for name, lengths in texts.items():
        (tmp_path / name).write_text("\n".join(map(str, lengths)))
    one, other, moved = (source(lengths=str(tmp_path / name)).content_hash for name in texts)
    assert one == moved != other


@pytest.mark.parametrize("text", ["7\nx\n", "", "0\n"])
def test_a_file_that_holds_no_lengths_is_refused(tmp_path, text):
    (tmp_path / "lengths").write_text(text)
    with pytest.raises(ConfigError, match="lengths"):
        source(lengths=str(tmp_path / "lengths"))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"documents": 0}, r"mock\.documents"),
        ({"min": 0}, "1 <= min <= max"),
        ({"min": 9, "max": 8}, "1 <= min <= max"),
        ({"mean": 0}, "mean > 0"),
        ({"vocab_size": 0}, r"mock\.vocab_size"),
        ({"fragments_at": 32_000}, r"mock\.fragments_at: must be an id below vocab_size \(32000\)"),
        ({"fragments_at": 0, "vocab_size": 1}, r"mock\.fragments_at: must be"),
        ({"fragments_at": 5, "tokens_from": "somewhere"}, r"mock\.fragments_at: borrowed tokens"),
        ({"fragment_mean": 0, "fragments_at": 5}, r"mock\.fragment_mean: must be"),
        ({"fragment_mean": 9}, r"mock\.fragment_mean: decides nothing, .*`fragments_at`; remove it"),
        ({"lengths": "some", "mean": 9}, r"mock\.mean: decides nothing, .*`lengths`; remove it"),
        ({"lengths": "some", "max": 9}, r"mock\.max: decides nothing, .*`lengths`; remove it"),
        ({"tokens_from": "some", "vocab_size": 9}, r"mock\.vocab_size: decides nothing, .*`tokens_from`; remove it"),
    ],
)
def test_numbers_that_give_no_lengths_are_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        MockConfig(**config).check("$.sources[0].mock")
