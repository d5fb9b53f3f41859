"""Sphinx settings: pages in Markdown, the reference from docstrings, nothing from the network."""

import lockstitch

project = "Lockstitch"
author = "the Lockstitch contributors"
copyright = "the Lockstitch contributors"
release = version = lockstitch.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "Lockstitch"

default_role = "code"  # our docstrings write `name`, as Markdown does
autodoc_typehints = "signature"
maximum_signature_line_length = 88
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}


def _keep_drawings(app, what, name, obj, options, lines):
    """Indented blocks of our docstrings are drawings and code, as in Markdown: keep their lines."""
    text, previous = [], ""
    for line in lines:
        if line.startswith("    ") and not previous.strip():
            paragraph = next((each for each in reversed(text) if each.strip()), "")
            if not paragraph.startswith(" "):
                text += ["::", ""]
        text.append(line)
        previous = line
    lines[:] = text


def setup(app):
    app.connect("autodoc-process-docstring", _keep_drawings)
