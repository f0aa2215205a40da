"""How far redrawing bends where real documents are cut: places that were accepted against uniform ones.

    python benchmarks/fim_redraws.py TOKENIZER.json [--documents 20000] [--times 5] [--kinds py js h] [--text FOLDER]

A cut inside a token is thrown away where the document would no longer fit its slot, which cuts at token borders always
do, so a small slack favours them. For each slack: the share of cuts that lie at borders of the document's own tokens,
and the total variation distance to uniform draws (16 more for each) of a cut's distance in characters to the
nearest border, of the tenth of the document that it lies in, of what it parts (a word, at white space, other), and of
the tenth of the document that the middle takes. `first draw` is uniform: what it shows is the noise of so many cuts.
`padding` is what of their room the results leave unused, over 1,000 tokens, where half of the documents are cut.
"""

import argparse
import json
from array import array
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from real_texts import FOLDERS, KINDS, real_documents

from streampipe.assemble.byte_table import ByteTable
from streampipe.assemble.fim_cuts import Counts, Text
from streampipe.assemble.fim_text import TextCutter
from streampipe.encoder import open_encoder
from streampipe.rng import raw_words, sorted_cut

SLACKS = (0, 2, 3, 4, 8)
REFERENCE = range(100, 116)
FEATURES = {"distance to a border": 6, "tenth of the document": 10, "word, space, other": 3, "tenth that is middle": 10}


def features(text: str, borders: NDArray[np.int64], cuts: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the bin of each cut [N, 2] in each of `FEATURES`."""
    size, places = len(text), cuts.ravel()
    behind = borders[np.searchsorted(borders, places)]
    before = borders[np.searchsorted(borders, places, "right") - 1]
    kind = [0 if text[at - 1 : at + 1].isalnum() and 0 < at < size else
            1 if any(c.isspace() for c in text[max(0, at - 1) : at + 1]) else 2 for at in places.tolist()]  # fmt: skip
    return [
        np.minimum(np.minimum(behind - places, places - before), 5),
        np.minimum(places * 10 // size, 9),
        np.array(kind),
        np.minimum((cuts[:, 1] - cuts[:, 0]) * 10 // size, 9),
    ]


def borders_of(ids: NDArray[np.int64], table: ByteTable) -> NDArray[np.int64]:
    """Return the characters at which tokens begin, and the end."""
    starts = np.cumsum(table.characters[ids]) - table.characters[ids]
    whole = np.array([((table.pieces[i] or b"")[:1] or b"a")[0] & 0xC0 != 0x80 for i in ids.tolist()])
    return np.append(starts[whole], table.characters[ids].sum())


def measured(
    documents: list[tuple[str, list[int]]], times: int, cutter: TextCutter, table: ByteTable
) -> dict[str, Any]:
    """Return the counts of every bin, and what became of the draws; each document is cut a few times."""
    rows = ["uniform", "first draw", *SLACKS]
    bins = {row: [np.zeros(size, np.int64) for size in FEATURES.values()] for row in rows}
    counts, unused = {row: Counts() for row in rows}, dict.fromkeys(rows, 0)
    words = raw_words(len(documents) * times, "fim redraws").tolist()
    for (text, ids), word in zip([document for document in documents for _ in range(times)], words, strict=True):
        whole = np.array(ids)
        borders, stored = borders_of(whole, table), Text(memoryview(array("I", ids)), True, word)
        found = {
            "uniform": [sorted_cut(word, len(text), draw) for draw in REFERENCE],
            "first draw": [sorted_cut(word, len(text))],
        }
        for slack in SLACKS:
            prefix, suffix, middle = cutter.parts(stored, len(ids) + slack, counts[slack]) or ((), (), ())
            unused[slack] += len(ids) + slack - sum(map(len, (*prefix, *suffix, *middle)))
            sizes = [sum(int(table.characters[np.array(chunk)].sum()) for chunk in part if len(chunk))
                     for part in (prefix, suffix)]  # fmt: skip
            found[slack] = [(sizes[0], len(text) - sizes[1])]
        for row, cuts in found.items():
            for number, own in enumerate(features(text, borders, np.array(cuts))):
                bins[row][number] += np.bincount(own, minlength=len(bins[row][number]))
    return {"bins": bins, "counts": counts, "unused": unused}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--text", type=Path, nargs="+", default=FOLDERS)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    settings = parser.parse_args()
    data = settings.tokenizer.read_bytes()
    special = {token["content"]: token["id"] for token in json.loads(data)["added_tokens"] if token["special"]}
    encoder = open_encoder(data, special, "tokenizer")
    table = encoder.table
    if table is None:
        parser.error(f"{settings.tokenizer} is not byte-level: borders of tokens are not known")
    documents = []
    for text in real_documents(settings.text, settings.documents, kinds=settings.kinds):
        ids = encoder.encode(text, first=True)
        if ids:
            documents.append((encoder.text_of(ids, first=True) or "", ids))
    found = measured(documents, settings.times, TextCutter(encoder, "character", None, "I"), table)
    print(f"| slack | redraws | cut at tokens | padding | at borders | {' | '.join(FEATURES)} |")
    print("|---|---|---|---|---|" + "---|" * len(FEATURES))
    for row, bins in found["bins"].items():
        counts = found["counts"][row]
        cut = len(documents) * settings.times
        shares = [f"{number / cut:.2%}" for number in (counts.redraws, counts.fallbacks)]
        shares.append(f"{found['unused'][row] / cut / 1000 / 2:.3%}")
        shares.append(f"{bins[0][0] / bins[0].sum():.1%}")
        for own, due in zip(bins, found["bins"]["uniform"], strict=True):
            shares.append(f"{np.abs(own / own.sum() - due / due.sum()).sum() / 2:.3f}")
        print(f"| {row} | {' | '.join(shares)} |")


if __name__ == "__main__":
    main()
