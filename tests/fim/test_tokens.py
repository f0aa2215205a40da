"""Fill-in-the-middle between tokens: every document comes back, on any topology, from any cursor."""

from collections import Counter
from math import sqrt

import numpy as np
import pytest
from fim.parts import MIDDLE, PREFIX, SENTINEL, SUFFIX, fim_counts, inserted_as_metrics_tell, pieces_of
from laws import assert_lockstep, same_batch, sequences_of, take, take_all_ranks
from streams import SEQ_LENGTH, drawn_lengths, raw_stream, spelled, write_documents, write_source

from streampipe import CursorMismatchError, build_loader, config_from
from streampipe.shards import Document
from streampipe.stream import open_stream

SENTINELS = {"prefix": 2**28 - 1, "suffix": 2**28 - 2, "middle": 2**28 - 3}
PRE, SUF, MID = SENTINELS.values()
FIELDS = ["tokens", "labels", "position_ids", "loss_mask", "fim_parts", "horizon"]
LENGTHS = {"web": drawn_lengths(150, 50, "fim web"), "code": drawn_lengths(200, 40, "fim code")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("fim")
    for number, (name, lengths) in enumerate(LENGTHS.items()):
        write_source(made / name, number, lengths)
    return made


def stream(folder, changes=None, *, epochs=1, **fim):
    raw = raw_stream(folder, {"batch.fields": FIELDS} | (changes or {}))
    raw["sources"][0]["epochs"] = raw["sources"][1]["epochs"] = epochs
    raw["sources"][1]["fim"] = {"rate": 0.5, "level": "token", "sentinels": SENTINELS} | fim
    return config_from(raw)


def pieces(config):
    return [piece for batch in take(config, None) for piece in pieces_of(batch)]


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("spm", ["spm", "spmv1", [77, "SUF", "suffix", 88, 89, "prefix", "middle"]])
def test_the_parts_of_every_document_put_back_are_the_document(folder, spm, multiple):
    config = stream(folder, {"packing.document_multiple": multiple}, spm=spm, rate=0.8)
    met = {0: {}, 1: {}}
    orders = set()
    for piece in pieces(config):
        restored = piece.restored()
        met[piece.source].setdefault(piece.document, []).append(restored)
        assert piece.source == 1 or not piece.transformed
        if piece.transformed:
            orders.add(tuple(piece.tokens[piece.kinds == SENTINEL].tolist()))
    for source, lengths in enumerate(LENGTHS.values()):
        for document, length in enumerate(lengths):
            parts = sorted(met[source][document])
            assert [i for part in parts for i in part] == spelled(source, document, length).tolist()
    second = {"spm": (PRE, SUF, MID), "spmv1": (SUF, PRE, MID)}.get(
        spm if isinstance(spm, str) else "", (77, SUF, 88, 89)
    )
    assert orders == {(PRE, SUF, MID), second}


def test_each_order_is_what_its_name_says(folder):
    first = {piece.order()[1] for piece in pieces(stream(folder, rate=1, spm_rate=0)) if len(piece.of(PREFIX))
             and piece.transformed}  # fmt: skip
    assert first == {PREFIX}
    for piece in pieces(stream(folder, rate=1, spm_rate=1)):
        if piece.transformed and piece.of(PREFIX) and piece.of(SUFFIX) and piece.of(MIDDLE):
            assert piece.order() == [SENTINEL, SUFFIX, SENTINEL, PREFIX, MIDDLE]
            assert piece.tokens[:2].tolist() == [PRE, SUF]


@pytest.mark.parametrize(("rate", "spm_rate"), [(0, 0.5), (0.3, 0.7), (0.5, 0), (1, 1)])
def test_rates_are_met_within_binomial_bounds(folder, rate, spm_rate):
    fitting = [piece for piece in pieces(stream(folder, epochs=4, rate=rate, spm_rate=spm_rate)) if piece.source == 1
               and len(piece.tokens) <= SEQ_LENGTH - 3 + 3 * piece.transformed]  # fmt: skip
    hit = [piece for piece in fitting if piece.transformed]
    assert abs(len(hit) - rate * len(fitting)) <= 4 * sqrt(len(fitting) * rate * (1 - rate))
    second = sum(piece.tokens[1] == SUF and piece.kinds[1] == SENTINEL for piece in hit)
    empty = sum(not piece.of(PREFIX) for piece in hit)  # PRE SUF too
    assert abs(second - spm_rate * len(hit)) <= 4 * sqrt(len(hit) * spm_rate * (1 - spm_rate)) + empty


def test_every_epoch_has_choices_of_its_own(folder):
    found = {}
    for piece in pieces(stream(folder, epochs=3)):
        if piece.source == 1 and piece.transformed and len(piece.tokens) > 20:
            found.setdefault(piece.document, set()).add((piece.epoch, len(piece.of(PREFIX)), len(piece.of(MIDDLE))))
    several = [choices for choices in found.values() if len(choices) > 1]
    assert len(several) > 20
    same = [
        choices for choices in several if len({cut for _, *cut in map(tuple, choices) for cut in [tuple(cut)]}) == 1
    ]
    assert len(same) <= 1


def test_cuts_are_uniform_over_a_document(folder):
    shares = [
        len(piece.of(PREFIX)) / (len(piece.tokens) - 3)
        for piece in pieces(stream(folder, epochs=4, rate=1))
        if piece.transformed and len(piece.tokens) > 30
    ]
    # The smaller of two uniform places: a third of the way in the mean, with a deviation of sqrt(1/18).
    assert abs(np.mean(shares) - 1 / 3) < 4 * sqrt(1 / 18 / len(shares)) + 0.02


def test_a_piece_that_no_longer_fits_is_left_alone_and_counted(folder):
    config = stream(folder, rate=1)
    counts = Counter()
    for batch in take(config, None):
        for piece in pieces_of(batch):
            if piece.source == 1:
                assert piece.transformed == (len(piece.tokens) - 3 * piece.transformed <= SEQ_LENGTH - 3)
        counts += fim_counts(batch)
    whole = sum(length // SEQ_LENGTH + (length % SEQ_LENGTH > SEQ_LENGTH - 3) for length in LENGTHS["code"])
    assert counts["too_long"] == whole > 0
    assert counts["transformed"] + counts["too_long"] == counts["pieces"]


@pytest.mark.parametrize("spm", ["spm", ["SUF", "suffix", 88, 89, "PRE", "prefix", 77, "middle"]])
@pytest.mark.parametrize("planned", [True, False])
def test_padding_is_what_holds_no_token_and_sentinels_are_tokens(folder, spm, planned):
    changes = {"batch.fields": ["tokens"] if planned else FIELDS, "batch.micro_batch_size": 2}
    config = stream(folder, changes, rate=0.9, spm=spm, min_length=9)
    assert open_stream(config).changes_tokens != planned
    assert inserted_as_metrics_tell(config) > 300


def test_horizon_counts_down_through_the_middle(folder):
    for piece in pieces(stream(folder, rate=1)):
        middle = np.flatnonzero(piece.kinds == MIDDLE)
        if piece.transformed:
            begin = len(piece.tokens) - len(middle)
            assert piece.horizon[begin - 1 :].tolist() == list(range(len(middle), -1, -1))
            assert (piece.horizon[: begin - 1] == -1).all()
        else:
            assert (piece.horizon == -1).all()


@pytest.mark.parametrize("labels", ["aligned", "unshifted"])
@pytest.mark.parametrize("loss", ["all", "middle"])
@pytest.mark.parametrize("dp_size", [1, 4])
def test_trained_tokens_of_a_step_are_known_from_the_plan(folder, labels, loss, dp_size):
    config = stream(folder, {"batch.labels": labels}, loss=loss)
    ranks = take_all_ranks(config, dp_size)
    assert_lockstep(ranks)
    steps = {}
    for batch in (batch for batches in ranks for batch in batches):
        assert batch["loss_tokens"] == batch["loss_mask"].sum() == (batch["labels"] >= 0).sum()
        steps.setdefault((batch["step"], batch["step_loss_tokens"]), []).append(batch["loss_tokens"])
        for piece in pieces_of(batch):
            targets = np.roll(piece.trained, 1) if labels == "aligned" else piece.trained
            if piece.transformed and loss == "middle":
                assert np.array_equal(targets, piece.kinds == MIDDLE)
            elif piece.transformed:
                assert targets.sum() == len(piece.tokens) - 1
                if labels == "aligned":
                    assert np.array_equal(piece.labels[:-1], piece.tokens[1:])
    assert all(sum(counts) == due for (_, due), counts in steps.items())
    assert len({step for step, _ in steps}) == len(steps) > 3


def test_the_same_batches_come_on_any_topology_and_from_any_cursor(folder):
    config = stream(folder)
    whole = take(config, None)
    one = sequences_of(whole, SEQ_LENGTH)
    for dp_size, micro in ((4, 1), (2, 4)):
        other = stream(folder, {"batch.micro_batch_size": micro})
        ranks = take_all_ranks(other, dp_size)
        assert sequences_of([batch for batches in ranks for batch in batches], SEQ_LENGTH) == one
    for number in (0, 3, len(whole) // 2, len(whole) - 2):
        future = take(config, None, cursor=whole[number]["cursor"])
        assert len(future) == len(whole) - number - 1
        assert all(same_batch(a, b) for a, b in zip(future, whole[number + 1 :], strict=True))


def test_worker_processes_make_the_same_batches(folder):
    alone = take(stream(folder), 12)
    workers = take(stream(folder, {"loader.num_workers": 2}), 12)
    assert all(same_batch(a, b) for a, b in zip(alone, workers, strict=True))


def test_the_order_of_a_stream_without_it_does_not_change(folder):
    """With rate 0 the plan goes through the same code, and nothing moves."""
    raw = raw_stream(folder, {"batch.fields": FIELDS})
    off = take(config_from(raw), 20)
    raw["sources"][1]["fim"] = {"rate": 0, "level": "token", "sentinels": SENTINELS}
    for a, b in zip(off, take(config_from(raw), 20), strict=True):
        assert a["tokens"].equal(b["tokens"])
        assert a["cu_seqlens"].equal(b["cu_seqlens"])
        assert a["labels"].equal(b["labels"])


def test_a_cursor_of_other_choices_is_refused_by_name(folder):
    with build_loader(stream(folder)) as loader:
        next(loader)
        state = loader.state_dict()
    for other in ({"rate": 0.4}, {"spm": "spmv1"}, {"loss": "middle"}, {"min_length": 9}):
        with build_loader(stream(folder, **other)) as loader, pytest.raises(CursorMismatchError, match="fim"):
            loader.load_state_dict(state)


def test_rates_change_with_a_phase(folder):
    phases = [{"start": 8192, "fim": {"code": {"rate": 1.0, "spm_rate": 1.0}}}]
    config = stream(folder, {"phases": phases}, epochs=None, rate=0.0)
    batches = take(config, 120)
    hits = [[piece.transformed for piece in pieces_of(b) if piece.source == 1] for b in batches]
    assert not any(hit for own in hits[:16] for hit in own)
    assert np.mean([hit for own in hits[80:] for hit in own]) > 0.8  # pieces of a whole sequence have no room
    with build_loader(config) as loader:
        loader.load_state_dict(batches[100]["cursor"])
        assert same_batch(next(loader), batches[101])


@pytest.mark.parametrize("loss", ["all", "middle"])
def test_start_and_end_tokens_stay_outside(tmp_path, loss):
    """The start token stays first and the end token comes after the middle, trained."""
    start, end = 900_000, 900_001
    texts = [np.concatenate([[start], spelled(0, i, n), [end]]).astype(np.uint32) for i, n in enumerate([30] * 40)]
    write_documents(
        tmp_path / "code", [Document(f"{i:06d}", t) for i, t in enumerate(texts)], build={"bos": "<s>", "eos": "</s>"}
    )
    raw = raw_stream(tmp_path, {"batch.fields": FIELDS})
    fim = {"rate": 1, "level": "token", "sentinels": SENTINELS, "loss": loss}
    raw["sources"] = [{"name": "code", "path": f"{tmp_path}/code", "epochs": 1, "fim": fim}]
    batches = take(config_from(raw), None)
    met = [piece for batch in batches for piece in pieces_of(batch)]
    for piece in met:
        assert (piece.tokens[0], piece.tokens[-1], piece.kinds[-2]) in ((start, end, MIDDLE), (start, end, SENTINEL),
                                                                       (start, end, PREFIX))  # fmt: skip
        assert piece.labels[-2] == end
        assert piece.restored() == texts[piece.document].tolist()
    assert len(met) == 40
    assert sum(b["loss_tokens"] for b in batches) == sum({b["step"]: b["step_loss_tokens"] for b in batches}.values())


@pytest.mark.parametrize("labels", ["aligned", "unshifted"])
@pytest.mark.parametrize("loss", ["all", "middle"])
def test_texts_with_a_middle_blend_with_conversations(folder, tmp_path, labels, loss):
    turns = np.array([[5, 12], [20, 30]], np.int32)
    chats = [Document(f"{i:06d}", spelled(1, i, 40), turns) for i in range(100)]
    write_documents(tmp_path / "chat", chats)
    raw = raw_stream(folder, {"batch.fields": FIELDS, "batch.labels": labels, "packing.overlong": "split"})
    fim = {"rate": 0.7, "level": "token", "sentinels": SENTINELS, "loss": loss}
    raw["sources"] = [
        {"name": "text", "path": f"{folder}/web", "fim": fim, "epochs": 1},
        {"name": "chat", "path": f"{tmp_path}/chat", "epochs": 1},
    ]
    steps, met = {}, set()
    for batches in take_all_ranks(config_from(raw), 2):
        for batch in batches:
            assert batch["loss_tokens"] == batch["loss_mask"].sum()
            steps.setdefault((batch["step"], batch["step_loss_tokens"]), []).append(batch["loss_tokens"])
            for piece in pieces_of(batch):
                targets = np.roll(piece.trained, 1) if labels == "aligned" else piece.trained
                met.add((piece.source, piece.transformed))
                if piece.source == 1:
                    assert np.flatnonzero(targets).tolist() == [*range(5, 12), *range(20, 30)]
                elif piece.transformed:
                    due = piece.kinds == MIDDLE if loss == "middle" else np.arange(len(targets)) > 0
                    assert np.array_equal(targets, due)
    assert met == {(0, False), (0, True), (1, False)}
    assert all(sum(counts) == due for (_, due), counts in steps.items())
