"""Documents split at separators: each fragment is transformed by itself, and all that is between stays where it was."""

import random
from collections import Counter
from functools import cache
from itertools import groupby
from math import sqrt
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from fim.parts import MIDDLE, NONE, PREFIX, SENTINEL, SUFFIX, fim_counts, inserted_as_metrics_tell, pieces_of
from fim.test_text import encoder
from fim.tokenizers_of import LINES, cl100k
from hypothesis import given
from hypothesis import strategies as st
from laws import assert_lockstep, same_batch, sequences_of, take, take_all_ranks
from streams import SEQ_LENGTH, raw_stream, specials_of, spelled, write_documents

from streampipe import ConfigError, CursorMismatchError, SourceError, build_loader, config_from
from streampipe.assemble.fim import Order, SourceFim, label_gaps, part_ids, transform
from streampipe.assemble.fim_cuts import TokenCutter
from streampipe.assemble.fim_text import TextCutter
from streampipe.assemble.segments import Segments
from streampipe.plan.fim import FimPlan, Line, with_choices
from streampipe.plan.loss import trained_tokens
from streampipe.plan.pieces import PackingConfig, cut_documents
from streampipe.plan.round_plan import FrameTable
from streampipe.plan.separators import Separators
from streampipe.rng import raw_words
from streampipe.shards import Document
from streampipe.stream import open_stream
from streampipe.tools.digest import digest_steps

SENTINELS = {"prefix": 2**28 - 1, "suffix": 2**28 - 2, "middle": 2**28 - 3}
SEP, START, END = 2**28 - 9, 2**28 - 10, 2**28 - 11
NAME = "<file_sep>"
FIELDS = ["tokens", "labels", "position_ids", "loss_mask", "fim_parts", "horizon"]
PRE, SUF, MID = (memoryview(np.array([i], np.uint32)) for i in SENTINELS.values())
ORDERS = (Order((PRE, 1, SUF, 2, MID, 3)), Order((PRE, SUF, 2, MID, MID, 1, 3)))


class Made(NamedTuple):
    """A piece after it was transformed: `gap` tells which tokens are no target, `due` how many were to be trained."""

    original: np.ndarray
    tokens: np.ndarray
    kinds: np.ndarray
    room: int
    gap: np.ndarray
    goes_on: bool
    due: int


def runs(tokens, kinds):
    """Yield the stretches of a piece: whether it is of parts, tokens, kinds."""
    at = 0
    for inside, run in groupby(kinds.tolist(), key=lambda kind: kind != NONE):
        size = len(list(run))
        yield inside, tokens[at : at + size], kinds[at : at + size]
        at += size


def restored(tokens, kinds):
    """The piece as it was: prefix, middle and suffix of each stretch in their old order, the rest untouched."""
    return [
        i
        for inside, own, of in runs(tokens, kinds)
        for part in ([own[of == kind] for kind in (PREFIX, MIDDLE, SUFFIX)] if inside else [own])
        for i in part.tolist()
    ]


def fragments_in(kinds):
    return sum(inside for inside, _, _ in runs(kinds, kinds))


def transformed(documents, plan, own, *, seq_length=64, multiple=1, separator=SEP):
    """Plan and transform documents, each of which is a frame, and return its pieces and what was counted."""
    lengths = np.array([len(ids) for ids in documents], np.int64)
    packing = PackingConfig(overlong="split", document_multiple=multiple)
    pieces, _ = cut_documents(lengths, np.ones(len(documents), np.int64), seq_length, packing)
    zero, each = np.zeros(len(documents), np.int64), np.arange(len(documents))
    places = [np.flatnonzero(ids == separator) for ids in documents]
    separators = Separators(np.cumsum([0, *map(len, places)]), np.concatenate(places).astype(np.int64))
    line = Line(FrameTable(zero, zero, zero, each), zero + 1, lengths, ["code"], 1, separators)
    pieces = with_choices(pieces, line, [plan], seq_length, packing)
    count = trained_tokens(pieces, None, aligned=True)
    of = np.zeros(len(pieces), np.int32)
    segments = Segments(
        *(each, pieces.occurrence, pieces.start, pieces.length, pieces.slot, pieces.goes_on, of, of, pieces.document),
        fim=pieces.fim,
        trained_count=count,
        fragments=pieces.fragments.table(),
    )
    frames = [memoryview(np.ascontiguousarray(ids)) for ids in documents]
    made, frames, marks = transform(segments, frames, {0: own}, multiple, aligned=True)
    starts = np.cumsum(made.length) - made.length
    kinds = np.split(part_ids(marks, starts, int(made.length.sum())), starts[1:])
    gaps = [np.zeros(length, bool) for length in made.length.tolist()]
    for piece, begin, end in label_gaps(marks, aligned=False):
        assert not gaps[piece][begin:end].any(), "no two gaps share a token"
        assert 0 < begin < end <= len(gaps[piece])
        gaps[piece][begin:end] = True
    assert (made.length <= made.slot).all()
    assert (made.slot <= pieces.slot).all()
    found = [
        Made(
            documents[document][start : start + size],
            np.array(frames[frame][offset : offset + length]),
            kinds[piece],
            room,
            gaps[piece],
            goes_on,
            due,
        )
        for piece, (document, start, size, frame, offset, length, room, goes_on, due) in enumerate(
            zip(
                *(pieces.occurrence, pieces.start, pieces.length, made.frame, made.offset, made.length),
                *(pieces.slot, made.goes_on, count),
                strict=True,
            )
        )
    ]
    return found, marks.counts[0]


def joined(parts, separator=SEP):
    """Return fragments with separators between."""
    first, *rest = parts
    return np.concatenate([first, *(part for one in rest for part in ([separator], one))])


# Lengths of fragments: empty ones, ones of a token, separators at both ends and side by side, longer than a sequence.
SHAPES = st.lists(
    st.lists(st.sampled_from([0, 0, 1, 1, 2, 5, 9, 30, 70]), min_size=1, max_size=8), min_size=1, max_size=9
)


def of_shapes(shapes, *, ends):
    """Return documents whose fragments have these lengths."""
    documents = []
    for number, shape in enumerate(shapes):
        parts = np.split(spelled(0, number, sum(shape)), np.cumsum(shape)[:-1])
        start, end = ([START], [END]) if ends else ([], [])
        documents.append(np.concatenate([start, joined(parts), end]).astype(np.uint32))
    return [ids for ids in documents if len(ids)] or [np.array([5], np.uint32)]


@given(
    shapes=SHAPES,
    rate=st.sampled_from([0.5, 1.0]),
    multiple=st.sampled_from([1, 8]),
    loss=st.sampled_from(["all", "middle"]),
    ends=st.booleans(),
    least=st.sampled_from([0, 1, 3]),
)
def test_fragments_put_back_are_the_document_and_nothing_exceeds_its_room(shapes, rate, multiple, loss, ends, least):
    plan = FimPlan(rate, 0.5, (3, 4), 0, least, int(ends), int(ends), loss, fragment_rate=0.7)
    own = SourceFim(ORDERS, TokenCutter(), int(ends), int(ends), loss == "middle")
    found, counts = transformed(of_shapes(shapes, ends=ends), plan, own, multiple=multiple)
    fragments = split = 0
    for piece in found:
        assert restored(piece.tokens, piece.kinds) == piece.original.tolist()
        assert len(piece.tokens) <= piece.room <= 64
        assert piece.room % multiple == 0
        assert (~piece.gap[1:]).sum() + piece.goes_on == piece.due
        parts = piece.kinds != NONE
        assert not parts[np.isin(piece.tokens, (START, END))].any()
        if loss == "middle" and parts.any():
            assert np.array_equal(piece.gap[1:], np.isin(piece.kinds, (PREFIX, SUFFIX, SENTINEL))[1:])
        else:
            assert not piece.gap.any()
        if SEP in piece.original:
            assert not parts[piece.tokens == SEP].any()
            for inside, ids, kinds in runs(piece.tokens, piece.kinds):
                assert not inside or (kinds != SENTINEL).sum() >= max(1, least), ids
            fragments += fragments_in(piece.kinds)
            split += bool(parts.any())
    assert (counts.fragments, counts.split) == (fragments, split)


@cache
def texts():
    """Ids of fragments of text, and of the separator between them, which the tokenizer has."""
    own, special = encoder("cl100k"), specials_of(cl100k())
    rng = random.Random(3)
    fragments = [[], own.encode("a", first=True), own.encode("\n", first=True)]
    fragments += [own.encode("".join(rng.sample(LINES, 2))[: rng.randrange(9, 90)], first=True) for _ in range(40)]
    return [np.array(ids, np.uint32) for ids in fragments], special[NAME]


@given(
    documents=st.lists(st.lists(st.integers(0, 42), min_size=1, max_size=6), min_size=1, max_size=6),
    level=st.sampled_from(["character", "line"]),
    slack=st.sampled_from([0, 1, 4, 60]),
    no_prefix=st.sampled_from([None, "a", "def"]),
    multiple=st.sampled_from([1, 8]),
)
def test_fragments_cut_inside_tokens_come_back_as_text(documents, level, slack, no_prefix, multiple):
    """Every fragment keeps to its own room, and a step's trained tokens are known before the text is."""
    fragments, separator = texts()
    documents = [joined([fragments[i] for i in one], separator).astype(np.uint32) for one in documents]
    documents = [ids for ids in documents if len(ids)] or [fragments[1]]
    pieces = encoder("cl100k").table.pieces
    loss = "all" if no_prefix is None else "kept"
    plan = FimPlan(1.0, 0.5, (3, 4), slack, loss=loss, fragment_rate=0.8)
    own = SourceFim(ORDERS, TextCutter(encoder("cl100k"), level, no_prefix, "I"), 0, 0, False, slack)
    found, counts = transformed(documents, plan, own, multiple=multiple, separator=separator, seq_length=96)

    def text(ids):
        return b"".join(pieces[i] or b"|" for i in ids)

    fragments = 0
    for piece in found:
        assert text(restored(piece.tokens, piece.kinds)) == text(piece.original)
        assert (piece.tokens == separator).sum() == (piece.original == separator).sum()
        assert len(piece.tokens) <= piece.room <= 96
        assert (~piece.gap[1:]).sum() + piece.goes_on == piece.due
        if separator not in piece.original:
            continue
        fragments += fragments_in(piece.kinds)
        outside = np.split(piece.original, np.flatnonzero(piece.original == separator))
        ends = np.flatnonzero(piece.tokens == separator)
        for before, after, kinds in zip(
            outside, np.split(piece.tokens, ends), np.split(piece.kinds, ends), strict=True
        ):
            added = int((kinds == SENTINEL).sum())
            assert len(after) <= len(before) + added + slack * (added > 0)
            if no_prefix is not None and text(before).lstrip(b"|").startswith(no_prefix.encode()):
                assert not added
    assert counts.fragments == fragments


def test_a_text_begins_behind_a_separator_but_not_where_a_sequence_does():
    """`no_prefix` spares what begins so in the second piece of a long document too, but not that piece for itself."""
    (_, letter, _, *others), separator = texts()
    plain = others[9][:1]
    long = np.concatenate([plain.repeat(96), letter, plain])
    documents = [joined([long, letter, plain, letter], separator).astype(np.uint32)]
    own = SourceFim(ORDERS, TextCutter(encoder("cl100k"), "token", "a", "I"), 0, 0, False, 0)
    plan = FimPlan(1.0, 0.5, (3, 4), loss="kept", fragment_rate=1.0)
    (_, second), counts = transformed(documents, plan, own, separator=separator, seq_length=96)
    ends = np.flatnonzero(second.tokens == separator)
    assert [fragments_in(part) for part in np.split(second.kinds, ends)] == [1, 0, 1, 0]
    assert (counts.exempt, counts.fragments) == (2, 2)


def choices(shapes, fragment_rate):
    """Return the choice of each fragment that is hit, by document and number, where there is room for all."""
    plan = FimPlan(1.0, 0.5, (3, 3), fragment_rate=fragment_rate)
    lengths = np.array([sum(shape) + len(shape) for shape in shapes], np.int64)  # a token behind the last fragment
    places = [np.cumsum(np.add(shape, 1)) - 1 for shape in shapes]
    each, one = np.arange(len(shapes)), np.ones(len(shapes), np.int64)
    pieces, _ = cut_documents(lengths, one, 10**6, PackingConfig(overlong="split"))
    separators = Separators(np.cumsum([0, *map(len, places)]), np.concatenate(places))
    line = Line(FrameTable(0 * each, 0 * each, 0 * each, each), one, lengths, ["code"], 1, separators)
    table = with_choices(pieces, line, [plan], 10**6, PackingConfig()).fragments.table()
    return {(piece, int(np.searchsorted(places[piece], begin))): choice for piece, begin, _, choice in table.tolist()}


@given(shapes=SHAPES)
def test_the_choice_of_a_fragment_depends_on_document_and_number_alone(shapes):
    """Fragments behind it, and how long others are, change nothing; a higher rate only adds fragments."""
    few, many = choices(shapes, 0.4), choices(shapes, 0.9)
    assert few.items() <= many.items()
    assert few.items() <= choices([[*shape, 7] for shape in shapes], 0.4).items()
    assert many.items() <= choices([[length and length + 3 for length in shape] for shape in shapes], 0.9).items()
    assert len(set(many.values())) == len(many)


def test_fragments_are_taken_in_order_while_they_fit():
    """64 positions hold 52 tokens and the sentinels of four fragments of ten; the fifth is left alone, and counted."""
    ids = joined(np.split(spelled(0, 0, 45), 9)).astype(np.uint32)[:-1]
    assert len(ids) == 52
    plan = FimPlan(1.0, 0.0, (3, 4), fragment_rate=1.0)
    (piece,), counts = transformed([ids], plan, SourceFim(ORDERS, TokenCutter(), 0, 0, False))
    assert len(piece.tokens) == piece.room == 64
    assert [fragments_in(part) for part in np.split(piece.kinds, np.flatnonzero(piece.tokens == SEP))] == [
        *[1] * 4,
        *[0] * 5,
    ]
    assert (counts.fragments, counts.too_long, counts.transformed) == (4, 5, 1)


# Streams.


def repositories(number, count, mean, *, ends=False):
    """Return documents of fragments whose tokens spell their document, with separators between."""
    words = raw_words(count * 12, "repositories", number).reshape(count, 12)
    documents = []
    for row, own in enumerate((words % np.uint64(2 * mean)).astype(int).tolist()):
        shape = own[1 : 2 + own[0] % 9]
        shape[own[2] % len(shape)] += 1
        if row % 40 == 7:
            shape += [SEQ_LENGTH, 9]
        (ids,) = of_shapes([shape], ends=ends)
        documents.append(np.where(ids < 2**27, ids | number << 28 | row << 12, ids).astype(np.uint32))
    return documents


def split_at(key, ids):
    return Document(key, ids, fragments=np.flatnonzero(ids == SEP))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("fragments")
    for number, name in enumerate(("web", "code")):
        write_documents(
            made / name,
            [split_at(f"{i:06d}", ids) for i, ids in enumerate(repositories(number, 160, 8, ends=True))],
            build={"bos": "<s>", "eos": "</s>", "fragments_at": NAME},
            frame_tokens=400,
        )
    return made


def stream(folder, changes=None, *, epochs=1, **fim):
    raw = raw_stream(folder, {"batch.fields": FIELDS} | (changes or {}))
    raw["sources"][0]["epochs"] = raw["sources"][1]["epochs"] = epochs
    settings = {"rate": 0.8, "level": "token", "sentinels": SENTINELS, "split_on": NAME, "fragment_rate": 0.6}
    raw["sources"][1]["fim"] = settings | fim
    return config_from(raw)


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("policy", ["best_fit", "none"])
def test_a_stream_gives_every_document_back(folder, policy, multiple):
    """Pieces of documents longer than a sequence are cut in the middle of fragments."""
    config = stream(folder, {"packing.policy": policy, "packing.document_multiple": multiple})
    met, counts = {0: {}, 1: {}}, Counter()
    for batch in take(config, None):
        counts += fim_counts(batch)
        for piece in pieces_of(batch):
            met[piece.source].setdefault(piece.document, []).append(restored(piece.tokens, piece.kinds))
            assert piece.source == 1 or not piece.transformed
    for source, of_source in met.items():
        documents = repositories(source, 160, 8, ends=True)
        assert sorted(of_source) == list(range(160))
        for document, parts in of_source.items():
            whole = documents[document].tolist()
            at = {tuple(whole[begin : begin + SEQ_LENGTH]) for begin in range(0, len(whole), SEQ_LENGTH)}
            assert sorted(map(tuple, parts)) == sorted(at)
    assert counts["pieces"] > counts["transformed"] > counts["split"] > 60
    assert counts["fragments"] > 2 * counts["split"]
    assert counts["too_long"] > 0


@pytest.mark.parametrize(("rate", "fragment_rate", "spm_rate"), [(1, 0.3, 0.5), (0.5, 0.8, 0.1), (0.6, None, 1)])
def test_rates_are_met_within_binomial_bounds(folder, rate, fragment_rate, spm_rate):
    """A document is hit at one rate, each of its fragments at the other; null stands for the same rate."""
    config = stream(folder, {"seq_length": 512}, epochs=6, rate=rate, fragment_rate=fragment_rate, spm_rate=spm_rate)
    fragments = taken = second = whole = hit = 0
    for batch in take(config, None):
        for piece in pieces_of(batch):
            if piece.source == 0:
                continue
            places = np.flatnonzero(piece.tokens == SEP)
            if not len(places):
                whole, hit = whole + (len(piece.tokens) > 2), hit + piece.transformed
                continue
            for own in np.split(piece.kinds, places):
                if (size := (own == NONE).sum()) and (own != NONE).any():
                    taken += 1
                    second += own[own > NONE][1] == SENTINEL
                    fragments += 1
                else:
                    fragments += size > 3 or (own != NONE).any()
    expected = rate * (rate if fragment_rate is None else fragment_rate)
    assert whole > 20
    assert abs(hit - rate * whole) <= 4 * sqrt(whole * rate * (1 - rate)) + 1e-9
    # Fragments of a document are hit together: some nine of them, so the deviation is three times as large.
    assert abs(taken - expected * fragments) <= 4 * 3 * sqrt(fragments * expected * (1 - expected))
    assert second >= spm_rate * taken - 4 * sqrt(taken * spm_rate * (1 - spm_rate))


@pytest.mark.parametrize("labels", ["aligned", "unshifted"])
@pytest.mark.parametrize("loss", ["all", "middle"])
@pytest.mark.parametrize("dp_size", [1, 2, 4])
def test_trained_tokens_of_a_step_are_known_from_the_plan(folder, labels, loss, dp_size):
    """With `loss: middle` what stays where it was is trained: separators and fragments that were left alone."""
    ranks = take_all_ranks(stream(folder, {"batch.labels": labels}, loss=loss), dp_size)
    assert_lockstep(ranks)
    steps = {}
    for batch in (batch for batches in ranks for batch in batches):
        assert batch["loss_tokens"] == batch["loss_mask"].sum() == (batch["labels"] >= 0).sum()
        steps.setdefault((batch["step"], batch["step_loss_tokens"]), []).append(batch["loss_tokens"])
        for piece in pieces_of(batch):
            targets = np.roll(piece.trained, 1) if labels == "aligned" else piece.trained
            if piece.transformed:
                due = np.isin(piece.kinds, (NONE, MIDDLE)) if loss == "middle" else np.ones(len(piece.kinds), bool)
                assert np.array_equal(targets, due & (np.arange(len(due)) > 0))
            if piece.transformed and loss == "all" and labels == "aligned":
                assert np.array_equal(piece.labels[:-1], piece.tokens[1:])
    assert all(sum(counts) == due for (_, due), counts in steps.items())


@pytest.mark.parametrize("labels", ["aligned", "unshifted"])
@pytest.mark.parametrize("loss", ["all", "middle"])
def test_fragments_blend_with_conversations(folder, tmp_path, labels, loss):
    turns = np.array([[5, 12], [20, 30]], np.int32)
    write_documents(tmp_path / "chat", [Document(f"{i:06d}", spelled(1, i, 40), turns) for i in range(100)])
    config = stream(folder, {"batch.labels": labels, "packing.overlong": "split"}, loss=loss)
    raw = raw_stream(folder, {"batch.fields": FIELDS, "batch.labels": labels, "packing.overlong": "split"})
    raw["sources"] = [
        {"name": "code", "path": f"{folder}/code", "epochs": 1},
        {"name": "chat", "path": f"{tmp_path}/chat", "epochs": 1},
    ]
    raw["sources"][0]["fim"] = msgspec.to_builtins(config.sources[1].fim)
    steps, several = {}, 0
    for batch in (batch for batches in take_all_ranks(config_from(raw), 2) for batch in batches):
        assert batch["loss_tokens"] == batch["loss_mask"].sum()
        steps.setdefault((batch["step"], batch["step_loss_tokens"]), []).append(batch["loss_tokens"])
        for piece in pieces_of(batch):
            targets = np.roll(piece.trained, 1) if labels == "aligned" else piece.trained
            if piece.source == 1:
                assert np.flatnonzero(targets).tolist() == [*range(5, 12), *range(20, 30)]
            elif piece.transformed:
                due = np.isin(piece.kinds, (NONE, MIDDLE)) if loss == "middle" else np.ones(len(piece.kinds), bool)
                assert np.array_equal(targets, due & (np.arange(len(due)) > 0))
                several += fragments_in(piece.kinds) > 1
    assert several > 30
    assert all(sum(counts) == due for (_, due), counts in steps.items())


def test_horizon_counts_down_through_the_middle_of_each_fragment(folder):
    several = 0
    for piece in (piece for batch in take(stream(folder), None) for piece in pieces_of(batch)):
        due = np.full(len(piece.tokens), -1)
        at = 0
        for inside, own, kinds in runs(piece.tokens, piece.kinds):
            middle = int((kinds == MIDDLE).sum())
            if inside:
                due[at + len(own) - middle - 1 : at + len(own)] = np.arange(middle, -1, -1)
            at += len(own)
        assert np.array_equal(piece.horizon, due)
        several += fragments_in(piece.kinds) > 1
    assert several > 30


@pytest.mark.parametrize(("dp_size", "micro_batch_size", "workers"), [(2, 2, 0), (4, 1, 0), (1, 4, 1), (2, 4, 1)])
def test_digests_do_not_depend_on_ranks_micro_batches_and_workers(folder, dp_size, micro_batch_size, workers):
    one = [step["sha256"] for step in digest_steps(stream(folder), 6, 1)]
    changes = {"batch.micro_batch_size": micro_batch_size, "loader.num_workers": workers}
    other = [step["sha256"] for step in digest_steps(stream(folder, changes), 6, dp_size)]
    assert one == other
    plain = [step["sha256"] for step in digest_steps(stream(folder, fragment_rate=0.1), 6, 1)]
    assert one != plain


@pytest.mark.parametrize(
    "changes", [{}, {"plan.balance": "cost", "plan.even_rows": 2}, {"batch.global_batch_size": 24}]
)
def test_the_same_batches_come_from_any_cursor(folder, changes):
    config = stream(folder, changes)
    whole = take(config, None)
    ranks = take_all_ranks(config, 2)
    assert sequences_of([b for batches in ranks for b in batches], SEQ_LENGTH) == sequences_of(whole, SEQ_LENGTH)
    for number in (0, 5, len(whole) // 2, len(whole) - 2):
        future = take(config, None, cursor=whole[number]["cursor"])
        assert len(future) == len(whole) - number - 1
        assert all(same_batch(a, b) for a, b in zip(future, whole[number + 1 :], strict=True))


def test_texts_without_a_separator_are_transformed_as_without_the_setting(tmp_path):
    documents = [split_at(f"{i:06d}", spelled(0, i, 20 + i % 50)) for i in range(100)]
    write_documents(tmp_path / "code", documents, build={"fragments_at": NAME})
    raw = raw_stream(tmp_path, {"batch.fields": FIELDS})
    fim = {"rate": 0.6, "level": "token", "sentinels": SENTINELS}
    raw["sources"] = [{"name": "code", "path": f"{tmp_path}/code", "epochs": 1, "fim": fim}]
    plain = take(config_from(raw), None)
    fim |= {"split_on": NAME, "fragment_rate": 0.1}
    for a, b in zip(plain, take(config_from(raw), None), strict=True):
        assert all(a[name].equal(b[name]) for name in (*FIELDS, "cu_seqlens"))


def test_the_settings_are_part_of_the_cursor_and_the_rate_changes_with_a_phase(folder):
    with build_loader(stream(folder)) as loader:
        next(loader)
        state = loader.state_dict()
    for other in ({"fragment_rate": 0.5}, {"split_on": None, "fragment_rate": None}):
        with build_loader(stream(folder, **other)) as loader, pytest.raises(CursorMismatchError, match="fim"):
            loader.load_state_dict(state)
    phases = [{"start": 8192, "fim": {"code": {"fragment_rate": 1.0}}}]
    config = stream(folder, {"phases": phases}, epochs=None, rate=1.0, fragment_rate=0.0)
    batches = take(config, 120)
    hits = [[piece.transformed for piece in pieces_of(b) if SEP in piece.tokens and piece.source] for b in batches]
    assert not any(hit for own in hits[:16] for hit in own)
    assert np.mean([hit for own in hits[80:] for hit in own]) > 0.8
    with build_loader(config) as loader:
        loader.load_state_dict(batches[100]["cursor"])
        assert same_batch(next(loader), batches[101])


def test_metrics_tell_how_many_fragments_there_were(folder):
    with build_loader(stream(folder)) as loader:
        spm = sum(fim_counts(batch)["spm"] for _, batch in zip(range(10), loader, strict=False))
        told = loader.metrics()["fim"]
    texts = told["sources"]["code"]["fragments"]
    assert texts > 30
    assert 0 < spm < told["spm_rate"] * 2 * texts
    assert 0.3 < told["spm_rate"] < 0.7
    assert 0.3 < told["rate"] < 0.9
    assert inserted_as_metrics_tell(stream(folder)) > 100


def test_mock_repositories_are_split_like_real_ones(tmp_path):
    """Documents come back whole, separators stand between fragments, and transformed ones are counted."""
    raw = raw_stream(tmp_path, {"seq_length": 512, "batch.fields": FIELDS})
    mock = {"documents": 300, "mean": 200, "max": 400, "vocab_size": 64, "fragments_at": 9, "fragment_mean": 30}
    fim = {"rate": 0.6, "fragment_rate": 0.5, "level": "token", "split_on": 9}
    sentinels = {"prefix": 61, "suffix": 62, "middle": 63}
    raw["sources"] = [{"name": "code", "mock": mock, "epochs": 1, "fim": fim | {"sentinels": sentinels}}]
    config = config_from(raw)
    batches, counts = take(config, None), Counter()
    index = open_stream(config).sources[0].index(0)
    frames = [open_stream(config).sources[0].read_frames([(0, number)])[0] for number in range(len(index.tokens))]
    documents = np.split(np.concatenate(frames), np.cumsum(index.lengths)[:-1])
    seen = 0
    for batch in batches:
        counts += fim_counts(batch)
        for piece in pieces_of(batch):
            seen += 1
            assert restored(piece.tokens, piece.kinds) == documents[piece.document].tolist()
            counts["found"] += fragments_in(piece.kinds)
    assert seen == len(documents)
    assert counts["found"] == counts["fragments"] + counts["transformed"] - counts["split"] > 300


def test_other_separators_and_sources_without_any_are_refused_with_the_cure(folder, tmp_path):
    with pytest.raises(ConfigError, match=r"those of '<file_sep>' are recorded.*or set split_on: '<file_sep>'"):
        build_loader(stream(folder, split_on="<repo>"))
    raw = raw_stream(tmp_path)
    fim = {"rate": 0.6, "level": "token", "sentinels": SENTINELS, "split_on": NAME}
    for mock in ({"documents": 100}, {"documents": 100, "fragments_at": 5}):
        raw["sources"] = [{"name": "code", "mock": mock, "fim": fim}]
        with pytest.raises(ConfigError, match=r"separator of the mock source 'code'.*set mock\.fragments_at"):
            build_loader(config_from(raw))
    write_documents(tmp_path / "code", [Document("0", spelled(0, 0, 30))], build={"fragments_at": NAME})
    raw["sources"] = [{"name": "code", "path": f"{tmp_path}/code", "fim": fim}]
    with pytest.raises(SourceError, match="lists no separators"), build_loader(config_from(raw)) as loader:
        next(loader)
