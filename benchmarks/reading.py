"""Reading local shards: streampipe beside bare zstd decoding and a plain WebDataset pipeline with first-fit packing.

    python benchmarks/reading.py [FOLDER]

FOLDER is a source; without it one is made in a temporary folder: uint16 tokens of the standard library's source,
documents of about 1,000 tokens. Micro batches of 8 x 4,096, THD with tokens, labels, positions and loss mask, one
process; a step is one micro batch, or 64 (gradients are summed up). All are measured in turns in one run, so that
ratios hold; a first turn, in which memory is touched for the first time, is not counted.
"""

import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from streampipe import StreamLoader, build_loader, config_from
from streampipe.shards import Document, encode_shard
from streampipe.shards.manifest import Manifest, TokenizerInfo, length_histogram, write_manifest
from streampipe.storage import open_store
from streampipe.tools.bench import bare_decode_rate

ROWS, SEQ_LENGTH, SECONDS, TURNS = 8, 4096, 4.0, 5


def make_source(folder: str) -> None:
    files = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))[:2500]
    texts = [file.read_text(errors="replace") for file in files]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=32_000, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.train_from_iterator(texts[:600], trainer)
    ids = np.concatenate([np.array(encoded.ids, np.uint16) for encoded in tokenizer.encode_batch_fast(texts)])
    generator, store, entries, lengths = np.random.default_rng(0), open_store(folder), [], []
    for shard in range(8):
        documents, tokens = [], 0
        while tokens < 8_000_000:
            length = int(np.clip(generator.lognormal(np.log(1000) - 0.72, 1.2), 1, 60_000))
            start = int(generator.integers(0, len(ids) - length))
            documents.append(Document(f"{shard:05d}-{len(documents):06d}", ids[start : start + length]))
            tokens += length
            lengths.append(length)
        encoded = encode_shard(documents, f"train-{shard:05d}", token_dtype="uint16")
        store.write(encoded.shard_name, encoded.shard_bytes)
        store.write(encoded.index_name, encoded.index_bytes)
        entries.append(encoded.entry)
    write_manifest(
        store,
        Manifest(
            format_version=1,
            kind="text",
            compression="zstd",
            token_dtype="uint16",
            members=["tokens"],
            tokenizer=TokenizerInfo("a" * 64, "b" * 64, 32_000, 31_999, 0, None, None, {}),
            chat_template_hash=None,
            splits={"train": entries},
            histogram={"train": length_histogram(lengths)},
            counts={},
            inputs=[],
            build={},
            hash="",
        ),
    )


def webdataset_batches(folder: str) -> Iterator[dict[str, torch.Tensor]]:
    """What a careful user writes: decode members, first-fit over 64 open rows, labels and positions per document."""
    shards = [f"pipe:zstd -dcq {path}" for path in sorted(Path(folder).glob("train-*.tar.zst"))]
    rows: list[list[np.ndarray]] = []
    room: list[int] = []
    full: list[list[np.ndarray]] = []
    while True:
        for sample in webdataset.WebDataset(shards, shardshuffle=False, empty_check=False).decode():
            tokens = sample["tokens.npy"]
            for start in range(0, len(tokens), SEQ_LENGTH):
                piece = tokens[start : start + SEQ_LENGTH]
                at = next((i for i, left in enumerate(room) if left >= len(piece)), None)
                if at is None:
                    if len(rows) == 64:
                        fullest = int(np.argmin(room))
                        full.append(rows.pop(fullest))
                        room.pop(fullest)
                    rows.append([])
                    room.append(SEQ_LENGTH)
                    at = len(rows) - 1
                rows[at].append(piece)
                room[at] -= len(piece)
            while len(full) >= ROWS:
                yield thd([full.pop() for _ in range(ROWS)])


def thd(rows: list[list[np.ndarray]]) -> dict[str, torch.Tensor]:
    size = ROWS * SEQ_LENGTH
    tokens, labels = np.zeros(size, np.int64), np.full(size, -100, np.int64)
    positions, mask = np.zeros(size, np.int64), np.zeros(size, np.float32)
    cu_seqlens, real = [0], 0
    for number, row in enumerate(rows):
        at = number * SEQ_LENGTH
        for piece in row:
            end = at + len(piece)
            tokens[at:end] = piece
            labels[at : end - 1] = piece[1:]
            positions[at:end] = np.arange(len(piece))
            mask[at : end - 1] = 1
            cu_seqlens.append(end)
            at, real = end, real + len(piece)
        if at < (number + 1) * SEQ_LENGTH:
            cu_seqlens.append((number + 1) * SEQ_LENGTH)
    arrays = {"tokens": tokens, "labels": labels, "position_ids": positions, "loss_mask": mask}
    return {name: torch.from_numpy(array) for name, array in arrays.items()} | {"real": torch.tensor(real)}


class Counted(Iterator[dict[str, Any]]):
    """Batches, with their tokens so far."""

    def __init__(self, batches: Iterator[dict[str, Any]]) -> None:
        self.tokens = 0
        self._batches = batches

    def __next__(self) -> dict[str, Any]:
        batch = next(self._batches)
        self.tokens += int(batch["real"])
        return batch


def rate(batches: Iterator[dict[str, Any]], tokens_so_far: Callable[[], int]) -> float:
    next(batches)
    before, began = tokens_so_far(), time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        next(batches)
    return (tokens_so_far() - before) / (time.perf_counter() - began)


def tokens_of(loader: StreamLoader) -> int:
    return int(loader.metrics()["tokens"])


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = sys.argv[1] if len(sys.argv) > 1 else scratch
        if len(sys.argv) == 1:
            make_source(folder)
        raw = {"seq_length": SEQ_LENGTH, "sources": [{"name": "web", "path": folder}]}
        batches = [{"global_batch_size": size, "micro_batch_size": ROWS} for size in (64 * ROWS, ROWS)]
        rates: list[tuple[float, ...]] = []
        with ExitStack() as stack:
            loaders = [stack.enter_context(build_loader(config_from(raw | {"batch": batch}))) for batch in batches]
            theirs = Counted(webdataset_batches(folder))
            for _ in range(TURNS + 1):
                bare = [bare_decode_rate(loaders[0].stream, keep=keep) or 0.0 for keep in (True, False)]
                own = [rate(loader, partial(tokens_of, loader)) for loader in loaders]
                rates.append((*bare, *own, rate(theirs, lambda: theirs.tokens)))
                time.sleep(1)  # whatever runs ahead has run as far as it may, and rests while others are measured
    kept, discarded, many, one, wds = np.median(np.array(rates[1:]), axis=0)
    print("| what | M tokens/s | of bare zstd, kept | of bare zstd, thrown away | over WebDataset |")
    print("|---|---|---|---|---|")
    for what, found in (
        ("bare zstd decoding, frames thrown away", discarded),
        ("bare zstd decoding, frames kept", kept),
        ("streampipe, one process, 64 micro batches a step", many),
        ("streampipe, one process, 1 micro batch a step", one),
        ("WebDataset, first-fit, one process", wds),
    ):
        print(f"| {what} | {found / 1e6:.1f} | {found / kept:.0%} | {found / discarded:.0%} | {found / wds:.1f} x |")


if __name__ == "__main__":
    main()
