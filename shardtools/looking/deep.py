"""What only decoding can show to be wrong with a source that is whole."""

from collections.abc import Iterator

from shardtools.looking.decoder import Decoder
from shardtools.looking.documents import Member, StoredDocument, documents_of_shard
from streampipe.errors import SourceError
from streampipe.shards import Source
from streampipe.shards.loss_spans import check_spans

CURE = "build this source again"


def deep_faults(source: Source) -> Iterator[str]:
    """Yield one line for each document whose ids, masks or key cannot be right.

    Every id must be in the vocabulary, every document must decode to some text, masks must lie within lengths, and a
    key may come once in a shard. Shards that cannot be read are left to `faults`.
    """
    try:
        decoder = Decoder.of(source.store, source.manifest)
    except SourceError as error:
        yield str(error)
        return
    for shard, entry in enumerate(source.shards):
        keys: set[str] = set()
        try:
            for stored in documents_of_shard(source, shard):
                where = f"{source.url}/{entry.path}: frame {stored.frame}: document {stored.key!r}"
                if stored.key in keys:
                    yield f"{where}: its key is in this shard before; {CURE}"
                keys.add(stored.key)
                for fault in _faults(decoder, stored):
                    yield f"{where}: {fault}; {CURE}"
        except SourceError:
            continue


def _faults(decoder: Decoder, stored: StoredDocument) -> Iterator[str]:
    for member in stored.members:
        name = f"{member.name}: " if member.name else ""
        unknown = decoder.unknown(member.tokens)
        if len(unknown):
            yield f"{name}{len(unknown)} ids are not in the vocabulary, the first is {unknown[0]}"
        elif not decoder.text(member.tokens):
            yield f"{name}its {len(member.tokens)} tokens decode to no text"
        yield from (f"{name}{fault}" for fault in _mask_faults(member))


def _mask_faults(member: Member) -> Iterator[str]:
    if member.loss is None:
        return
    try:
        check_spans(member.loss, len(member.tokens))
    except ValueError as error:
        yield str(error)
