"""Cuts inside tokens against their definition, on real documents: are all parts as if encoded alone?

    python benchmarks/fim_equality.py TOKENIZER.json [--documents 100000] [--skip 0] [--level character]
        [--slack 4] [--text FOLDER ...] [--train 32000]

What `TextCutter` gives for each document is compared with the plain way, which knows nothing of windows: decode the
document, cut its text at the characters drawn, encode prefix, middle and suffix each by itself with `tokenizers`. The
draws that were thrown away are encoded as well: none of them may have had room. `--train` makes a byte-level BPE of so
many tokens if there is no such file. `--skip` goes on where a run ended. The last line is JSON.
"""

import argparse
import json
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from real_texts import FOLDERS, real_documents
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from streampipe.assemble.fim_cuts import Counts, Text, at_tokens
from streampipe.assemble.fim_text import TextCutter
from streampipe.encoder import TokenizerEncoder, open_encoder
from streampipe.rng import raw_words, sorted_cut

CHUNK = 2000
SHOWN = 5


def trained(path: Path, vocabulary: int, folders: list[Path]) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(real_documents(folders, 20_000), trainer)
    path.write_text(tokenizer.to_str(), encoding="utf-8")


class Reference:
    """A tokenizer as the library has it, without what a build switches off."""

    def __init__(self, data: bytes, encoder: TokenizerEncoder) -> None:
        content = json.loads(data) | {"post_processor": None, "truncation": None, "padding": None}
        self._encoder = encoder
        self._tokenizer = Tokenizer.from_str(json.dumps(content))
        self._tokenizer.encode_special_tokens = True
        self._batches = encoder.table is not None

    def stored(self, texts: list[str]) -> list[list[int]]:
        return [found.ids for found in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def texts(self, stored: list[list[int]]) -> list[str]:
        return list(self._tokenizer.decode_batch(stored, skip_special_tokens=False))

    def inner(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of parts that no space is put before."""
        return self.stored(texts) if self._batches else [self._encoder.encode(text, first=False) for text in texts]


def places(text: str, level: str) -> list[int] | range:
    if level == "character":
        return range(len(text) + 1)
    return [0, *(at + 1 for at, character in enumerate(text) if character == "\n"), len(text)]


def compared(texts: list[str], words: list[int], cutter: TextCutter, reference: Reference, settings: Any) -> Counter:
    """Compare the documents of a chunk."""
    found: Counter[str] = Counter()
    stored = reference.stored(texts)
    cuts: list[tuple[int, int, list[list[int]] | None]] = []  # document, draw, parts; None for a draw thrown away
    plain = reference.texts(stored)
    for number, ids in enumerate(stored):
        if not ids:
            continue
        text, counts = Text(memoryview(array("I", ids)), True, words[number]), Counts()
        began = time.perf_counter()
        parts = cutter.parts(text, len(ids) + settings.slack, counts)
        found["nanoseconds"] += int((time.perf_counter() - began) * 1e9)
        found["documents"] += 1
        found["tokens"] += len(ids)
        found["fallbacks"] += counts.fallbacks
        found["whole"] += counts.whole
        found["redraws"] += counts.redraws
        found["altered"] += plain[number] != texts[number]
        cuts += [(number, draw, None) for draw in range(counts.redraws)]
        if counts.fallbacks:
            found["differences"] += parts != at_tokens(text)
            found["no text"] += not counts.redraws
        else:
            cuts.append((number, counts.redraws, [[i for chunk in part for i in chunk] for part in parts or ()]))
            found["added"] += sum(map(len, cuts[-1][2] or ())) - len(ids)
    prefixes, middles, suffixes = [], [], []
    for number, draw, _ in cuts:
        at = places(plain[number], settings.level)
        one, other = (at[place] for place in sorted_cut(words[number], len(at) - 1, draw))
        prefixes.append(plain[number][:one])
        middles.append(plain[number][one:other])
        suffixes.append(plain[number][other:])
    expected = zip(reference.stored(prefixes), reference.inner(suffixes), reference.inner(middles), strict=True)
    for place, ((number, draw, parts), due) in enumerate(zip(cuts, expected, strict=True)):
        size = sum(map(len, due))
        has_room = len(stored[number]) <= size <= len(stored[number]) + settings.slack
        if (parts is not None or has_room) and parts != list(due):
            found["differences"] += 1
            if found["differences"] <= SHOWN:
                print(f"draw {draw} of {[prefixes[place], middles[place], suffixes[place]]!r}", file=sys.stderr)
                print(f"  expected {list(due)}\n  but got {parts}", file=sys.stderr)
    return found


def chunks(texts: Iterator[str]) -> Iterator[list[str]]:
    while chunk := list(islice(texts, CHUNK)):
        yield chunk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--level", choices=["character", "line"], default="character")
    parser.add_argument("--slack", type=int, default=4)
    parser.add_argument("--text", type=Path, nargs="+", default=FOLDERS)
    parser.add_argument("--train", type=int, default=0)
    settings = parser.parse_args()
    if settings.train and not settings.tokenizer.exists():
        trained(settings.tokenizer, settings.train, settings.text)
    data = settings.tokenizer.read_bytes()
    special = {token["content"]: token["id"] for token in json.loads(data)["added_tokens"] if token["special"]}
    encoder = open_encoder(data, special, "tokenizer")
    cutter, reference = TextCutter(encoder, settings.level, None, "I"), Reference(data, encoder)
    total: Counter[str] = Counter()
    number = settings.skip
    words = raw_words(settings.skip + settings.documents, "fim equality").tolist()
    for texts in chunks(real_documents(settings.text, settings.documents, settings.skip)):
        total += compared(texts, words[number : number + len(texts)], cutter, reference, settings)
        number += len(texts)
    row = [total["documents"], total["tokens"] // total["documents"], total["differences"]]
    row += [f"{total[name] / total['documents']:.3%}" for name in ("fallbacks", "whole", "redraws", "altered")]
    print("| documents | mean tokens | differences | fallbacks | whole | redraws a document | altered by NFC |")
    print(f"|---|---|---|---|---|---|---|\n| {' | '.join(map(str, row))} |")
    print(json.dumps(total))


if __name__ == "__main__":
    main()
