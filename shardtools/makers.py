"""What makes the documents of a build, in any process: chosen by the kind of its rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardtools.chat_making import ChatMaker
from shardtools.corpus.fields import FieldPath
from shardtools.corpus.formats.plain import FIELD
from shardtools.corpus.rows import RowReader
from shardtools.corpus.texts import TextReader
from shardtools.making import RowMaker, TextMaker
from shardtools.masks import Renderer
from shardtools.options import BuildOptions
from shardtools.overlong import Overlong
from shardtools.schemas import detect_schema
from shardtools.templates import ChatTemplate
from shardtools.text.normalize import Normalizer
from shardtools.text.tokenizer import TextTokenizer, TokenizerFile


@dataclass(frozen=True)
class MakerRecipe:
    """Makes the `RowMaker` of a build; can be pickled, where a tokenizer should not be.

    Attributes:
        options: of the build, with the schema filled in.
        tokenizer_file: with the special tokens that the build adds.
        template: None for texts.
        storage: options of the filesystems of URLs.
    """

    options: BuildOptions
    tokenizer_file: TokenizerFile
    template: ChatTemplate | None = None
    storage: Mapping[str, Any] = field(default_factory=dict)

    def tokenizer(self) -> TextTokenizer:
        """Load the tokenizer, with the begin and end tokens that the build writes: none where a template does.

        Raises:
            ConfigError: if it is none, or lacks a token that was named.
        """
        eos = self.options.eos if self.template is None else self.options.eos or ""
        return TextTokenizer(self.tokenizer_file, eos, self.options.bos, self.options.fragments_at)

    def __call__(self, tokenizer: TextTokenizer | None = None) -> RowMaker:
        """Load what is needed; a tokenizer that is loaded already may be given.

        Raises:
            ConfigError: if the template and the tokenizer do not fit.
        """
        options = self.options
        overlong = Overlong.parse(options.overlong)
        if self.template is None:
            return TextMaker(
                reader=TextReader(FieldPath.parse(options.text_field or FIELD), self.storage),
                tokenizer=tokenizer or self.tokenizer(),
                normalizer=Normalizer.parse(options.normalize),
                overlong=overlong,
            )
        return ChatMaker(
            reader=RowReader(self.storage),
            schema=detect_schema((), options.schema),
            renderer=Renderer(self.tokenizer_file, self.template, options.chat.render, options.eos),
            overlong=overlong,
        )
