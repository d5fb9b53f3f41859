"""Sphinx settings: pages in Markdown, the reference from docstrings.

A build needs nothing from the network. Where `DOCS_ONLINE=1` is set, as the workflow that publishes
the site does, names of Python and of PyTorch become links to their documentation (the lists of what
is where are fetched from there), and the sidebar has a link to the other versions, which stand
beside this one only on the published site.
"""

import os
import pkgutil
import re

import lockstitch

project = "Lockstitch"
author = "the Lockstitch contributors"
copyright = "the Lockstitch contributors"
release = version = lockstitch.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
is_online = os.environ.get("DOCS_ONLINE") == "1"
if is_online:
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_timeout = 20
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
    }
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"Lockstitch {release}"
if is_online:
    templates_path = ["templates"]
    html_sidebars = {
        "**": [
            "sidebar/brand.html",
            "sidebar/search.html",
            "sidebar/scroll-start.html",
            "sidebar/navigation.html",
            "versions.html",
            "sidebar/scroll-end.html",
        ]
    }

default_role = "code"  # our docstrings write `name`, as Markdown does
autodoc_mock_imports = ["pyspark"]  # of an extra; what it is needed for is described without it
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


def _leave_out_maps(app, what, name, obj, options, lines):
    """The docstrings of our packages list their files, for those who read the code; not here."""
    if what != "module" or not hasattr(obj, "__path__"):
        return
    files = {each.name for each in pkgutil.iter_modules(obj.__path__)}
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines).strip())
    kept = []
    for paragraph in paragraphs:
        words = [re.split(r"\W+", line.strip("- `"))[0] for line in paragraph.splitlines()]
        named = sum(word in files for word in words)
        if named * 2 < len(words) and not any(f"{file}.py" in paragraph for file in files):
            kept.append(paragraph)
        elif kept and kept[-1].endswith(":"):
            kept.pop()
    lines[:] = "\n\n".join(kept).splitlines()


def setup(app):
    app.connect("autodoc-process-docstring", _leave_out_maps)
    app.connect("autodoc-process-docstring", _keep_drawings)
