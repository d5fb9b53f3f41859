"""Importing this registers the backend FAULTY_TENSORPIPE, which loses and delays messages by name.

    mishaps.py                         which messages, and how
    faulty_agent_backend_registry.py   its options, and its registration

New tests script their mishaps with `lockstitch.testing.Faults`, which also repeats and reorders.
"""

from lockstitch.rpc._testing.faulty_agent_backend_registry import (
    FaultyTensorPipeAgent,
    FaultyTensorPipeRpcBackendOptions,
)

__all__ = ["FaultyTensorPipeAgent", "FaultyTensorPipeRpcBackendOptions"]
