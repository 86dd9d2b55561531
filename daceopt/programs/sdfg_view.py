"""DaCe's viewer of an SDFG as one page that needs no network, no server and no files beside it."""

from __future__ import annotations

import html
import json
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from daceopt.errors import DaceoptError

if TYPE_CHECKING:
    import dace

_HEIGHT = 600
_PAGE = """<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>Dataflow</title>
<style>
html, body, #contents { margin: 0; width: 100%; height: 100%; overflow: hidden; background: white }
</style></head>
<body><div class="sdfv" style="height: 100%"><div id="contents" style="position: relative"></div></div>
<script>const text = SDFG;</script>
<script>VIEWER</script>
<script>
new SDFGRenderer(checkCompatLoad(parse_sdfg(text)), document.getElementById("contents"), undefined, null, null, false,
                 null, null);
</script></body></html>
"""


class SdfgView:
    """An SDFG in DaCe's own viewer: notebooks show it, ``save`` writes it. The page has the viewer in it (10 MB)."""

    def __init__(self, sdfg: dace.SDFG):
        self._sdfg = sdfg

    def html(self) -> str:
        """The page: what DaCe puts into notebooks that have no network."""
        import dace

        # text of the graph cannot end the script, whatever it says
        text = json.dumps(dace.serialize.dumps(self._sdfg.to_json())).replace("</", "<\\/")
        return _PAGE.replace("SDFG", text, 1).replace("VIEWER", _viewer(), 1)

    def save(self, path: str | Path) -> Path:
        """Write the page; returns its path."""
        file = Path(path)
        file.write_text(self.html(), encoding="utf-8")
        return file

    def _repr_html_(self) -> str:
        page = html.escape(self.html(), quote=True)
        return f'<iframe style="width:100%;height:{_HEIGHT}px;border:0" srcdoc="{page}"></iframe>'


def view(subject: object) -> SdfgView:
    """Show an SDFG, the forward graph of an optimized module, or of a program of ``from_onnx`` or ``from_sdfg``.

    Raises DaceoptError for anything else.
    """
    sdfg = getattr(getattr(subject, "daceopt", subject), "sdfg", subject)
    if not hasattr(sdfg, "to_json"):
        raise DaceoptError(f"view takes an SDFG, or what has one, not {type(subject).__name__}")
    return SdfgView(sdfg)


def show_in_notebooks(sdfg: dace.SDFG) -> dace.SDFG:
    """The same, whose ``view()`` shows it in a notebook's cell; elsewhere, and with a file's name, as DaCe does."""
    sdfg.view = partial(_view, sdfg)  # no subclass, which DaCe would write into files, and not read again
    return sdfg


def _view(sdfg: dace.SDFG, filename: str | int | None = None, verbose: bool = False) -> None:
    from dace import SDFG, jupyter

    if filename is not None or not jupyter.isnotebook():
        SDFG.view(sdfg, filename, verbose)
        return
    from IPython.display import display

    display(SdfgView(sdfg))


@cache
def _viewer() -> str:
    """DaCe's viewer as one script."""
    import dace

    file = Path(dace.__file__).parent / "viewer" / "webclient" / "dist" / "sdfv_jupyter.js"
    return file.read_text(encoding="utf-8").replace("</script", "<\\/script")
