"""Where programs of `horovod.runner.elastic` look for `discovery`."""
