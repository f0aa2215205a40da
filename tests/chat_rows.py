"""Rows of chats and pairs for builds, and what is trained of what they become."""

from shardtools.looking.decoder import Decoder
from shardtools.looking.documents import documents
from streampipe.shards import Source

ADDED = "<|im_start|>,<|im_end|>"
CHATML = ("--template", "chatml", "--add-special-tokens", ADDED)


def asked(question: str, *answers: str) -> list[dict[str, str]]:
    """Messages: every answer after the first is to `more`."""
    turns = [{"role": "user", "content": question}]
    for answer in answers:
        turns += [{"role": "assistant", "content": answer}, {"role": "user", "content": "more"}]
    return turns[:-1]


def chats(count: int) -> list[dict[str, list[dict[str, str]]]]:
    """Conversations of one to three answers."""
    return [
        {
            "messages": asked(
                f"question {i} " + "w " * (i * 7 % 50), *[f" answer {i}.{j} 你好\n" for j in range(1 + i % 3)]
            )
        }
        for i in range(count)
    ]


ROWS = chats(240)
PAIRS = [
    {"prompt": f"question {i}", "chosen": f"good {i} " + "x " * (i % 9), "rejected": f"bad {i}"} for i in range(60)
]


def trained(source: Source) -> list[list[str]]:
    """The trained runs of every member, decoded, in the order in which they are stored."""
    decoder = Decoder.of(source.store, source.manifest)
    return [
        [decoder.text(member.tokens[start:end]) for start, end in member.loss]
        for one in documents(source)
        for member in one.members
    ]


def due(rows: list[dict]) -> list[list[str]]:
    """What is to be trained of rows of messages with ChatML, sorted."""
    return sorted([turn["content"] + "<|im_end|>\n" for turn in row["messages"][1::2]] for row in rows)
