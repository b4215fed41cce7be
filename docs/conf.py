"""How `make docs` builds the reference and the guides; any warning of Sphinx is an error."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import tfdp

project = "tfdp"
version = release = tfdp.__version__
copyright = "the authors of tfdp"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "reference_pages",
]

# Docstrings are Google's style. A name in single backquotes is a link where the reference has it.
default_role = "name"
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Attributes", "params_style")]
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
add_module_names = False

# Warns of references to nothing; `reference_pages` says which need not lead anywhere.
nitpicky = True

# The tables of `benchmarks convergence` begin below the headings of what they are put in, and are
# reached from their guide.
suppress_warnings = ["myst.header", "toc.not_included"]
exclude_patterns = ["contents.md"]

# Anchors of headings are GitHub's.
myst_heading_anchors = 3

# docs/notebooks.py runs the notebooks, so that a build without their outputs is quick.
nb_execution_mode = "off"
# Widgets would need a network.
nb_ipywidgets_js = {}

# Quotes are made round; two hyphens stay what they are, for they begin options.
smartquotes_action = "q"

html_theme = "furo"
html_title = f"tfdp {version}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["pages.css"]
