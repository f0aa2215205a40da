"""Who speaks: the names that data sets use, and the roles they mean."""

from typing import Any

from shardtools.schemas.record import Role, RowError

SPEAKERS: dict[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "ipython": "tool",
    "tool_response": "tool",
    "function_response": "tool",
    "environment": "environment",
}
"""Lower-case names. `function_call` is an assistant whose words are a call."""

CALLING = "function_call"


def speaker_of(name: Any, where: str) -> str:
    """Return the known lower-case name of a speaker.

    Raises:
        RowError: `unknown_speaker`, also for a missing one: a guess would train on the wrong side.
    """
    if isinstance(name, str) and (known := name.strip().lower()) in SPEAKERS:
        return known
    raise RowError(
        "unknown_speaker",
        f"{where}: unknown speaker {name!r}; expected one of {', '.join(SPEAKERS)}; rename it in the data",
    )
