"""StreamConfig: the tree of the rooms' small configs, read from YAML."""

from typing import Any, Literal

import msgspec

from streampipe.assemble.batch_config import BatchConfig
from streampipe.assemble.fim_config import FimConfig, check_policy
from streampipe.complaint import explain
from streampipe.errors import ConfigError
from streampipe.mock_config import MockConfig
from streampipe.plan.blend import OnExhausted
from streampipe.plan.pieces import PackingConfig
from streampipe.plan.plan_config import PlanConfig
from streampipe.shards.frame_reader import StorageConfig
from streampipe.step_size import step_size
from streampipe.token_count import parse_tokens


class ShuffleConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a source's epochs are shuffled.

    Attributes:
        shards: how many shards have their frames permuted together; false keeps the order of the manifest.
    """

    shards: int | bool = 4

    def group(self, where: str) -> int | None:
        """Return the shards of a group; None for no shuffling.

        Raises:
            ConfigError: for a number below 1.
        """
        if self.shards is False:
            return None
        if self.shards is True or self.shards < 1:
            raise ConfigError(
                f"{where}.shards: must be a number of shards of at least 1, or false, but got {self.shards!r}"
            )
        return self.shards


class SourceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One corpus of the blend.

    Attributes:
        name: unique; part of what decides the order.
        path: folder with manifest.json, local or any fsspec URL.
        mock: lengths to draw instead of a path.
        weight: share of tokens on any scale; null in every source for weights that follow sizes; 0 leaves the source
            closed.
        split: of the manifest.
        epochs: how many passes it may give; null for as many as it takes.
        on_exhausted: what happens after them: `renormalise` lets the other sources share its weight, `stop` ends the
            run with the round, `repeat` goes on with further passes.
        shuffle: overrides the stream's.
        fim: fill-in-the-middle, for texts.
        order: a file that lists the shards, one a line, in the order of every epoch, instead of a permutation.
        accept_loss: stream it although `overlong` takes more than half of its tokens.
        storage: options for fsspec, such as `endpoint_url`; a path on this machine takes none.
    """

    name: str
    path: str | None = None
    mock: MockConfig | None = None
    weight: float | str | None = None
    split: str = "train"
    epochs: int | None = None
    on_exhausted: OnExhausted = "renormalise"
    shuffle: ShuffleConfig | bool | None = None
    fim: FimConfig | None = None
    order: str | None = None
    accept_loss: bool = False
    storage: dict[str, Any] = {}


class PhaseConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What changes in the course of a run; whatever it does not name stays as it was.

    Attributes:
        start: tokens after which it begins, at the nearest round border; an integer or a text such as 10B.
        weights: of sources by name; 0 lets one leave, and one with weight 0 before joins.
        seq_length, shuffle: as in the stream; a change of `shuffle` reaches a source with its next epoch.
        packing, plan: the keys that change.
        fim: `rate`, `spm_rate` and `fragment_rate` by source.
    """

    start: int | str
    weights: dict[str, float | str] = {}
    seq_length: int | None = None
    shuffle: ShuffleConfig | bool | None = None
    packing: dict[str, Any] = {}
    plan: dict[str, Any] = {}
    fim: dict[str, dict[Literal["rate", "spm_rate", "fragment_rate"], float]] = {}


class LoaderConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the loader runs ahead.

    Attributes:
        num_workers: worker processes; 0 runs ahead in threads of this process, which is faster for tokens.
        prefetch: micro batches assembled ahead, at least: small ones are mostly made many at once.
        log_every: steps between log lines; 0 for none.
    """

    num_workers: int = 0
    prefetch: int = 4
    log_every: int = 30


class StreamConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stream, whole.

    Attributes:
        seq_length: positions of a sequence.
        sources: the blend.
        seed: of every random choice.
        shuffle, packing, plan: what decides the order, with the seed and the sources.
        weight_by: whether weights are shares of tokens or of documents.
        phases: changes of these in the course of the run.
        batch: what a batch looks like.
        storage, loader: how it is read; these never change what is read.
    """

    seq_length: int
    sources: list[SourceConfig]
    seed: int = 0
    shuffle: ShuffleConfig | bool = ShuffleConfig()
    packing: PackingConfig = PackingConfig()
    plan: PlanConfig = PlanConfig()
    weight_by: Literal["tokens", "documents"] = "tokens"
    phases: list[PhaseConfig] = []
    batch: BatchConfig = BatchConfig()
    storage: StorageConfig = StorageConfig()
    loader: LoaderConfig = LoaderConfig()

    def shuffle_of(self, number: int) -> int | None:
        """Return how many shards of source `number` are shuffled together; None for none."""
        own = self.sources[number].shuffle
        where, chosen = ("$.shuffle", self.shuffle) if own is None else (f"$.sources[{number}].shuffle", own)
        if chosen is False:
            return None
        return (chosen if isinstance(chosen, ShuffleConfig) else ShuffleConfig(shards=chosen)).group(where)

    def in_phases(self) -> list[tuple[int, "StreamConfig"]]:
        """Return the phases: tokens after which each begins, and the config that then holds, without phases of its own.

        Raises:
            ConfigError: with the path of the key inside the config.
        """
        config = msgspec.structs.replace(self, phases=[])
        found = [(0, config)]
        for number, phase in enumerate(self.phases):
            where = f"$.phases[{number}]"
            start = parse_tokens(phase.start, f"{where}.start")
            if start <= found[-1][0]:
                raise ConfigError(
                    f"{where}.start: phases begin one after the other, but {start} is not after {found[-1][0]}"
                )
            config = _changed(config, phase, where)
            found.append((start, config))
        return found

    def _check_order(self) -> None:
        if self.batch.batch_by == "documents" and self.plan.balanced:
            raise ConfigError(
                "$.plan.balance: `cost` orders sequences, but batch_by: documents balances each step by itself; "
                "set plan.balance: off"
            )
        if self.batch.batch_by == "documents" and self.packing.overlong == "split":
            raise ConfigError(
                "$.packing.overlong: batch_by: documents counts whole documents; choose drop, truncate or error"
            )
        if self.plan.balanced and all(self.shuffle_of(number) is None for number in range(len(self.sources))):
            raise ConfigError(
                "$.plan.balance: `cost` orders sequences by cost, but shuffle is false in every source, which asks for "
                "the order of the manifest; set plan.balance: off, or shuffle"
            )

    def check(self) -> None:
        """Refuse what has no meaning.

        Raises:
            ConfigError: with the path of the key inside the config.
        """
        if self.seq_length < 1:
            raise ConfigError(f"$.seq_length: must be at least 1, but got {self.seq_length}")
        if not self.sources:
            raise ConfigError("$.sources: a stream needs at least one source")
        self.packing.check(self.seq_length)
        self.plan.check()
        self.batch.check(self.packing.policy)
        self.storage.check()
        for number, source in enumerate(self.sources):
            _check_source(source, f"$.sources[{number}]")
            self.shuffle_of(number)
        check_policy([source.fim for source in self.sources], self.packing, self.batch.fields)
        self._check_order()
        names = [source.name for source in self.sources]
        phases = self.in_phases()
        step_size(self.batch).check([config.seq_length for _, config in phases])
        for number, (_, config) in enumerate(phases[1:]):
            try:
                config.check()
            except ConfigError as error:
                raise ConfigError(f"$.phases[{number}]: {error}") from error
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(
                f"$.sources: two sources are named {twice[0]!r}; names must differ, since they key the order"
            )
        unweighted = [source.name for source in self.sources if source.weight is None]
        if unweighted and len(unweighted) < len(names):
            raise ConfigError(
                f"$.sources: {unweighted[0]!r} has no weight but others have; give every source a weight, or none for "
                "shares by size"
            )
        for key, value, least in (
            ("num_workers", self.loader.num_workers, 0),
            ("prefetch", self.loader.prefetch, 1),
            ("log_every", self.loader.log_every, 0),
        ):
            if value < least:
                raise ConfigError(f"$.loader.{key}: must be at least {least}, but got {value}")


def _changed(config: StreamConfig, phase: PhaseConfig, where: str) -> StreamConfig:
    """Return a config as a phase changes it."""
    names = {source.name for source in config.sources}
    for key, named in (("weights", phase.weights), ("fim", phase.fim)):
        if unknown := sorted(named.keys() - names):
            raise ConfigError(
                f"{where}.{key}: there is no source {unknown[0]!r}; list it in $.sources, with weight 0 if it joins"
            )
    replace = msgspec.structs.replace
    parts: dict[str, Any] = {
        "sources": [replace(s, weight=phase.weights.get(s.name, s.weight)) for s in config.sources]
    }
    for number, source in enumerate(parts["sources"]):
        if source.name in phase.fim:
            if source.fim is None:
                raise ConfigError(
                    f"{where}.fim.{source.name}: the source has no fim to change; give it one, with rate: 0 before this"
                )
            if source.fim.compat is not None:
                raise ConfigError(
                    f"{where}.fim.{source.name}: compat: megatron keeps its rates for the whole run, as Megatron does; "
                    "remove it"
                )
            parts["sources"][number] = replace(source, fim=replace(source.fim, **phase.fim[source.name]))
    for name in ("seq_length", "shuffle"):
        if getattr(phase, name) is not None:
            parts[name] = getattr(phase, name)
    for name, kind in (("packing", PackingConfig), ("plan", PlanConfig)):
        merged = msgspec.to_builtins(getattr(config, name)) | getattr(phase, name)
        try:
            parts[name] = msgspec.convert(merged, kind)
        except msgspec.ValidationError as error:
            raise ConfigError(explain(str(error), kind).replace("$", f"{where}.{name}", 1)) from error
    return replace(config, **parts)


def _check_source(source: SourceConfig, where: str) -> None:
    if not source.name or len(source.name) > 64:
        raise ConfigError(f"{where}.name: must have 1 to 64 characters, but got {source.name!r}")
    if (source.path is None) == (source.mock is None):
        raise ConfigError(f"{where}: give either `path` or `mock`, but got {'both' if source.path else 'neither'}")
    if source.mock is not None:
        source.mock.check(f"{where}.mock")
        for key, plain in (("split", "train"), ("storage", {})):
            if getattr(source, key) != plain:
                raise ConfigError(f"{where}.{key}: has a meaning with `path` only, a mock has none; remove it")
    if source.fim is not None:
        source.fim.check(f"{where}.fim")
    if source.epochs is not None and source.epochs < 1:
        raise ConfigError(f"{where}.epochs: must be at least 1, or null for no limit, but got {source.epochs}")
    if source.epochs is None and source.on_exhausted == "stop":
        raise ConfigError(
            f"{where}.on_exhausted: stop says what follows after `epochs` passes, but no `epochs` are "
            "given, so the source never runs out; set epochs, or remove it"
        )
