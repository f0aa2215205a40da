"""What is in the output folder before a build, and what may be done about it."""

from collections.abc import Iterable
from dataclasses import dataclass

from shardtools.ledger import PLAN_NAME, BuildPlan, build_files, clear_ledger, read_plan
from streampipe.errors import ConfigError, SourceError
from streampipe.shards import MANIFEST_NAME, Manifest, read_manifest
from streampipe.shards.manifest import BuildScalar, BuildValue
from streampipe.storage import Store

CURE = "choose another --output, or give --overwrite to remove what is there"


@dataclass(frozen=True)
class Output:
    """The output folder as a build finds it.

    Attributes:
        store: the folder.
        manifest: of the finished source there, if any.
        names: the files.
    """

    store: Store
    manifest: Manifest | None
    names: tuple[str, ...]

    @classmethod
    def look(cls, store: Store, *, overwrite: bool) -> "Output":
        """Read what is there.

        Raises:
            ManifestError, FormatVersionError: if there is a manifest that cannot be read, and it may not be removed.
        """
        names = tuple(store.names())
        if MANIFEST_NAME not in names:
            return cls(store, None, names)
        try:
            return cls(store, read_manifest(store), names)
        except SourceError as error:
            if overwrite:
                return cls(store, None, names)
            error.add_note(CURE) if hasattr(error, "add_note") else None
            raise

    def is_built(self, split: str, fingerprint: str) -> bool:
        """Tell whether the very build that is asked for has ended here before, and its files are still there.

        Raises:
            SourceError: if files of it are gone or have another size.
        """
        if self.manifest is None or split not in self.manifest.splits:
            return False
        recorded = self.manifest.build.get(split)
        if not isinstance(recorded, dict) or recorded.get("fingerprint") != fingerprint:
            return False
        missing = missing_files(self.store, self.manifest, self._built_with(split))
        if missing:
            raise SourceError(
                f"{self.store.url}: this source is built, but {missing[0]}; restore the file, or build again with "
                f"--overwrite",
                self.store.url,
            )
        return True

    def make_room(self, plan: BuildPlan, base: Manifest | None, *, overwrite: bool) -> None:
        """Leave nothing of another build, or refuse. What an unfinished run of the same build made stays.

        Args:
            plan: the build to come.
            base: the source that the new split joins, if it does.
            overwrite: whether other builds may be removed.

        Raises:
            ConfigError: if there is another build and it may not be removed.
        """
        found = read_plan(self.store)
        same = found is not None and found.fingerprint == plan.fingerprint
        if base is None and MANIFEST_NAME in self.names:
            self._remove_source(plan.splits[0], overwrite=overwrite)
        elif not same:
            stale = [name for name in build_files(self.names, plan.splits if base else ()) if name != PLAN_NAME]
            if stale and not overwrite:
                raise ConfigError(
                    f"{self.store.url}: holds an unfinished build of other input, options or tokenizer "
                    f"({stale[0]}); {CURE}"
                )
            self._remove(stale)

    def _remove_source(self, split: str, *, overwrite: bool) -> None:
        others = sorted(set(self.manifest.splits) - set(self._built_with(split))) if self.manifest else []
        if not overwrite:
            raise ConfigError(
                f"{self.store.url}: holds a finished build of other input, options or tokenizer "
                f"(split {', '.join(sorted(self.manifest.splits)) if self.manifest else 'unknown'}); {CURE}"
            )
        if others:
            raise ConfigError(
                f"{self.store.url}: holds the split {', '.join(others)} too, which --overwrite would remove; "
                f"choose another --output, or remove the folder yourself"
            )
        self.store.delete(MANIFEST_NAME)  # first: without it the folder is no source, whatever happens next
        self._remove(build_files(self.names))

    def _built_with(self, split: str) -> list[str]:
        """Return a split and those that the same build made: the held-out documents."""
        build = self.manifest.build if self.manifest else {}
        own = build.get(split)
        return [split, *(other for other, value in build.items() if isinstance(own, dict) and _same_build(own, value))]

    def _remove(self, names: list[str]) -> None:
        clear_ledger(self.store)
        for name in dict.fromkeys(names):
            self.store.delete(name)


def _same_build(first: dict[str, BuildScalar], second: BuildValue | None) -> bool:
    return isinstance(second, dict) and first.get("fingerprint") == second.get("fingerprint")


def missing_files(store: Store, manifest: Manifest, splits: Iterable[str]) -> list[str]:
    """Return a sentence for each file of some splits that is absent or has another size."""
    sizes = store.sizes()
    return [
        f"{name} has {sizes[name]} bytes instead of {wanted}" if name in sizes else f"{name} is gone"
        for split in dict.fromkeys(splits)
        for entry in manifest.splits[split]
        for name, wanted in ((entry.path, entry.bytes), (entry.index_path, entry.index_bytes))
        if sizes.get(name) != wanted
    ]
