"""From records to documents: text, tokens, and what is trained."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardtools.masks.checks import check_pair, check_script
from shardtools.masks.endings import with_endings
from shardtools.masks.errors import MaskChoiceError, RenderError, Span, shown
from shardtools.masks.generation import generation_spans, without_marks
from shardtools.masks.options import RenderOptions
from shardtools.masks.prefixes import turn_of
from shardtools.masks.quoting import Quoting
from shardtools.masks.stage import Play, Stage
from shardtools.masks.tokens import ChatTokenizer, Rendered, Script
from shardtools.schemas import Conversation, Message, Preference, RowError
from shardtools.templates import ChatTemplate
from shardtools.text.tokenizer import TokenizerFile


class Renderer:
    """Renders conversations and pairs.

    Rows that cannot be rendered raise RowError, to be counted; a template or options that would teach something wrong
    raise RenderError, which stops a build.

    Args:
        tokenizer: the file that makes the ids, or what was made of it for another renderer.
        template: the chat template.
        options: what is trained.
        eos: the end token; None for the tokenizer's own, or the one that it was made with.
    """

    def __init__(
        self,
        tokenizer: TokenizerFile | ChatTokenizer,
        template: ChatTemplate,
        options: RenderOptions | None = None,
        eos: str | None = None,
    ) -> None:
        self.options = options or RenderOptions()
        named = [value for key, value in template.tokens.items() if key in template.control and value]
        stop = [self.options.stop] if self.options.stop else []
        if isinstance(tokenizer, TokenizerFile):
            tokenizer = ChatTokenizer(tokenizer, [*named, *stop], eos)
        tokenizer.require([*named, *stop])
        self.tokenizer = tokenizer
        quoting = Quoting(self.tokenizer.control, parse=self.options.parse_special)
        self._stage = Stage(self.tokenizer, template, quoting)
        self.template = template

    def record(self) -> dict[str, Any]:
        """Return what a manifest says of template and options."""
        options = {name: getattr(self.options, name) for name in self.options.__dataclass_fields__}
        return {"chat_template": self.template.record(), "render": options}

    @property
    def own_tokens(self) -> Mapping[str, str]:
        """What templates are told of the tokenizer: `bos_token`, `eos_token`; "" for none."""
        return self._stage.own

    def conversation(self, row: Conversation) -> list[Rendered]:
        """Return the documents of a conversation: one, or with `history="expand"` perhaps one a trained turn."""
        return self.encode(self.scripts(row))

    def preference(self, row: Preference) -> tuple[Rendered, Rendered]:
        """Return the chosen and the rejected document of a pair; both begin with the same untrained tokens."""
        chosen, rejected = self.encode(self.pair_scripts(row))
        check_pair(chosen, rejected)
        return chosen, rejected

    def encode(self, scripts: Sequence[Script]) -> list[Rendered]:
        """Return the documents of scripts of any number of rows, encoded in one go.

        Raises:
            RenderError: `all_zero`, `double_bos`.
        """
        documents = self.tokenizer.encode(scripts)
        for document in documents:
            text = shown(document.text, document.trained)
            if not len(document.loss):
                raise RenderError("all_zero", "no token of the document would be trained", text)
            bos = self.tokenizer.bos
            if bos and document.text.startswith(bos * 2) and document.tokens[0] == document.tokens[1]:
                raise RenderError("double_bos", f"the document begins with {bos} twice; mend the template", text)
        return documents

    def scripts(self, row: Conversation) -> list[Script]:
        """Return a conversation as marked text, ready to be encoded.

        Raises:
            RowError: `no_assistant`, `nothing_to_train`, and what the template refuses.
            MaskChoiceError: the template writes history anew, and the options do not say what to train then.
            RenderError: what the checks find.
        """
        wanted = self._wanted(row.messages)
        play = self._stage.play(row.messages, row.tools, row.template_kwargs)
        text, spans = self._spans(play, wanted)
        if spans is not None:
            return [self._script(text, spans, row, wanted)]
        if self.options.history == "error":
            raise MaskChoiceError(
                "history",
                f"chat template {self.template.name} writes earlier assistant turns in another way once the "
                f"conversation has gone on, so they cannot all be trained in one document; choose --history expand "
                f"(one document for each turn, as serving sees it) or last (train the last turn only), or use a "
                f"training template with {{% generation %}}",
                shown(text, []),
            )
        scripts = []
        for i in wanted if self.options.history == "expand" else wanted[-1:]:
            upto = Conversation(row.messages[: i + 1], row.tools, row.template_kwargs)
            part = play.with_messages(play.messages[: i + 1])
            part_text, part_spans = self._spans(part, [i])
            if part_spans is None:
                raise self._no_prefix(part_text, i)
            scripts.append(self._script(part_text, part_spans, upto, [i]))
        return scripts

    def pair_scripts(self, row: Preference) -> list[Script]:
        """Return the chosen and the rejected side as marked texts.

        Raises:
            RowError: `identical_answers`, `nothing_to_train`, and what the template refuses.
            RenderError: the sides share no beginning, and what the checks find.
        """
        prompt = self._stage.play(row.prompt, row.tools, row.template_kwargs)
        head = without_marks(prompt.render(prompt=row.chosen[0].role == row.rejected[0].role == "assistant"))
        scripts = [self._side(row, side, head) for side in (row.chosen, row.rejected)]
        if scripts[0].text == scripts[1].text:
            raise RowError("identical_answers", "chosen and rejected render to the same text")
        return scripts

    def _side(self, row: Preference, side: tuple[Message, ...], head: str) -> Script:
        whole = Conversation((*row.prompt, *side), row.tools, row.template_kwargs)
        first = len(row.prompt)
        wanted = [first + i for i in self._wanted(side)]
        text, spans = self._spans(self._stage.play(whole.messages, row.tools, row.template_kwargs), wanted)
        if spans is None and self.options.history == "last":
            wanted = wanted[-1:]
            cut = Conversation(whole.messages[: wanted[0] + 1], row.tools, row.template_kwargs)
            text, spans = self._spans(self._stage.play(cut.messages, row.tools, row.template_kwargs), wanted)
        if spans is None:
            raise MaskChoiceError(
                "history",
                f"chat template {self.template.name} writes the turns of an answer anew once it has gone on; a pair "
                f"cannot be expanded: choose --history last, or use a training template",
                shown(text, []),
            )
        if not text.startswith(head):
            raise RenderError(
                "no_shared_prompt",
                f"chat template {self.template.name} writes the prompt in another way once an answer follows; "
                f"use another template",
                shown(text, spans),
            )
        clipped = [(max(start, len(head)), end) for start, end in spans if end > len(head)]
        return self._script(text, clipped, whole, wanted, len(head))

    def _wanted(self, messages: Sequence[Message]) -> list[int]:
        """Return which messages are to be trained."""
        assistants = [i for i, message in enumerate(messages) if message.role == "assistant"]
        if not assistants:
            raise RowError("no_assistant", "the conversation has no assistant turn")
        chosen = assistants if self.options.turns == "all" else assistants[-1:]
        wanted = [i for i in assistants if messages[i].train or (messages[i].train is None and i in chosen)]
        if not wanted:
            raise RowError("nothing_to_train", "every assistant turn is marked not to be trained")
        return wanted

    def _spans(self, play: Play, wanted: Sequence[int]) -> tuple[str, list[Span] | None]:
        """Return the text and its spans, None where the template writes history anew.

        Raises:
            RenderError: `no_prefix`, whatever the options: no document would be what a server shows.
        """
        if self.template.marks_generation:
            return generation_spans(play, wanted)
        text = play.render()
        spans: list[Span] = []
        astray: RenderError | None = None
        for i in wanted:
            turn = turn_of(play, i, text)  # as long as all text before it: one at a time
            if turn.start is None:
                astray = astray or self._no_prefix(turn.text, i)
            elif (span := turn.span_in(text)) is not None:
                spans.append(span)
        if astray is not None:
            raise astray
        return text, spans if len(spans) == len(wanted) else None

    def _script(
        self, text: str, spans: Sequence[Span], row: Conversation, wanted: Sequence[int], prompt: int = 0
    ) -> Script:
        text, settled = with_endings(text, spans, self.tokenizer.pattern, self.options)
        script = Script(text, settled, prompt)
        check_script(script, row.messages, wanted, row.tools)
        return script

    def _no_prefix(self, text: str, i: int) -> RenderError:
        return RenderError(
            "no_prefix",
            f"the generation prompt of chat template {self.template.name} is no beginning of message {i}, so what a "
            f"server shows is not what would be trained; use a training template with {{% generation %}}",
            shown(text, []),
        )
