"""Where programs look in which `horovod` was replaced by `lockstitch.hvd`: all that `horovod.torch`
has is one step higher."""

raise ImportError(
    "there is no lockstitch.hvd.torch: import lockstitch.hvd as hvd has what horovod.torch has, "
    "and lockstitch.hvd.mpi_ops, .compression, .functions, .optimizer and .elastic what its "
    "modules do",
    name=__name__,
)
