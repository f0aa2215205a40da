"""Feed LLM training from object storage: deterministic, elastic, packed, resumable to the token."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streampipe.config import StreamConfig
from streampipe.config_file import config_from, load_config
from streampipe.errors import (
    ConfigError,
    CursorMismatchError,
    DocumentTooLongError,
    FormatVersionError,
    ManifestError,
    ShardCorruptError,
    ShardMissingError,
    SourceError,
    StorageError,
    StreampipeError,
)
from streampipe.parallel import Topology

if TYPE_CHECKING:
    from streampipe.dataset import StreamDataset
    from streampipe.loader import StreamLoader, build_loader
    from streampipe.tools.skip import skip_steps

__all__ = [
    "ConfigError",
    "CursorMismatchError",
    "DocumentTooLongError",
    "FormatVersionError",
    "ManifestError",
    "ShardCorruptError",
    "ShardMissingError",
    "SourceError",
    "StorageError",
    "StreamConfig",
    "StreamDataset",
    "StreamLoader",
    "StreampipeError",
    "Topology",
    "build_loader",
    "config_from",
    "load_config",
    "skip_steps",
]

# What needs torch is imported at its first use: builds and plans do without.
_AT_FIRST_USE = {
    "StreamDataset": "dataset",
    "StreamLoader": "loader",
    "build_loader": "loader",
    "skip_steps": "tools.skip",
}


def __getattr__(name: str) -> Any:
    if name in _AT_FIRST_USE:
        return getattr(import_module(f"streampipe.{_AT_FIRST_USE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
