"""Which code computes: results are the same to the last bit only where this is the same."""

import hashlib
from functools import cache
from pathlib import Path

from threadpoolctl import threadpool_info


def blas_identity() -> str:
    """The BLAS libraries of this process, and the processor that they chose their kernels for."""
    facts = [
        (library["internal_api"], library["version"], library.get("architecture"))
        for library in threadpool_info()
        if library["user_api"] == "blas"
    ]
    return repr(sorted(facts, key=repr))


@cache
def extension_identity() -> str:
    """SHA-256 of the file of the native extension."""
    from pellucid.backends.native import EXTENSION_FILE

    return hashlib.sha256(Path(EXTENSION_FILE).read_bytes()).hexdigest()
