"""Which documents to look at."""

from collections.abc import Iterator
from dataclasses import dataclass

from shardtools.looking.decoder import Decoder
from shardtools.looking.documents import StoredDocument, document, documents
from streampipe.shards import Source


@dataclass(frozen=True)
class Choice:
    """Which documents to look at.

    Attributes:
        number: of one document, or None.
        text: what a document must contain, or "".
        most: how many at most.
    """

    number: int | None = None
    text: str = ""
    most: int = 3


def chosen(source: Source, decoder: Decoder, choice: Choice) -> Iterator[StoredDocument]:
    """Yield the documents of a split that were asked for.

    Raises:
        ConfigError: if there is no such document.
        SourceError: if a shard is damaged.
    """
    if choice.number is not None:
        yield document(source, choice.number)
        return
    found = 0
    for stored in documents(source):
        if choice.text and not any(choice.text in decoder.text(member.tokens) for member in stored.members):
            continue
        yield stored
        found += 1
        if found == choice.most:
            return
