"""The paging of a resource: the order of its pages, and where they end.

A sweep ends at the number of pages or records that the API tells, or if it names no next page; else at an empty page.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from ...core import Choice, Int, Options, Text, Values
from .client import Answer
from .paths import count_at, is_absent, searched

_SHORT_PAGE: Final = Options(
    shortPage=Choice("next", among=("next", "last"), meaning="what follows a page with fewer records than size")
)
_SIZE: Final = "records of a page; default: the API's"
_SIZE_PARAMETER: Final = "the parameter that asks for size"
PAGING: Final[Mapping[str, Options]] = {
    "none": Options(),
    "page": Options(
        parameter=Text("page", meaning="the parameter with the number"),
        first=Int(1, at_least=0, meaning="the number of the first page"),
        size=Int(None, at_least=1, meaning=_SIZE),
        sizeParameter=Text("size", meaning=_SIZE_PARAMETER),
        pages=Text(None, meaning="where the answer tells how many pages there are, JMESPath"),
    )
    | _SHORT_PAGE,
    "offset": Options(
        parameter=Text("offset", meaning="the parameter with the number of records before the page"),
        size=Int(100, at_least=1, meaning="records of a page"),
        sizeParameter=Text("limit", meaning=_SIZE_PARAMETER),
        total=Text(None, meaning="where the answer tells how many records there are, JMESPath"),
    )
    | _SHORT_PAGE,
    "cursor": Options(
        parameter=Text("cursor", meaning="the parameter with what the answer before has said"),
        path=Text(None, meaning="where that is in the body, JMESPath; or header"),
        header=Text(None, meaning="the header that has it"),
        size=Int(None, at_least=1, meaning=_SIZE),
        sizeParameter=Text("limit", meaning=_SIZE_PARAMETER),
    ),
    "link": Options(
        size=Int(None, at_least=1, meaning=_SIZE), sizeParameter=Text("per_page", meaning=_SIZE_PARAMETER)
    ),
    "next": Options(
        path=Text("next", meaning="where the answer has the URL of the next page, JMESPath"),
        size=Int(None, at_least=1, meaning=_SIZE),
        sizeParameter=Text("limit", meaning=_SIZE_PARAMETER),
    ),
}
_LINK: Final = re.compile(r'''<([^>]*)>((?:\s*;\s*[^\s=;,]+(?:\s*=\s*(?:"[^"]*"|[^",;]*))?)*)''')
_LINK_PARAMETER: Final = re.compile(r''';\s*([^\s=;,]+)\s*=\s*(?:"([^"]*)"|'?([^"',;]*))''')


class Paging(ABC):
    """The way from a page of a resource to the next. A page has a token, which is JSON; the first page has ``None``."""

    expires = False
    """True if the API makes the tokens, so that it may refuse an old one."""

    def __init__(self, values: Values) -> None:
        self.values = values

    def parameters(self, token: Any) -> dict[str, Any]:
        """The parameters of the request for a page, in addition to the resource's."""
        size = self.values.get("size")
        return {} if size is None else {self.values["sizeParameter"]: size}

    def url(self, token: Any) -> str | None:
        """The URL of a page, if the API gave it; a URL without host is below the base URL's."""
        return None

    @abstractmethod
    def following(self, token: Any, answer: Answer, body: Any, records: int) -> Any:
        """The token of the page after an answer with ``records`` records; ``None`` after the last page."""

    def can_grow(self, body: Any) -> bool:
        """True if a later record may go onto this page, if it is short, and onto no following page."""
        return False

    def is_silent(self, body: Any) -> bool:
        """True if the answer has nothing, not even null, in the place that should name the next page."""
        return False

    def _is_last(self, records: int, size: int | None) -> bool:
        """True for an empty page. True for a short page only if the user says so, since servers cap and filter pages."""
        return records == 0 or (self.values["shortPage"] == "last" and size is not None and records < size)


class _OnePage(Paging):
    def following(self, token: Any, answer: Answer, body: Any, records: int) -> Any:
        return None


class _Numbered(Paging):
    """Pages by number. A token is the number and the size: a sweep that goes on under another ``size`` keeps its own."""

    def can_grow(self, body: Any) -> bool:
        pages = self.values["pages"]  # an answer that tells of a next page has a whole page
        return self.values["shortPage"] == "next" and (pages is None or count_at(pages, body) is None)

    def parameters(self, token: Any) -> dict[str, Any]:
        number, size = self._place(token)
        return {self.values["parameter"]: number, **({} if size is None else {self.values["sizeParameter"]: size})}

    def following(self, token: Any, answer: Answer, body: Any, records: int) -> Any:
        (number, size), pages = self._place(token), self.values["pages"]
        if pages is not None and (count := count_at(pages, body)) is not None:
            is_last = number - self.values["first"] + 1 >= count
        else:
            is_last = self._is_last(records, size)
        return None if is_last else [number + 1, size]

    def _place(self, token: Any) -> tuple[int, int | None]:
        """The number of a page, and the size of the pages before it."""
        number, size = (self.values["first"], self.values["size"]) if token is None else token
        return number, size


class _Offset(Paging):
    """Pages by the number of records before them."""

    def parameters(self, token: Any) -> dict[str, Any]:
        return {self.values["parameter"]: token or 0, **super().parameters(token)}

    def following(self, token: Any, answer: Answer, body: Any, records: int) -> Any:
        after, total = (token or 0) + (records or self.values["size"]), self.values["total"]
        if total is not None and (count := count_at(total, body)) is not None:
            return after if after < count else None  # also after a page from which the API has left out all records
        return None if self._is_last(records, self.values["size"]) else after


class _Token(Paging):
    """Pages by a token of the previous answer, in its body or in a header."""

    expires = True

    def parameters(self, token: Any) -> dict[str, Any]:
        return {**({} if token is None else {self.values["parameter"]: token}), **super().parameters(token)}

    def following(self, token: Any, answer: Answer, body: Any, records: int) -> Any:
        path, header = self.values["path"], self.values["header"]
        after = searched(path, body) if path else answer.headers.get(header)  # some APIs repeat the last token at the end
        return after if after not in (None, "", False) and after != token else None

    def is_silent(self, body: Any) -> bool:
        return self.values["path"] is not None and is_absent(self.values["path"], body)


class _NextUrl(Paging):
    """Pages by a URL of the previous answer."""

    expires = True

    def url(self, token: Any) -> str | None:
        return None if token is None else str(token)

    def following(self, token: Any, answer: Answer, body: Any, records: int) -> Any:
        url = searched(self.values["path"], body)
        return url if url and url != token else None

    def is_silent(self, body: Any) -> bool:
        return is_absent(self.values["path"], body)


class _LinkHeader(_NextUrl):
    """Pages by the URL in the header ``Link``."""

    def following(self, token: Any, answer: Answer, body: Any, records: int) -> Any:
        for url, text in _LINK.findall(answer.headers.get("Link") or ""):
            parameters = {name.lower(): (quoted or plain).lower() for name, quoted, plain in _LINK_PARAMETER.findall(text)}
            if "next" in parameters.get("rel", "").split():  # Sentry names a next page even at the end, without results
                return url if url != token and parameters.get("results") != "false" else None
        return None

    def is_silent(self, body: Any) -> bool:
        return False


KINDS: Final[Mapping[str, type[Paging]]] = {
    "none": _OnePage,
    "page": _Numbered,
    "offset": _Offset,
    "cursor": _Token,
    "link": _LinkHeader,
    "next": _NextUrl,
}
