"""The page of a live session in Jupyter, as a widget: the module of the browser, over the kernel's own messages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from daceopt.explore.live.live_session import LiveSession
from daceopt.explore.live.server import page_file

if TYPE_CHECKING:
    from anywidget import AnyWidget

    from daceopt.explore.session.session import Session


def widget(session: Session, folder: Path | str = ".") -> AnyWidget:
    """A widget that walks ``session``, whose methods see what was clicked. Recipes are saved in ``folder``.

    Raises ImportError, with what to install, where anywidget is missing.
    """
    try:
        import anywidget
    except ImportError as error:
        raise ImportError(f"a session in Jupyter needs packages: pip install 'daceopt[explore]' ({error})") from error
    live = LiveSession(lambda: session, Path(folder).resolve(), session.title)
    page = {"_esm": page_file("live.js"), "_css": page_file("live.css")}
    shown: AnyWidget = type("LiveWidget", (anywidget.AnyWidget,), page)()

    def hear(_: AnyWidget, message: object, buffers: Any) -> None:
        live.handle(message, shown.send)

    shown.on_msg(hear)
    live.connect(shown.send)
    return shown
