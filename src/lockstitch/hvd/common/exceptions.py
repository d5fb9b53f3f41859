"""`horovod.common.exceptions`."""

from lockstitch.hvd.exceptions import *  # noqa: F403 - its list of names is ours
from lockstitch.hvd.exceptions import __all__ as __all__
