"""Manifests for Kubernetes: what `lockstitch manifest k8s` writes. Nothing here talks to a cluster.

- `quantities`: amounts of cores and memory, as Kubernetes writes them
- `workload`: what is asked for, checked
- `pods`: the pods that the workers run in
- `kinds`: the objects of each kind of job
- `writing`: those objects as YAML
"""
