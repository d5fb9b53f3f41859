"""Where programs of `horovod.ray` look for its executors. There are none here; an `ImportError`,
which such programs know to catch, says what to do instead."""

raise ImportError(
    "Lockstitch has no executors of Ray. Have each of your own actors set HOROVOD_RANK, "
    "HOROVOD_SIZE, MASTER_ADDR and MASTER_PORT and call hvd.init(), or start ranks by "
    "lockstitch.hvd.run(function, np=N): see docs/how-to/port-from-horovod.md",
    name=__name__,
)
