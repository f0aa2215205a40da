"""What changes in the course of a run: weights, sources, lengths, shuffling, step sizes; and what may not."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import CODE, WEB, drawn_lengths, stream_of, write_source

from streampipe import ConfigError, CursorMismatchError, Topology, build_loader, config_from
from streampipe.cursor import read_cursor
from streampipe.plan.schedule import Schedule
from streampipe.stream import open_stream
from streampipe.tools.digest import digest_steps

PHASES = [
    {"start": 6000, "weights": {"web": 0.2, "code": 0.8}, "shuffle": {"shards": 1}},
    {"start": 16_000, "weights": {"code": 0}, "seq_length": 256, "packing": {"overlong": "truncate"}},
    {"start": "30K", "weights": {"web": 1, "code": 1}, "seq_length": 64, "plan": {"windows": 8}},
]


def with_phases(folder, phases=PHASES, **changes):
    return stream_of(folder, {"phases": phases, **changes})


def digests(config, steps, dp_size=1, cursor=None):
    return list(digest_steps(config, steps, dp_size, cursor))


def hashes(steps):
    return [step["sha256"] for step in steps]


def frames_planned(stream, rounds):
    """Every frame that rounds take, as (source, epoch, shard, frame)."""
    planned = []
    for number in rounds:
        frames = stream.planner.round(number).frames
        names = [stream.sources[source].name for source in frames.source.tolist()]
        planned += list(zip(names, frames.epoch.tolist(), frames.shard.tolist(), frames.frame.tolist(), strict=True))
    return planned


def test_phases_give_the_same_batches_on_any_topology(corpora):
    config = with_phases(corpora)
    one = digests(config, 40)
    assert hashes(one) == hashes(digests(config, 40, dp_size=4))
    assert hashes(one) == hashes(digests(with_phases(corpora, **{"loader.num_workers": 2}), 40, dp_size=2))
    assert {step["cursor"]["phase"] for step in one} == {0, 1, 2, 3}


def test_every_step_of_a_run_with_phases_resumes_to_the_same_future(corpora):
    config = with_phases(corpora)
    walked = digests(config, 36)
    for place in range(0, 32, 3):
        resumed = digests(config, 3, dp_size=2, cursor=walked[place]["cursor"])
        assert hashes(resumed) == hashes(walked[place + 1 : place + 4])
        assert resumed[-1]["cursor"] == walked[place + 3]["cursor"]


# Balanced from the start; then with longer sequences, in other windows, in random order, and balanced again.
BALANCED = [
    {"start": 8000, "seq_length": 256},
    {"start": "16K", "plan": {"windows": 3, "even_rows": 4}},
    {"start": "24K", "plan": {"balance": False, "even_rows": None}},
    {"start": "32K", "plan": {"balance": "cost"}, "seq_length": 64},
]


def test_balance_changes_by_phase_and_gives_the_same_batches_on_any_topology_and_after_any_step(corpora):
    config = with_phases(corpora, BALANCED, **{"plan.balance": "cost", "plan.even_rows": 2})
    walked = digests(config, 26)
    assert hashes(walked) == hashes(digests(config, 26, dp_size=4))
    balances = [step["cursor"]["stream"]["balance"] for step in walked]
    assert list(dict.fromkeys(balances)) == ["cost/2", "cost/4", "off"]
    assert walked[-1]["cursor"]["phase"] == 4
    for place in range(0, 22, 2):
        resumed = digests(config, 3, dp_size=2, cursor=walked[place]["cursor"])
        assert hashes(resumed) == hashes(walked[place + 1 : place + 4])
        assert resumed[-1]["cursor"] == walked[place + 3]["cursor"]


def test_rows_of_a_balanced_phase_are_aligned_to_those_of_the_run(corpora):
    config = with_phases(corpora, BALANCED[:1], **{"plan.balance": "cost", "plan.even_rows": 2})
    stream = open_stream(config)
    schedule, begun = Schedule(stream.planner, stream.place(stream.start())), None
    while begun is None:
        step = schedule.next(16)
        begun = schedule.place if step.seq_length == 128 and schedule.seq_length() == 256 else None
    assert begun.offset == 0
    assert sum(span.last - span.first for span in step.spans) < 16, "the last step of the phase is completed"
    planned = stream.planner.round(begun.round, first=begun.sequences)
    assert schedule.next(16).spans[0].plan is planned, "what follows counts the empty ones"


@pytest.mark.parametrize(
    ("stream", "phase"), [({"balance": "cost"}, {"balance": "off"}), ({}, {"balance": "cost", "model_width": 64})]
)
def test_the_balance_of_a_cursor_s_phase_may_not_be_changed(corpora, stream, phase):
    plans = {f"plan.{key}": value for key, value in stream.items()}
    cursor = digests(with_phases(corpora, [{"start": 3000, "plan": phase}], **plans), 8)[-1]["cursor"]
    assert cursor["phase"] == 1
    with pytest.raises(CursorMismatchError) as caught:
        digests(with_phases(corpora, [{"start": 3000}], **plans), 1, cursor=cursor)
    assert "balance" in caught.value.fields
    changed = {"plan.balance": "cost" if not stream else "off"}
    with pytest.raises(CursorMismatchError) as caught:
        digests(with_phases(corpora, [{"start": 3000, "plan": phase}], **changed), 1, cursor=cursor)
    assert "phases" in caught.value.fields


def test_rows_of_a_batch_are_equally_long_and_a_phase_completes_its_last_step(corpora):
    lengths = []
    with build_loader(with_phases(corpora), Topology()) as loader:
        while loader.state_dict()["phase"] < 3:
            batch = next(loader)
            lengths.append(batch["tokens"].numel() // 2)
            assert batch["cu_seqlens_padded"][-1] == batch["tokens"].numel()
            assert batch["max_seqlen"] <= lengths[-1]
    assert [length for n, length in enumerate(lengths) if not n or lengths[n - 1] != length] == [128, 256]


def test_a_phase_change_loses_and_repeats_nothing(corpora):
    stream = open_stream(with_phases(corpora))
    planned = Counter(frames_planned(stream, range(30)))
    assert set(planned.values()) == {1}
    for source in stream.sources:
        last = max(epoch for name, epoch, _, _ in planned if name == source.name)
        per_epoch = Counter(epoch for name, epoch, _, _ in planned if name == source.name)
        frames = sum(len(source.index(shard).tokens) for shard in range(len(source.shard_tokens)))
        assert all(per_epoch[epoch] == frames for epoch in range(last)), "epochs that are over are whole"


def test_a_change_of_shuffle_reaches_a_source_with_its_next_epoch(corpora):
    before = open_stream(stream_of(corpora))
    after = open_stream(with_phases(corpora, [{"start": 5000, "shuffle": False}]))
    for axis, changed in zip(before.planner.axes, after.planner.axes, strict=True):
        one, two = axis.frames_between(0, axis.start_of(1)), changed.frames_between(0, axis.start_of(1))
        assert one.frame.tolist() == two.frame.tolist(), "the present epoch goes on as it was"
        following = changed.frames_between(axis.start_of(1), axis.start_of(2))
        assert following.shard.tolist() == sorted(following.shard.tolist())


def test_a_phase_may_be_added_after_the_cursor_but_not_before_it(corpora):
    plain = digests(stream_of(corpora), 12)
    cursor = plain[4]["cursor"]
    later = digests(with_phases(corpora, [{"start": 20_000, "weights": {"web": 1, "code": 9}}]), 30, cursor=cursor)
    assert hashes(later)[:3] == hashes(plain)[5:8]
    assert later[-1]["cursor"]["phase"] == 1
    with pytest.raises(CursorMismatchError) as caught:
        digests(with_phases(corpora, [{"start": 3000, "weights": {"web": 1}}]), 1, cursor=cursor)
    assert caught.value.fields == ("phases[0].start",)


def test_a_phase_that_is_over_may_not_be_changed(corpora):
    cursor = next(step for step in digests(with_phases(corpora), 40) if step["cursor"]["phase"] == 2)["cursor"]
    changed = [{**PHASES[0], "weights": {"web": 0.3, "code": 0.7}}, *PHASES[1:]]
    with pytest.raises(CursorMismatchError) as caught:
        digests(with_phases(corpora, changed), 1, cursor=cursor)
    assert "phases" in caught.value.fields


def test_a_source_joins_at_resume(corpora, tmp_path):
    write_source(tmp_path / "books", 2, drawn_lengths(40, 80, "books"))
    plain = digests(stream_of(corpora), 6)
    raw_sources = [
        {"name": "web", "path": f"{corpora}/web", "weight": 0.6},
        {"name": "code", "path": f"{corpora}/code", "weight": 0.4},
        {"name": "books", "path": f"{tmp_path}/books", "weight": 0},
    ]
    phases = [{"start": 15_000, "weights": {"books": 1.0}}]
    config = stream_of(corpora, {"sources": raw_sources, "phases": phases})
    resumed = digests(config, 20, cursor=plain[-1]["cursor"])
    assert resumed[-1]["cursor"]["sources"]["books"][6] > 0
    assert hashes(resumed)[:2] == hashes(digests(stream_of(corpora), 8))[6:]
    again = digests(config, 5, dp_size=2, cursor=resumed[14]["cursor"])
    assert hashes(again) == hashes(resumed[15:20])


def grown(folder, copy, count):
    """Write the source with more documents in more shards, of which the first are those of before."""
    lengths = [*CODE, *drawn_lengths(count, 70, "more code")]
    return write_source(copy, 1, lengths, sizes=[20, 20, 20, count])


def test_a_source_that_has_grown_takes_its_new_shards_in_with_its_next_epoch(tmp_path):
    write_source(tmp_path / "web", 0, WEB)
    write_source(tmp_path / "code", 1, CODE, sizes=[20, 20, 20])
    config = stream_of(tmp_path)
    cursor = digests(config, 4)[-1]["cursor"]
    present = frames_planned(open_stream(config), [cursor["round"]])
    grown(tmp_path, tmp_path / "code", 25)
    stream = open_stream(config)
    resumed = stream.resumed(read_cursor(cursor))
    axis = next(axis for axis in resumed.planner.axes if axis.name == "code")
    assert [era.shards for era in axis.eras] == [3, 4]
    planned = Counter(frame for frame in frames_planned(resumed, range(cursor["round"], 40)) if frame[0] == "code")
    assert set(planned.values()) == {1}
    per_epoch = Counter(epoch for _, epoch, _, _ in planned)
    frames = [len(resumed.sources[0].index(shard).tokens) for shard in range(4)]
    whole = sorted(epoch for epoch in per_epoch)[1:-1]
    assert [per_epoch[epoch] for epoch in whole] == [
        sum(frames) if epoch >= axis.eras[1].epoch else sum(frames[:3]) for epoch in whole
    ]
    assert frames_planned(resumed, [cursor["round"]]) == present, "what is being delivered goes on as it was"
    going_on = digests(config, 14, cursor=cursor)
    for place in (2, 7, 10):
        assert hashes(digests(config, 3, cursor=going_on[place]["cursor"])) == hashes(going_on)[place + 1 : place + 4]


@pytest.mark.parametrize("tokens", [3000, "3K"])
def test_a_ramp_cuts_the_same_order_into_other_steps(corpora, tokens):
    ramp = [{"size": 4}, {"size": 8, "tokens": tokens}, {"size": 16, "steps": 9}]
    sizes, ids = [], []
    with build_loader(stream_of(corpora, {"batch.global_batch_size": ramp}), Topology()) as loader:
        for batch in loader:
            if batch["micro_batch"] == 0:
                sizes.append(batch["num_micro_batches"] * 2)
            ids += batch["sequence_ids"].tolist()
            if batch["step"] == 11:
                break
    assert sizes[0] == 4
    assert sizes[9:12] == [16, 16, 16]
    assert set(sizes) == {4, 8, 16}
    assert sizes == sorted(sizes)


def test_steps_by_tokens_keep_their_positions_when_sequences_grow(corpora):
    config = with_phases(corpora, PHASES[:2], **{"batch.global_batch_size": 1, "batch.global_batch_tokens": 2048})
    for dp_size in (1, 2):
        positions = set()
        with build_loader(config, Topology(dp_size=dp_size)) as loader:
            for batch in loader:
                positions.add(batch["tokens"].numel() * batch["num_micro_batches"] * dp_size)
                if loader.state_dict()["phase"] == 2:
                    break
        assert positions == {2048}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"phases": [{"start": 5}, {"start": 5}]}, r"\$\.phases\[1\]\.start: phases begin one after the other"),
        ({"phases": [{"start": "5X"}]}, r"\$\.phases\[0\]\.start: must be a number of tokens"),
        ({"phases": [{"start": 5, "weights": {"books": 1}}]}, r"\$\.phases\[0\]\.weights: there is no source 'books'"),
        (
            {"phases": [{"start": 5, "packing": {"policy": "x"}}]},
            r"\$\.phases\[0\]\.packing\.policy: must be one of best_fit, concat, none",
        ),
        ({"phases": [{"start": 5, "seq_length": 0}]}, r"\$\.phases\[0\]: \$\.seq_length: must be at least 1"),
        ({"batch.global_batch_size": []}, r"\$\.batch\.global_batch_size: a schedule needs at least one stage"),
        ({"batch.global_batch_size": [{"size": 4, "steps": 3}]}, "the first stage begins at 0"),
        (
            {"batch.global_batch_size": [{"size": 4}, {"size": 8, "tokens": "2X"}]},
            r"\$\.batch\.global_batch_size\[1\]\.tokens: must be a number of tokens such as",
        ),
        ({"batch.global_batch_size": [{"size": 4}, {"size": 8, "steps": 1, "tokens": 2}]}, "`tokens` or `steps`"),
        ({"batch.global_batch_tokens": 100}, r"\$\.batch\.global_batch_tokens: must be a multiple of every seq_length"),
    ],
)
def test_changes_without_meaning_are_refused(corpora, changes, told):
    with pytest.raises(ConfigError, match=told):
        stream_of(corpora, changes)


def test_sizes_of_a_ramp_must_fit_the_ranks(corpora):
    config = stream_of(corpora, {"batch.global_batch_size": [{"size": 8}, {"size": 12, "steps": 3}]})
    with pytest.raises(ConfigError, match="12 is not divisible by dp_size 4 x micro_batch_size 2"):
        build_loader(config, Topology(dp_size=4))


def test_weights_by_documents_are_shares_of_documents(corpora):
    stream = open_stream(stream_of(corpora, {"weight_by": "documents"}))
    weights = stream.planner.blend.segments[0].weights
    mean = [source.shard_tokens.sum() / source.shard_documents.sum() for source in stream.sources]
    share = [float(weight) / tokens for weight, tokens in zip(weights, mean, strict=True)]
    assert share[0] / sum(share) == pytest.approx(0.4)


def test_weights_by_documents_are_shares_of_documents_of_mocks_too():
    """Clipped at `max`, so that the mean is not the one that was asked for."""
    mocks = {"long": {"mean": 5000, "max": 8000}, "short": {"mean": 100}}
    sources = [{"name": name, "mock": mock, "weight": 1} for name, mock in mocks.items()]
    raw = {"seq_length": 1024, "sources": sources, "weight_by": "documents"}
    planned = open_stream(config_from(raw)).planner.round(0)
    counts = np.bincount(planned.frames.source[planned.pieces.occurrence[planned.pieces.begun()]])
    assert counts[0] == pytest.approx(counts[1], rel=0.1)


def test_a_run_can_stop_with_a_source_or_let_it_repeat(corpora):
    for on_exhausted, finite in (("stop", True), ("repeat", False), ("renormalise", False)):
        sources = [
            {"name": "web", "path": f"{corpora}/web", "weight": 0.6},
            {"name": "code", "path": f"{corpora}/code", "weight": 0.4, "epochs": 1, "on_exhausted": on_exhausted},
        ]
        stream = open_stream(stream_of(corpora, {"sources": sources}))
        assert (stream.planner.rounds is not None) == finite
        code = stream.planner.blend.positions(1000)[0]
        assert (code > stream.sources[0].shard_tokens.sum()) == (on_exhausted == "repeat")


def test_an_order_file_decides_the_order_of_shards_in_every_epoch(corpora, tmp_path):
    (tmp_path / "order.txt").write_text("train-00002.tar.zst\ntrain-00000.tar.zst\n\ntrain-00001.tar.zst\n")
    sources = [{"name": "web", "path": f"{corpora}/web", "order": str(tmp_path / "order.txt")}]
    axis = open_stream(stream_of(corpora, {"sources": sources})).planner.axes[0]
    assert [axis.shard_order(epoch).tolist() for epoch in (0, 3)] == [[2, 0, 1]] * 2
    (tmp_path / "order.txt").write_text("train-00002.tar.zst\n")
    with pytest.raises(ConfigError, match="must list every shard once, but it lists 1 of 3 shards"):
        open_stream(stream_of(corpora, {"sources": sources}))


@settings(max_examples=10)
@given(
    st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=3),
    st.integers(0, 12),
)
def test_any_phases_resume_from_any_step(corpora, drawn, place):
    phases = [
        {"start": sum(start for start, _, _ in drawn[: n + 1]) + 100, "weights": {"web": web + 1, "code": code}}
        for n, (_, web, code) in enumerate(drawn)
    ]
    config = with_phases(corpora, phases)
    walked = digests(config, place + 4)
    assert hashes(digests(config, 3, cursor=walked[place]["cursor"])) == hashes(walked)[place + 1 :]
    counts = np.array([walked[-1]["cursor"]["sources"][name][6] for name in ("web", "code")])
    assert counts.sum() > 0
