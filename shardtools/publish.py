"""The last put of a build: the manifest, which makes a folder a source."""

import secrets

from shardtools.ledger import FOLDER
from shardtools.patience import PatientStore
from shardtools.progress import Progress
from streampipe.errors import StreampipeError
from streampipe.shards import Manifest, write_manifest
from streampipe.storage import is_local_url, keeps_first


class CreateOnly(PatientStore):
    """A store that writes an object only if there is none of that name, or the very same one."""

    def write(self, name: str, data: bytes) -> None:
        """Create the object.

        Raises:
            StreampipeError: if there is another one.
        """
        if not self.create(name, data):
            raise StreampipeError(
                f"{self.url}/{name}: another build has published here meanwhile; its source is left as it is: "
                f"choose another --output"
            )


def publish(store: PatientStore, manifest: Manifest, progress: Progress, *, replacing: bool) -> Manifest:
    """Write the manifest by one create-only put, and check that it is what readers will see.

    Args:
        store: the output.
        manifest: to write.
        progress: told if the server cannot do that.
        replacing: there is a manifest of the same source, to which this one adds a split.

    Raises:
        StreampipeError: if another build was faster.
    """
    if not replacing and (is_local_url(store.url) or keeps_first(store, f"{FOLDER}/probe-{secrets.token_hex(8)}")):
        return write_manifest(CreateOnly(store, 0), manifest)
    if not replacing:
        progress.note(f"{store.url}: this server ignores create-only puts, so two builds at once would not be noticed")
    return write_manifest(store, manifest)
