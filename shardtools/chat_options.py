"""What a build of conversations or pairs is asked to do, beyond what a build of texts is."""

import datetime
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from shardtools.masks import Renderer, RenderOptions
from shardtools.templates import ChatTemplate
from shardtools.templates.template import TODAY
from streampipe.errors import ConfigError


@dataclass(frozen=True)
class ChatOptions:
    """How rows become text, and what of it is trained.

    Attributes:
        template: the name or file of a chat template; "" for the one in the tokenizer's folder.
        template_tokens: other control tokens for a built-in template.
        template_kwargs: what each rendering is passed.
        date: the day that it always is in templates, YYYY-MM-DD.
        render: see `RenderOptions`.
    """

    template: str = ""
    template_tokens: Mapping[str, str] = field(default_factory=dict)
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    date: str = TODAY.isoformat()
    render: RenderOptions = field(default_factory=RenderOptions)

    def load_template(self, folder: str, storage: Mapping[str, Any]) -> ChatTemplate:
        """Find the template.

        Args:
            folder: path or URL of the tokenizer's folder.
            storage: options of the filesystems of URLs.

        Raises:
            ConfigError: if there is no such template, or the date is none.
        """
        try:
            today = datetime.date.fromisoformat(self.date)
        except ValueError as error:
            raise ConfigError(f"--date {self.date!r}: {error}; expected YYYY-MM-DD") from error
        return ChatTemplate.load(
            self.template or None,
            folder,
            tokens=self.template_tokens,
            today=today,
            kwargs=self.template_kwargs,
            storage=storage,
        )

    def recorded(self, renderer: Renderer) -> dict[str, str | int | bool | None]:
        """Return what the manifest says of them: plain values, with the template and tokens that are really used."""
        template = renderer.template
        return {
            "chat_template": json.dumps(template.record(), sort_keys=True),
            "chat_template_hash": template.hash,
            "bos": renderer.own_tokens["bos_token"] or None,
            "eos": renderer.own_tokens["eos_token"] or None,
            **{f"render_{name}": value for name, value in asdict(self.render).items()},
        }
