"""Folders saved by `datasets` (`save_to_disk`): Arrow files, and JSON that tells of them, which is no document."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from streampipe.errors import ConfigError, SourceError

STATE = "state.json"
INFO = "dataset_info.json"
SPLITS = "dataset_dict.json"


class Named(Protocol):
    """A file that was found."""

    @property
    def name(self) -> str:
        """Its path below the folder."""
        ...


File = TypeVar("File", bound=Named)


def without_descriptions(files: Mapping[str, File], content: Callable[[File], bytes]) -> Iterator[File]:
    """Yield the files, but of a saved data set only its Arrow files.

    Args:
        files: what was found, by name.
        content: reads one.

    Raises:
        ConfigError: if a data set has several splits, or rows in another order than its files.
        SourceError: if a file that the data set lists is not there.
    """
    taken: dict[str, set[str]] = {}
    for name, file in files.items():
        folder = name.removesuffix(STATE)
        if name == folder + STATE and folder[-1:] in ("", "/") and folder + INFO in files:
            listed = _listed(folder, _parsed(content(file)))
            if listed is not None:
                taken[folder] = listed
    for folder in [name.removesuffix(SPLITS) for name in files if name.rpartition("/")[2] == SPLITS]:
        splits = sorted(saved[len(folder) :].rstrip("/") for saved in taken if saved.startswith(folder))
        if len(splits) > 1:
            raise ConfigError(
                f"{folder or 'the input'}: holds a data set of several splits; give the folder of one, "
                f"{', '.join(splits)}"
            )
        if splits:
            taken.setdefault(folder, set())
    for listed in taken.values():
        for missing in sorted(listed - {*files}):
            raise SourceError(
                f"{missing}: the data set lists this file, but it is not there; copy the folder again", path=missing
            )
    for name, file in files.items():
        folder = name[: len(name) - len(name.rpartition("/")[2])]
        if folder not in taken or name in taken[folder]:
            yield file


def _listed(folder: str, state: Any) -> set[str] | None:
    """Return the data files that a state lists, or None if it is the state of something else."""
    if not isinstance(state, Mapping) or not isinstance(state.get("_data_files"), list):
        return None
    if state.get("_indices_data_files") or state.get("_indices_files"):
        raise ConfigError(
            f"{folder or 'the input'}: the data set has its rows in another order than its files; "
            f"save it again with `dataset.flatten_indices().save_to_disk(...)`"
        )
    return {folder + str(entry.get("filename")) for entry in state["_data_files"] if isinstance(entry, Mapping)}


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None
