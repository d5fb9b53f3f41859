"""Sphinx settings: pages in Markdown, the reference from docstrings, nothing from the network."""

import lockstitch

project = "Lockstitch"
author = "the Lockstitch contributors"
copyright = "the Lockstitch contributors"
release = version = lockstitch.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]

html_theme = "furo"
html_title = "Lockstitch"

default_role = "code"  # our docstrings write `name`, as Markdown does
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
