"""The importer of the library from bytes, for a process that has none of its files.

This module is pickled by value, as a whole, so it uses nothing but Python's own library. See
:mod:`connectors.spark.library` for who sends it and when.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import CodeType, ModuleType
from typing import Any


class CarriedLibrary(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports the package ``connectors`` from memory: nothing is left on a server's disk.

    ``packed`` is a zip file without compression, compressed by bzip2 as a whole: half of what a zip file compresses to.
    """

    def __init__(self, packed: bytes) -> None:
        self.packed = packed
        archive = self._archive()
        self.files: dict[str, bytes] = {name: archive.read(name) for name in archive.namelist()}

    def _archive(self) -> Any:
        import bz2
        import io
        import zipfile

        return zipfile.ZipFile(io.BytesIO(bz2.decompress(self.packed)))

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> Any:
        if fullname.partition(".")[0] != "connectors" or self._file(fullname) is None:
            return None
        return importlib.util.spec_from_loader(fullname, self, is_package=self.is_package(fullname))

    def is_package(self, fullname: str) -> bool:
        return str(self._file(fullname)).endswith("/__init__.py")

    def get_source(self, fullname: str) -> str:
        return self.files[str(self._file(fullname))].decode()

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self.get_source(fullname), f"<carried>/{self._file(fullname)}", "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = f"<carried>/{self._file(module.__name__)}"
        exec(self.get_code(module.__name__), module.__dict__)

    def get_resource_reader(self, fullname: str) -> Any:
        """The reader that ``importlib.resources`` asks for the files beside the modules of a package."""
        import types
        import zipfile

        folder = zipfile.Path(self._archive(), f"{fullname.replace('.', '/')}/")
        return types.SimpleNamespace(files=lambda: folder)

    def _file(self, fullname: str) -> str | None:
        stem = fullname.replace(".", "/")
        return next((name for name in (f"{stem}/__init__.py", f"{stem}.py") if name in self.files), None)


def arrive(packed: bytes, inner: bytes | None = None) -> Any:
    """Makes ``connectors`` importable in this process, unless it is loaded; then unpickles ``inner``, a class and its state."""
    import pickle

    if "connectors" not in sys.modules and not any(type(finder).__name__ == "CarriedLibrary" for finder in sys.meta_path):
        sys.meta_path.insert(0, CarriedLibrary(packed))
    if inner is None:
        from connectors.spark.library import Luggage

        return Luggage()
    kind, state = pickle.loads(inner)
    carried = kind.__new__(kind)
    carried.__setstate__(state)
    return carried
