"""Spans found by rendering prefixes of a conversation and comparing characters.

What a model is shown is the text of the messages before its turn with the generation prompt behind it; what it should
say is what the text goes on with. Both must be true beginnings of the whole text, else the template writes history anew
and no span of the whole text is what the model would have said.
"""

from dataclasses import dataclass

from shardtools.masks.errors import Span
from shardtools.masks.stage import Play
from shardtools.schemas import RowError


@dataclass(frozen=True, slots=True)
class Turn:
    """An assistant turn by itself.

    Attributes:
        text: of the conversation up to and with this turn.
        start: where the turn begins in it; None if the generation prompt is no beginning of it.
    """

    text: str
    start: int | None

    def span_in(self, whole: str) -> Span | None:
        """Return its place in the text of the whole conversation, None if that begins otherwise."""
        if self.start is None or not whole.startswith(self.text):
            return None
        return self.start, len(self.text)


def turn_of(play: Play, i: int, whole: str) -> Turn:
    """Return the assistant turn `i`.

    Raises:
        RowError: the template refuses a part of the conversation.
    """
    text = whole if i == len(play.messages) - 1 else play.render(i + 1)
    try:
        before = play.render(i, prompt=True)
    except RowError:
        if i > 0:
            raise
        # many templates cannot render no messages at all: look for their generation prompt instead
        prompt = play.prompt_text()
        found = text.find(prompt) if prompt else -1
        return Turn(text, found + len(prompt) if found >= 0 else None)
    return Turn(text, len(before) if text.startswith(before) else None)
