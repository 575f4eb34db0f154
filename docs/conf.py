"""The documentation site: `make docs` builds it into build/site, and fails at any warning or broken link inside."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

project = "jobq"
author = "The jobq developers"
extensions = ["myst_parser", "sphinx_click", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "made"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "jobq"
html_copy_source = False
html_static_path: list[str] = []
man_pages = [("reference/command-line", "jobq", "run commands that matter on machines that vanish", "", 1)]
today = "jobq"  # the page is kept with the sources, and is to be the same on any day
nitpicky = False
smartquotes = False  # options are typed as they stand
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autoclass_content = "both"


def setup(app: "Sphinx") -> None:
    """Rewrite links to files outside of the site; see `made`."""
    from made import outside_links, write_pages  # noqa: PLC0415 - beside this file

    app.connect("builder-inited", write_pages)
    app.connect("source-read", outside_links)
