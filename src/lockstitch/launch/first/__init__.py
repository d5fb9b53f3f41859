"""What Python runs first in a worker: this folder leads its PYTHONPATH, see `sitecustomize`."""
