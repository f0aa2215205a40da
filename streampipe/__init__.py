"""Feed LLM training from object storage: deterministic, elastic, packed, resumable to the token."""

from streampipe.config import StreamConfig, config_from, load_config
from streampipe.dataset import StreamDataset
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
from streampipe.loader import StreamLoader, build_loader
from streampipe.parallel import Topology

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
