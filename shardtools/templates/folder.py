"""The chat templates in a tokenizer's folder."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from streampipe.errors import ConfigError
from streampipe.storage import open_store

_ONE, _MORE = "chat_template.jinja", "additional_chat_templates"


def folder_templates(folder: str, options: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return the templates of a folder by name; the usual one is called `default`.

    `chat_template.jinja` and `additional_chat_templates/*.jinja` stand before what `tokenizer_config.json` holds,
    as in `transformers`.

    Args:
        folder: path or URL.
        options: for the filesystem of a URL.

    Raises:
        ConfigError: if `tokenizer_config.json` cannot be read.
    """
    store = open_store(folder, options)
    found: dict[str, str] = {}
    with suppress(FileNotFoundError):
        found.update(_configured(store.read("tokenizer_config.json"), folder))
    with suppress(FileNotFoundError):
        found["default"] = store.read(_ONE).decode()
    more = open_store(f"{folder.rstrip('/')}/{_MORE}", options)  # a listing of the folder itself could be long
    for name in (name for name in more.names() if name.endswith(".jinja")):
        found[name.removesuffix(".jinja")] = more.read(name).decode()
    return found


def read_template(path: str, options: Mapping[str, Any] | None = None) -> str:
    """Return the text of a template file.

    Raises:
        ConfigError: there is none, or it is not UTF-8.
    """
    folder, slash, name = path.rpartition("/")
    try:
        return open_store((folder or "/") if slash else ".", options).read(name).decode()
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such chat template; give the path of a Jinja file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 ({error.reason} at byte {error.start}); expected a Jinja file") from error


def _configured(data: bytes, folder: str) -> dict[str, str]:
    try:
        template = json.loads(data).get("chat_template")
        if template is None:
            return {}
        if isinstance(template, str):
            return {"default": template}
        return {str(one["name"]): str(one["template"]) for one in template}
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder}/tokenizer_config.json: its chat_template cannot be read ({error}); mend it or use --template"
        ) from error
