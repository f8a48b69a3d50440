"""Space on the disk, before work begins that takes much of it."""

import shutil
from pathlib import Path

from storage.errors import BadInput

GIB = 1024**3


def require_disk(folder: Path, need_bytes: int) -> None:
    """BadInput when the disk of `folder`, which must exist, has fewer than `need_bytes` free."""
    free_bytes = shutil.disk_usage(folder).free
    if need_bytes > free_bytes:
        raise BadInput(
            f"the work needs about {need_bytes / GIB:.2f} GiB below {folder}, where "
            f"{free_bytes / GIB:.2f} GiB are free: make room (python -m storage prune) or give another --root"
        )
