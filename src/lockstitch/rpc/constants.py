"""The default values of the arguments that programs give."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from lockstitch import clock

DEFAULT_RPC_TIMEOUT_SEC: Final = 60.0
"""Seconds that a call may take when neither the call nor `_set_rpc_timeout` says otherwise."""

UNSET_RPC_TIMEOUT: Final = clock.UNSET_TIMEOUT
"""Stands for "the default in force when the call is made"."""

DEFAULT_SHUTDOWN_TIMEOUT: Final = 0.0
"""Seconds; 0 waits for ever."""

DEFAULT_INIT_METHOD: Final = "env://"

DEFAULT_NUM_WORKER_THREADS: Final = 16

DEFAULT_PROCESS_GROUP_TIMEOUT: Final = timedelta(milliseconds=2**31 - 1)
"""Kept for programs that import it; nothing here uses a process group."""

# Under the names that programs import from the incumbent's package itself.
_DEFAULT_RPC_TIMEOUT_SEC: Final = DEFAULT_RPC_TIMEOUT_SEC
_UNSET_RPC_TIMEOUT: Final = UNSET_RPC_TIMEOUT
_DEFAULT_INIT_METHOD: Final = DEFAULT_INIT_METHOD
_DEFAULT_NUM_WORKER_THREADS: Final = DEFAULT_NUM_WORKER_THREADS
