"""The tests: `unit` mirrors the sources, `cluster` runs several workers in one process,
`processes` runs real ones.
"""
