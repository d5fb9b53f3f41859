"""Workers on a cluster of Ray, which places their processes: ranks of `lockstitch.hvd`, and groups
of `lockstitch.rpc`.

    executor   RayExecutor, ElasticRayExecutor: ranks, in the signature of `horovod.ray`
    fixed      a fixed number of ranks, whose actors stay
    elastic    ranks that come and go
    worker     what runs in the actor of a rank
    base_worker  what programs may ask such an actor
    log        what ranks tell the program while they run
    group      workers of rpc, replaced where they die
    member     what runs in the actor of such a worker
    train      a backend for Ray Train: `lockstitch.ray.train.LockstitchConfig`, which imports Ray
    settings   how long to wait, and what each worker needs
    placement  room in the cluster, and what is said where there is none
    calls      functions on their way to workers
    engine     Ray itself, imported when it is needed

Ray is an extra (`pip install 'lockstitch[ray]'`), imported when something is used that needs it.
"""

from lockstitch.ray.executor import ElasticRayExecutor, RayExecutor
from lockstitch.ray.group import RpcGroup, workers
from lockstitch.ray.log import log

__all__ = ["ElasticRayExecutor", "RayExecutor", "RpcGroup", "workers", "log"]
