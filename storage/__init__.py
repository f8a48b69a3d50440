"""The files that Ratchet keeps, and the rules for them.

This package imports no other of ours, and torch only where tensors are read or written.
"""

import sys

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path and not __file__.startswith(f"{sys.path[0]}/"):
    del sys.path[0]  # `python -m` looks for modules in the present folder first, and that may be a stranger's
