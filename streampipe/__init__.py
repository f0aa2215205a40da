"""Feed LLM training from object storage: deterministic, elastic, packed, resumable to the token."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from streampipe.config import StreamConfig, config_from, load_config
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
]

# What needs torch is imported at its first use: builds and plans do without.
_NEEDS_TORCH = {"StreamDataset": "dataset", "StreamLoader": "loader", "build_loader": "loader"}


def __getattr__(name: str) -> Any:
    if name in _NEEDS_TORCH:
        return getattr(import_module(f"streampipe.{_NEEDS_TORCH[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
