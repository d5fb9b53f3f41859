"""Every private name of torch that Lockstitch uses, in this package and nowhere else.

Torch promises nothing about these, neither that they stay nor that they go on doing what they do.
So each is taken through `probing`: with the feature that stands on it, a word on what it is
expected to do, and a *probe*, a few lines that run it and look at the result. Probes that take
microseconds run when the name is taken, the others for `lockstitch doctor` and in the tests.

    probing      how a name is taken, tried, and missed
    registry     all names, and those that this torch lacks

    modes        the modes of a thread
    autograd     nodes, hooks, and the engine of the backward pass
    owners       how many hold a tensor, or share its memory
    tensors      versions, sparse parts, subclasses, copies of many at once
    modules      the tables of a module, replicas, batch normalisation
    optimizers   how schedulers see that a step was made, and hooks on states
    gradients    norms, and the scale of mixed precision
    calls        futures and the registry of operators
    distributed  process groups, places, and the reducer of DistributedDataParallel
    compiling    torch.compile
    names        what is only named, for those who do not import torch

A name that is missing, or does something else, is an `ImportError` only where all of Lockstitch
stands on it. Else the feature does without, if it can, or it is off, and whoever uses it is told by
an `UnsupportedTorchError`. `lockstitch doctor` lists them.
"""
