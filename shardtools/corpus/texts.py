"""From the units of a task to its texts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from shardtools.corpus.corpus import SAMPLE_BYTES, Reading
from shardtools.corpus.fields import MISSING, AmbiguousFieldError, FieldPath
from shardtools.corpus.files import InputFile
from shardtools.corpus.formats.plain import FIELD, PLAIN
from shardtools.corpus.known import corpus_of
from shardtools.corpus.tally import Tally
from shardtools.corpus.units import Unit

_PLAIN_FIELD = FieldPath.parse(FIELD)


@dataclass(frozen=True)
class TextReader:
    """Reads texts out of units.

    Attributes:
        text_field: where the text is in a row; a plain file is a text whatever this says.
        options: for the filesystems of URLs.
    """

    text_field: FieldPath
    options: Mapping[str, Any] = field(default_factory=dict)

    def read(self, units: Sequence[Unit], tally: Tally) -> Iterator["Text"]:
        """Yield the texts of units that follow each other, and count the rows that have none.

        Raises:
            SourceError: for a bad row (unless `tally` counts it), a damaged file, or one that changed since the scan.
        """
        for file, of_file in groupby(units, key=lambda unit: unit.file):
            for number, row in corpus_of(file.kind).read(file, list(of_file), self._reading(tally)):
                yield from self._accept(row, file, number, tally)

    def sample(self, file: InputFile, spots: int) -> tuple[int, list[str]]:
        """Return texts of a file, and how much of it they take: bytes or rows, as its units.

        Plain lines are looked at in `spots` places, anything else at its start.
        """
        tally = Tally("count")
        length, rows = corpus_of(file.kind).sample(file, spots, self._reading(tally))
        texts = [row for row in rows if isinstance(row, str)]  # stands for a row that reaches over the whole sample
        texts += [text.text[:SAMPLE_BYTES] for row in rows for text in self._accept(row, file, 0, tally)]
        return length, texts

    def _reading(self, tally: Tally) -> Reading:
        columns = tuple(dict.fromkeys((self.text_field.literal, self.text_field.parts[0])))
        return Reading(tally, self.options, columns)

    def _accept(self, row: Any, file: InputFile, number: int, tally: Tally) -> Iterator["Text"]:
        """Yield the text of a row, or count why it has none."""
        if not isinstance(row, Mapping):
            tally.bad("not_an_object", file.place(number), f"expected a JSON object, but got {type(row).__name__}")
            return
        text_field = _PLAIN_FIELD if file.kind == PLAIN.kind else self.text_field
        try:
            text = text_field.find(row)
        except AmbiguousFieldError as error:
            tally.bad("ambiguous", file.place(number), str(error))
            return
        if text is MISSING:
            if not tally.fields:
                tally.fields = [str(key) for key in row][:20]
            tally.skip("missing")
        elif text is None:
            tally.skip("null")
        elif not isinstance(text, str):
            tally.bad(
                "wrong_type",
                file.place(number),
                f"expected text in {text_field.literal!r}, but got {type(text).__name__}",
            )
        else:
            yield from _document(text, file, number, tally)


@dataclass(frozen=True, slots=True)
class Text:
    """One document to be.

    Attributes:
        file: where it was.
        row: its line or row there, from 0.
        text: not empty, not only whitespace, encodable.
    """

    file: InputFile
    row: int
    text: str

    @property
    def where(self) -> str:
        """The file and the place in it, for messages."""
        return self.file.place(self.row)


def _document(text: str, file: InputFile, row: int, tally: Tally) -> Iterator[Text]:
    if not text:
        tally.skip("empty")
    elif text.isspace():
        tally.skip("blank")
    elif (position := lone_surrogate(text)) is not None:
        tally.bad(
            "lone_surrogate",
            file.place(row),
            f"half of a surrogate pair at character {position}, which is no character",
        )
    else:
        yield Text(file, row, text)


def lone_surrogate(text: str) -> int | None:
    """Return where half of a surrogate pair stands in a text, or None."""
    if text.isascii():
        return None
    try:
        for start in range(0, len(text), 1 << 20):
            text[start : start + (1 << 20)].encode()
    except UnicodeEncodeError as error:
        return start + error.start
    return None
