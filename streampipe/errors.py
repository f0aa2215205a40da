"""The errors a user of streampipe can meet.

StreampipeError
├── ConfigError             the file is not a valid stream, with the path inside it ($.sources[0].weight)
├── CursorMismatchError     this state belongs to another stream: names every field that differs
├── SourceError             something is wrong with a source on disk: .source, .path
│   ├── ManifestError       the manifest is absent, damaged or contradicts itself
│   ├── ShardMissingError   the manifest lists a file that is not there
│   ├── ShardCorruptError   short, checksum differs, or undecodable
│   └── FormatVersionError  written by another version of the format
├── StorageError            gave up: attempts, last cause, elapsed
└── DocumentTooLongError    only with `overlong: error`

Every message has four parts: what failed, where, expected and got, the cure.
Lower floors raise; upper floors add their own address with `add_note`.
"""


class StreampipeError(Exception):
    """The root of all errors that streampipe and shardtools raise on purpose."""


class ConfigError(StreampipeError):
    """A configuration, an option or a topology that cannot work."""


class CursorMismatchError(StreampipeError):
    """A saved state that belongs to another stream.

    Attributes:
        fields: the dotted names of what differs, e.g. `("seed", "sources.web.content")`.
    """

    def __init__(self, message: str, fields: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.fields = fields

    def __reduce__(self) -> tuple[type["CursorMismatchError"], tuple[str, tuple[str, ...]]]:
        return type(self), (str(self), self.fields)


class SourceError(StreampipeError):
    """Something is wrong with a source on disk.

    Attributes:
        source: the URL (or name) of the source.
        path: the file inside it, or "" when the source as a whole is meant.
    """

    def __init__(self, message: str, source: str = "", path: str = "") -> None:
        super().__init__(message)
        self.source = source
        self.path = path

    def __reduce__(self) -> tuple[type["SourceError"], tuple[str, str, str]]:
        return type(self), (str(self), self.source, self.path)


class ManifestError(SourceError):
    """The manifest is absent, damaged or contradicts itself."""


class ShardMissingError(SourceError):
    """A file that the manifest lists is not there."""


class ShardCorruptError(SourceError):
    """A shard or an index is short, fails its checksum, or cannot be decoded."""


class FormatVersionError(SourceError):
    """Written by a version of the format that this release does not read."""


class StorageError(StreampipeError):
    """Reading or writing bytes failed for good."""


class DocumentTooLongError(StreampipeError):
    """A document is longer than a sequence and the stream says `overlong: error`."""
