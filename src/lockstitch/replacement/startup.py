"""Does what the variable LOCKSTITCH_REPLACE asks for, when Python starts.

`lockstitch_replace.pth`, which is installed beside the package, calls this where the variable is
set: so does every process of a job, whoever starts it.
"""

from __future__ import annotations

import os
import sys

from lockstitch.replacement.swapping import replace
from lockstitch.replacement.table import VARIABLE, parse_names


def replace_as_asked() -> None:
    """Replaces what the variable names. Ends the process where it names something unknown."""
    try:
        names = parse_names(os.environ.get(VARIABLE, ""))
    except ValueError as error:
        # The interpreter would only print this and go on, with nothing replaced.
        sys.stderr.write(f"{VARIABLE}: {error}\n")
        sys.stderr.flush()
        os._exit(2)
    if names:
        replace(*names)
