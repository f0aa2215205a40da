"""Sources of all three kinds with a real tokenizer, and what their documents say."""

from pathlib import Path

import numpy as np

from shardtools.text.tokenizer import TextTokenizer, TokenizerFile
from streampipe.shards import (
    Document,
    InputEntry,
    Manifest,
    Pair,
    Source,
    Trained,
    encode_shard,
    length_histogram,
    write_manifest,
)
from streampipe.shards.manifest import MEMBERS_OF_KIND
from streampipe.storage import open_store

START, END = "<|im_start|>", "<|im_end|>"


class Stage:
    """Writes chats with a tokenizer that has START and END."""

    def __init__(self, tokenizer: Path) -> None:
        self.file = TokenizerFile.read(str(tokenizer))
        self.tokenizer = TextTokenizer(self.file, "")
        self.special = self.tokenizer.info().special_tokens

    def ids(self, text):
        return self.tokenizer.encode([text])[0].tolist() if text else []

    def chat(self, *turns):
        """Returns tokens, spans, text and what of it is trained: answers with END, when the speaker is `assistant`."""
        tokens, spans, text, trained = [], [], "", []
        for role, content in turns:
            tokens += [self.special[START], *self.ids(f"{role}\n")]
            text += f"{START}{role}\n"
            begin, at = len(tokens), len(text)
            tokens += [*self.ids(content), self.special[END]]
            text += f"{content}{END}"
            if role == "assistant":
                spans.append([begin, len(tokens)])
                trained.append([at, len(text)])
            tokens += self.ids("\n")
            text += "\n"
        return np.array(tokens), np.array(spans), text, trained

    def conversation(self, key, *turns, **fields):
        tokens, spans, *_ = self.chat(*turns)
        return Document(key, tokens, spans, **fields)

    def pair(self, key, prompt, chosen, rejected, **fields):
        sides = [Trained(*self.chat(*prompt, ("assistant", answer))[:2]) for answer in (chosen, rejected)]
        return Pair(key, *sides, **fields)

    def write(self, url, documents, shards=1, frame_tokens=500):
        """Writes documents to a folder, in order, and opens it."""
        store = open_store(str(url))
        share = -(-len(documents) // shards)
        encoded = [
            encode_shard(
                documents[i * share : (i + 1) * share],
                f"train-{i:05d}",
                token_dtype="uint16",
                frame_tokens=frame_tokens,
            )
            for i in range(shards)
        ]
        for shard in encoded:
            store.write(shard.shard_name, shard.shard_bytes)
            store.write(shard.index_name, shard.index_bytes)
        store.write("tokenizer.json", self.file.data)
        kind = documents[0].kind
        lengths = np.concatenate([shard.index.document_lengths for shard in encoded])
        write_manifest(
            store,
            Manifest(
                kind=kind,
                compression="zstd",
                token_dtype="uint16",
                members=MEMBERS_OF_KIND[kind],
                tokenizer=self.tokenizer.info(),
                splits={"train": [shard.entry for shard in encoded]},
                histogram={"train": length_histogram(lengths)},
                counts={"empty": 2},
                inputs=[InputEntry("chats.jsonl", 12, "c" * 64)],
                build={},
            ),
        )
        return Source.open("chats", str(url))
