"""A StreamConfig read from a file, with overrides by dotted path."""

import logging
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import yaml

from streampipe.complaint import explain
from streampipe.config import StreamConfig
from streampipe.errors import ConfigError

log = logging.getLogger("streampipe")


class _OnceLoader(yaml.SafeLoader):
    """YAML in which a key that is written twice is an error, not overruled by the second."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # YAML's own complaint follows
            if key.tag != "tag:yaml.org,2002:merge" and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} is there twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def load_config(path: str | Path, overrides: Mapping[str, Any] | None = None) -> StreamConfig:
    """Read a stream from a YAML file.

    Args:
        path: the file. Relative paths inside it are relative to the working directory.
        overrides: values by dotted path, e.g. `{"batch.micro_batch_size": 4, "sources[0].weight": 0.3}`.

    Raises:
        ConfigError: with the file and the path of the key inside it.
    """
    try:
        raw = yaml.load(Path(path).read_text(encoding="utf-8"), _OnceLoader)  # noqa: S506 (a safe loader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the config ({error.strerror or error})") from error
    except (yaml.YAMLError, ValueError) as error:  # bytes that are no text, a date that is none
        raise ConfigError(f"{path}: not YAML: {error}") from error
    try:
        return config_from(raw, overrides)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def config_from(raw: Any, overrides: Mapping[str, Any] | None = None) -> StreamConfig:
    """Build a stream from plain data, as YAML or JSON would give it.

    Raises:
        ConfigError: with the path of the key inside the data.
    """
    if not isinstance(raw, dict):
        raise ConfigError(f"$: a config is a mapping, but got {type(raw).__name__}")
    data = msgspec.to_builtins(raw)
    for key, value in (overrides or {}).items():
        _override(data, key, value)
    try:
        config = msgspec.convert(data, StreamConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(explain(str(error), StreamConfig)) from error
    config.check()
    if config.batch.global_batch_tokens is not None and "global_batch_size" in data["batch"]:
        log.warning("$.batch.global_batch_size is not used, since global_batch_tokens is given too; remove one of them")
    return config


def _override(data: Any, key: str, value: Any) -> None:
    """Set a value by its dotted path; lists take indexes, `sources[0].weight`.

    Raises:
        ConfigError: for a path that leads nowhere.
    """
    if not re.fullmatch(r"[\w-]+(\[\d+\])*(\.[\w-]+(\[\d+\])*)*", key):
        raise ConfigError(f"override {key!r}: not a path like `batch.micro_batch_size` or `sources[0].weight`")
    steps: list[str | int] = [int(part) if part.isdecimal() else part for part in re.findall(r"[\w-]+", key)]
    here = data
    for step, following in pairwise(steps):
        here = _enter(here, step, key, create=not isinstance(following, int))
    last = steps[-1]
    if isinstance(last, int):
        _enter(here, last, key, create=False)
    elif not isinstance(here, dict):
        raise ConfigError(f"override {key!r}: {last!r} has nothing to stand in")
    here[last] = value


def _enter(here: Any, step: str | int, key: str, *, create: bool) -> Any:
    if isinstance(step, int):
        if not isinstance(here, list) or step >= len(here):
            raise ConfigError(f"override {key!r}: there is no element [{step}]")
        return here[step]
    if not isinstance(here, dict):
        raise ConfigError(f"override {key!r}: {step!r} is not inside a mapping")
    if here.get(step) is None and create:
        here[step] = {}
    if step not in here:
        raise ConfigError(f"override {key!r}: there is no {step!r}")
    return here[step]


def parse_setting(text: str) -> tuple[str, Any]:
    """Split `key=value` of a command line; the value is read as YAML.

    Raises:
        ConfigError: without an equals sign, or with a value that is not YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {text!r}: expected key=value, e.g. --set sources[0].weight=0.3")
    try:
        return key.strip(), yaml.safe_load(value)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"--set {text!r}: the value is not YAML ({error})") from error
