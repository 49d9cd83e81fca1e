"""Takes what a running notebook prints and shows into its cells' outputs."""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from nbformat import NotebookNode, v4


class Recorder:
    """Collects outputs into the cell that is running; what comes late, from a thread, goes to the last one."""

    def __init__(self) -> None:
        self._outputs: list[NotebookNode] = []
        self._shown: dict[str, NotebookNode] = {}
        self._lock = threading.RLock()

    def into(self, cell: NotebookNode) -> None:
        """From now on outputs belong to ``cell``, whose old ones are dropped."""
        cell.outputs = self._outputs = []

    def stream(self, name: str, text: str) -> None:
        """Text that was printed to ``stdout`` or ``stderr``."""
        with self._lock:
            last = self._outputs[-1] if self._outputs else None
            if last is not None and last.output_type == "stream" and last.name == name:
                last.text += text
            else:
                self._outputs.append(v4.new_output("stream", name=name, text=text))

    def show(self, data: Mapping[str, Any], metadata: Mapping[str, Any], display_id: str | None, update: bool) -> None:
        """Something displayed; ``update`` replaces what was shown under ``display_id``."""
        with self._lock:
            if update and display_id in self._shown:
                self._shown[display_id].update(data=_plain(data), metadata=dict(metadata))
                return
            output = v4.new_output("display_data", data=_plain(data), metadata=dict(metadata))
            self._outputs.append(output)
            if display_id is not None:
                self._shown[display_id] = output

    def result(self, data: Mapping[str, Any], metadata: Mapping[str, Any], count: int) -> None:
        """The value of a cell's last expression."""
        output = v4.new_output("execute_result", data=_plain(data), metadata=dict(metadata), execution_count=count)
        with self._lock:
            self._outputs.append(output)

    def error(self, name: str, value: str, traceback: list[str]) -> None:
        """The error that ended a cell."""
        with self._lock:
            self._outputs.append(v4.new_output("error", ename=name, evalue=value, traceback=traceback))

    def clear(self) -> None:
        """Drops the outputs of the running cell."""
        with self._lock:
            self._outputs.clear()


class Stream(io.TextIOBase):
    """``sys.stdout`` or ``sys.stderr`` of a running notebook."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        self.name = name
        self._recorder = recorder

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if text:
            self._recorder.stream(self.name, str(text))
        return len(text)


class Publisher(DisplayPublisher):
    """IPython's way of showing things, into a recorder."""

    recorder: Recorder

    def publish(
        self,
        data: Any,
        metadata: Any = None,
        source: Any = None,
        *,
        transient: Any = None,
        update: Any = False,
        **more: Any,
    ) -> None:
        self.recorder.show(data, metadata or {}, (transient or {}).get("display_id"), bool(update))

    def clear_output(self, wait: bool = False) -> None:
        self.recorder.clear()


class ResultHook(DisplayHook):
    """IPython's way of showing a cell's result, into a recorder."""

    recorder: Recorder

    def start_displayhook(self) -> None:
        """Nothing is written before a result."""

    def write_output_prompt(self) -> None:
        """A notebook shows its prompt by itself."""

    def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
        self.recorder.result(format_dict, md_dict or {}, self.prompt_count)

    def finish_displayhook(self) -> None:
        """Nothing is written after a result."""


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    """As notebooks keep it: images as text of base64."""
    import base64

    return {
        kind: base64.encodebytes(value).decode("ascii") if isinstance(value, bytes) else value
        for kind, value in data.items()
    }
