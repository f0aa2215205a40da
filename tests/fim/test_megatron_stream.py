"""`compat: megatron` in a stream: every row is what Megatron makes of its window, the same on any topology."""

import json
import random
from itertools import pairwise
from math import sqrt

import numpy as np
import pytest
from fim.tokenizers_of import EVERY, LINES, SPECIAL
from laws import assert_lockstep, assert_same_future, plain, same_batch, sequences_of, take, take_all_ranks
from streams import SEQ_LENGTH, raw_stream, specials_of, write_documents
from tokenizers import Tokenizer

from streampipe import ConfigError, CursorMismatchError, build_loader, config_from
from streampipe.assemble.megatron_fim import MegatronFim
from streampipe.assemble.megatron_windows import KeyedDraws
from streampipe.encoder import open_codec, open_encoder
from streampipe.rng import raw_words
from streampipe.shards import Document
from streampipe.stream import open_stream

TOKENIZER = EVERY["cl100k"]()
IDS = specials_of(TOKENIZER)
END, SEPARATOR = IDS["<|endoftext|>"], IDS["<file_sep>"]
FIM = {"compat": "megatron", "rate": 0.6, "sentinels": "starcoder"}
ROLES = {"prefix": "<fim_prefix>", "suffix": "<fim_suffix>", "middle": "<fim_middle>", "pad": "<fim_pad>"}


def texts(count, seed):
    """Short ones, so that windows often end where a document does, and longer ones of several lines or files."""
    rng = random.Random(seed)
    own = open_encoder(TOKENIZER, IDS, "$")
    found = []
    for _ in range(count):
        files = [
            own.encode("".join(rng.choice(LINES) for _ in range(rng.randrange(1, 4))), first=True)
            for _ in range(rng.choice([1, 1, 3]))
        ]
        found.append([*[id_ for file in files for id_ in [SEPARATOR, *file]][1:], END])
        found.append([*own.encode(rng.choice(["x", "y = 1", "f()", "a = '<file_sep>'"]), first=True), END])
    return found


def write(folder, documents, tokenizer=TOKENIZER, eos="<|endoftext|>", pad_id=None):
    write_documents(
        folder,
        [Document(f"{i:06d}", np.array(ids, np.uint16)) for i, ids in enumerate(documents)],
        token_dtype="uint16",
        tokenizer=tokenizer,
        frame_tokens=400,
        build={"eos": eos, "bos": None},
        pad_id=pad_id,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("megatron")
    write(made / "code", texts(300, 1))
    write(made / "web", texts(150, 2))
    return made


def stream(folder, changes=None, *, names=("code",), epochs=1, fim=FIM, **options):
    raw = raw_stream(folder, {"packing.policy": "concat", "batch.global_batch_size": 8} | (changes or {}))
    own = {} if fim is None else {"fim": fim | options}
    raw["sources"] = [
        {"name": name, "path": f"{folder}/{name}", "epochs": epochs, "weight": 1, **own} for name in names
    ]
    return config_from(raw)


class Whole:
    """What Megatron calls: the library, with whatever the file says."""

    def __init__(self, data):
        self.library = Tokenizer.from_str(data.decode())

    def decode(self, ids):
        return self.library.decode(ids, skip_special_tokens=True)

    def encode(self, text):
        return self.library.encode(text).ids


def options(**own):
    roles = {role: IDS[name] for role, name in ROLES.items()}
    return MegatronFim(**roles, eod=END, **({"rate": 0.6, "spm_rate": 0.5} | own))


def rows_of(batches, fields=("tokens", "labels", "loss_mask")):
    """Return the arrays of each sequence by its canonical number."""
    found = {}
    for batch in map(plain, batches):
        for at, number in enumerate(batch["sequence_ids"].tolist()):
            found[number] = [batch[name].reshape(-1, SEQ_LENGTH)[at] for name in fields]
    return found


def windows_of(folder, **settings):
    """Rebuild Megatron's windows from the stream without fill-in-the-middle: number, ids, word, whether all are there.

    Frames stand in the order of the line, so the first pieces of its sequences tell which follows which.
    """
    config = stream(folder, fim=None, **settings)
    rows, planner = rows_of(take(config, None)), open_stream(config).planner
    before = 0
    for round_ in range(planner.rounds):
        plan = planner.round(round_)
        words = raw_words(len(plan), 7, "fim-megatron", round_).tolist()
        first, pieces = plan.sequence_start[:-1], plan.pieces
        line = np.lexsort((pieces.start[first], pieces.document[first], pieces.occurrence[first])).tolist()
        for place, (sequence, follower) in enumerate(zip(line, [*line[1:], None], strict=True)):
            filled = int(pieces.length[plan.sequence_start[sequence] : plan.sequence_start[sequence + 1]].sum())
            ids = rows[before + sequence][0][:filled].tolist()
            if follower is not None:
                ids.append(int(rows[before + follower][0][0]))
            yield before + sequence, ids, words[place], follower is not None
        before += len(plan)


@pytest.mark.parametrize(
    ("config", "own"),
    [
        ({}, {}),
        ({"rate": 1, "spm_rate": 0}, {"rate": 1, "spm_rate": 0}),
        ({"rate": 0.5, "spm_rate": 1}, {"rate": 0.5, "spm_rate": 1}),
        (
            {"split_on": "<file_sep>", "fragment_rate": 0.7},
            {"split": SEPARATOR, "fragment_rate": 0.7},
        ),
        ({"rate": 1, "no_prefix": "def"}, {"rate": 1, "no_prefix": "def"}),
        ({"sentinels": {role: IDS[name] for role, name in ROLES.items()}}, {}),
    ],
    ids=["PSM and SPM", "PSM alone", "SPM alone", "fragments", "no_prefix", "sentinels by id"],
)
@pytest.mark.parametrize("names", [("code",), ("code", "web")], ids=["one source", "blend"])
def test_every_row_is_what_megatron_makes_of_its_window(folder, names, config, own):
    got = rows_of(take(stream(folder, names=names, **config), None))
    codec, fim = Whole(TOKENIZER), options(**own)
    at_document_ends = cut = 0
    for number, ids, word, followed in windows_of(folder, names=names):
        made = fim.window(ids, KeyedDraws(word), codec)
        assert len(made) == len(ids)
        inputs, targets = (made[:-1], made[1:]) if followed else (made, [*made[1:], -100])
        empty = SEQ_LENGTH - len(inputs)
        assert (empty == 0) or not followed
        tokens, labels, mask = (array.tolist() for array in got.pop(number))
        assert tokens == inputs + [END] * empty, "padding is no FIM-pad"
        assert labels == targets + [-100] * empty
        assert mask == [float(label >= 0) for label in labels]
        at_document_ends += followed and ids[-2] == END
        cut += IDS["<fim_pad>"] not in made
    for tokens, labels, mask in got.values():  # completes the last step
        assert (tokens == END).all()
        assert (labels == -100).all()
        assert not mask.any()
    assert at_document_ends > 2
    assert cut > 20


def test_without_a_hit_windows_lose_end_tokens_of_empty_segments_only(folder):
    got = rows_of(take(stream(folder, rate=0), None))
    lost = 0
    for number, ids, _, followed in windows_of(folder):
        tokens = got[number][0].tolist()[: len(ids) - followed]
        empty = ids[0] == END or (END, END) in set(pairwise(ids))
        lost += empty
        assert (tokens == ids[: len(tokens)]) == (not empty)
        assert not empty or tokens[0] == ids[1]
    assert lost > 0


@pytest.mark.parametrize("labels", ["aligned", "unshifted"])
def test_trained_tokens_of_a_step_are_known_and_rows_are_one_segment(folder, labels):
    ranks = take_all_ranks(stream(folder, {"batch.labels": labels}, names=("code", "web")), 2)
    assert_lockstep(ranks)
    steps, full = {}, 0
    for batch in (batch for batches in ranks for batch in map(plain, batches)):
        steps.setdefault((batch["step"], batch["step_loss_tokens"]), []).append(batch["loss_tokens"])
        assert batch["loss_tokens"] == batch["loss_mask"].sum() == (batch["labels"] >= 0).sum()
        if batch["loss_tokens"] >= 2 * SEQ_LENGTH - 2:  # two rows without padding
            full += 1
            assert batch["cu_seqlens"].tolist() == [0, SEQ_LENGTH, 2 * SEQ_LENGTH]
            assert batch["position_ids"].tolist() == [*range(SEQ_LENGTH)] * 2
        if labels == "unshifted":
            trained = batch["loss_mask"] == 1
            assert np.array_equal(batch["labels"][trained], batch["tokens"][trained])
    assert len(steps) > 10
    assert full > 40
    assert all(sum(counts) == due for (_, due), counts in steps.items())


@pytest.mark.parametrize("changes", [{}, {"plan.balance": "cost"}], ids=["random order", "balanced"])
def test_the_same_batches_come_on_any_topology_from_any_cursor_and_with_workers(folder, changes):
    config = stream(folder, changes, names=("code", "web"), epochs=2)
    whole = take(config, None)
    one = sequences_of(whole, SEQ_LENGTH)
    assert len(one) > 100
    for dp_size, micro in ((2, 4), (4, 1)):
        other = stream(folder, changes | {"batch.micro_batch_size": micro}, names=("code", "web"), epochs=2)
        ranks = take_all_ranks(other, dp_size)
        assert sequences_of([batch for batches in ranks for batch in batches], SEQ_LENGTH) == one
    for number in (0, 5, len(whole) // 2, len(whole) - 2):
        assert_same_future(take(config, None, cursor=whole[number]["cursor"]), whole[number + 1 :])
    workers = take(stream(folder, changes | {"loader.num_workers": 1}, names=("code", "web"), epochs=2), 16)
    assert all(same_batch(a, b) for a, b in zip(workers, whole, strict=False))


def test_the_same_text_is_cut_otherwise_in_every_window_and_epoch(tmp_path):
    own = open_encoder(TOKENIZER, IDS, "$").encode("".join(LINES[:2]) * 9, first=True)
    write(tmp_path / "code", [[*own[: SEQ_LENGTH - 1], END]] * 40)
    batches = take(stream(tmp_path, epochs=2, rate=1), None)
    rows = [row[0].tobytes() for row in rows_of(batches).values()]
    assert len(rows) == 80
    assert len(set(rows)) > 70


def test_rates_are_as_asked_for_and_told_by_source(folder):
    with build_loader(stream(folder, names=("code", "web"), epochs=2, rate=0.4, spm_rate=0.3)) as loader:
        for _ in loader:
            pass
        told = loader.metrics()
    fim = told["fim"]
    segments = fim["whole"] / fim["rate"]
    assert segments > 700
    assert abs(fim["rate"] - 0.4) < 4 * sqrt(0.4 * 0.6 / segments)
    assert abs(fim["spm_rate"] - 0.3) < 4 * sqrt(0.3 * 0.7 / fim["whole"])
    assert set(fim["sources"]) == {"code", "web"}
    assert all(0.3 < of["rate"] < 0.5 for of in fim["sources"].values())
    documents = [told["sources"][name]["documents"] for name in ("code", "web")]
    assert documents == [2 * 600, 2 * 300], "a token that follows a window counts for no document"


def test_fragments_are_hit_at_the_product_of_both_rates(folder):
    with build_loader(stream(folder, epochs=4, rate=0.8, split_on="<file_sep>", fragment_rate=0.5)) as loader:
        for _ in loader:
            pass
        fim = loader.metrics()["fim"]
    # Segments without a separator, more than half of all, are hit at 0.8.
    assert 0.5 < fim["rate"] < 0.7


def test_parts_get_what_the_tokenizer_adds_and_lose_special_tokens(tmp_path):
    """A file whose post-processor begins texts with a start token, and a document that has one inside."""
    data = EVERY["gpt2"]()
    ids = specials_of(data)
    start, end, inner = ids["<s>"], ids["<|endoftext|>"], ids["<file_sep>"]
    own = open_encoder(data, ids, "$").encode("hello world, " * 3, first=True)
    write(tmp_path / "code", [[start, *own, inner, *own, end]] * 40, data)
    rows = rows_of(take(stream(tmp_path, rate=1, spm_rate=0), None))
    openings = [ids[ROLES[role]] for role in ("prefix", "suffix", "middle")]
    met = 0
    for tokens, labels, _ in rows.values():
        assert inner not in tokens
        for token, target in zip(tokens.tolist(), labels.tolist(), strict=True):
            if token in openings and target >= 0:
                assert target == start
                met += 1
    assert met > 60


def test_what_a_file_cuts_fills_up_or_draws_by_itself_is_off():
    content = json.loads(TOKENIZER)
    content["model"]["dropout"] = 0.5
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 900}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "<s>",
    }  # fmt: skip
    text = "".join(LINES) + "<file_sep>"
    ids = open_codec(json.dumps(content).encode(), "$").encode(text)
    assert ids == Whole(TOKENIZER).encode(text)
    assert ids[-1] == SEPARATOR, "a special token that a text quotes becomes one"


def test_a_stream_without_it_is_planned_as_ever(folder):
    planners = [open_stream(stream(folder, fim=fim)).planner for fim in (None, FIM)]
    lent = 0
    for number in range(planners[0].rounds):
        without, plan = (planner.round(number) for planner in planners)
        assert without.pieces.fim is without.pieces.trained is None
        real = plan.pieces.length > 0
        lent += (~real).sum()
        for name in ("occurrence", "document", "start", "length", "slot", "goes_on"):
            assert np.array_equal(getattr(plan.pieces, name)[real], getattr(without.pieces, name))
        for name in ("tokens", "documents"):
            assert np.array_equal(getattr(plan.running, name), getattr(without.running, name))
        assert np.array_equal(plan.cost, without.cost)
    assert lent > 2


def test_a_cursor_of_other_settings_is_refused_by_name(folder):
    with build_loader(stream(folder)) as loader:
        next(loader)
        state = loader.state_dict()
    for other in (
        {"rate": 0.5},
        {"spm_rate": 0.1},
        {"no_prefix": "x"},
        {"sentinels": ROLES | {"pad": SPECIAL[6]}},
        {"fim": None},
    ):
        with build_loader(stream(folder, **other)) as loader, pytest.raises(CursorMismatchError, match="fim"):
            loader.load_state_dict(state)
    with build_loader(stream(folder, sentinels=ROLES)) as loader:
        loader.load_state_dict(state)  # the same tokens by name


def test_draws_of_a_word_are_frozen():
    """They are an interface: a draw that moves changes every run with compat."""
    draws = KeyedDraws(16418022309619826131)
    assert [draws.two(1000) for _ in range(3)] == [(602, 218), (856, 788), (726, 540)]
    assert not any(KeyedDraws(word).hit(0) for word in range(100))
    assert all(KeyedDraws(word).hit(1) for word in range(100))
    assert {KeyedDraws(word).two(1)[0] for word in range(50)} == {0, 1}


@pytest.mark.parametrize(
    ("changes", "fim", "told"),
    [
        ({}, {"level": "token"}, "fim.level: Megatron has no such choice"),
        ({}, {"psm": "psm"}, "fim.psm: Megatron has no such choice"),
        ({}, {"spm": "spmv1"}, "fim.spm: Megatron has no such choice"),
        ({}, {"min_length": 2}, "fim.min_length: Megatron has no such choice"),
        ({}, {"slack": 9}, "fim.slack: Megatron has no such choice"),
        ({}, {"rate": 1.5}, "fim.rate: must be within 0 and 1"),
        ({}, {"rate": float("nan")}, "fim.rate: must be within 0 and 1"),
        ({}, {"split_on": "<file_sep>"}, "fim.split_on: Megatron fails without fragment_rate"),
        ({}, {"fragment_rate": 0.5}, "fim.fragment_rate: has a meaning with split_on only"),
        ({}, {"split_on": "<file_sep>", "fragment_rate": 2}, "fim.fragment_rate: must be within 0 and 1"),
        ({}, {"split_on": "<file sep>", "fragment_rate": 1}, "fim.split_on: 'code'"),
        ({}, {"split_on": 99999, "fragment_rate": 1}, "fim.split_on: the id 99999 of the token is not within"),
        ({}, {"sentinels": "deepseek"}, "needs a pad token, and the preset 'deepseek' has none"),
        ({}, {"sentinels": "codestral"}, "needs a middle token, and the preset 'codestral' has none"),
        ({}, {"sentinels": "santacoder"}, "has no token '<fim-prefix>' for the prefix"),
        ({}, {"sentinels": ROLES | {"pad": "<fim_paddd>"}}, "has no token '<fim_paddd>' for the pad"),
        ({}, {"sentinels": ROLES | {"pad": "<fim_middle>"}}, "two roles share an id"),
        ({"packing.policy": "best_fit"}, {}, "set packing.policy: concat"),
        ({"packing.overlong": "truncate"}, {}, "truncate takes end tokens away"),
        ({"batch.fields": ["tokens", "fim_parts"]}, {}, "fields: fim_parts tells of parts"),
        ({"batch.fields": ["tokens", "horizon"]}, {}, "fields: horizon tells of parts"),
        ({"phases": [{"start": 10**4, "fim": {"code": {"rate": 0.1}}}]}, {}, "keeps its rates for the whole run"),
        ({"phases": [{"start": 10**4, "packing": {"policy": "best_fit"}}]}, {}, "$.phases[0]: $.sources[0].fim.compat"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_cure(folder, changes, fim, told):
    with pytest.raises(ConfigError) as caught, build_loader(stream(folder, changes, **fim)):
        pass
    assert told in str(caught.value)


def test_keys_of_compat_are_refused_without_it(folder):
    for fim, told in (({"sentinels": ROLES}, "sentinels.pad: only `compat: megatron` fills windows up"),):
        with pytest.raises(ConfigError, match=told):
            stream(folder, {"packing.policy": "best_fit"}, compat=None, **fim)


def test_sources_that_cannot_share_windows_are_refused(folder, tmp_path):
    write(tmp_path / "code", texts(5, 3))
    raw = {"packing": {"policy": "concat"}, "seq_length": SEQ_LENGTH}
    first = {"name": "a", "path": f"{tmp_path}/code", "weight": 1, "fim": FIM}
    for other in ({}, {"fim": FIM | {"rate": 0.1}}):
        second = {"name": "b", "path": f"{folder}/web", "weight": 1, **other}
        with pytest.raises(ConfigError, match=r"sources\[1\].fim: differs from \$.sources\[0\].fim"):
            config_from(raw | {"sources": [first, second]})
    content = json.loads(TOKENIZER)
    content["added_tokens"][-1]["special"] = False
    write(tmp_path / "web", texts(5, 4), json.dumps(content).encode())
    second = first | {"name": "b", "path": f"{tmp_path}/web"}
    with pytest.raises(ConfigError, match=r"another tokenizer\.json or end token"):
        open_stream(config_from(raw | {"sources": [first, second]}))
    write(tmp_path / "endless", texts(5, 4), eos=None)
    with pytest.raises(ConfigError, match="build the source with one"):
        open_stream(config_from(raw | {"sources": [first | {"path": f"{tmp_path}/endless"}]}))
    write(tmp_path / "padded", texts(5, 4), pad_id=IDS["<fim_pad>"])
    with pytest.raises(ConfigError, match=r"sentinels.pad: \d+ is the padding token of 'a'"):
        open_stream(config_from(raw | {"sources": [first | {"path": f"{tmp_path}/padded"}]}))
    mock = {"name": "a", "mock": {"documents": 50, "mean": 50, "max": 90}, "fim": FIM}
    with pytest.raises(ConfigError, match="a mock source has no text"):
        open_stream(config_from(raw | {"sources": [mock]}))
