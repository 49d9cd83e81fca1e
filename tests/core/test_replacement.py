"""A new query that takes the place of all others, told to the committer of a sink that can do so."""

from __future__ import annotations

import pytest

from connectors.core.commit import Commit

from .test_commit import Claims, Crash, Toy, batch, sink, staged, work

__all__ = ["sink"]


class Replacing(Toy):
    replaces = True


@pytest.mark.parametrize(
    ("dies", "policy"),
    [(False, "replace"), (True, "replace"), (True, "stop")],
    ids=["at once", "after a death behind the claim", "also where the user takes the option back"],
)
def test_a_first_batch_that_takes_the_place_of_others_says_so_to_the_committer(
    sink: Toy, monkeypatch: pytest.MonkeyPatch, policy: str, *, dies: bool
) -> None:
    Commit(sink).finish(batch(0, "old"), staged("a"))
    work(sink)
    new = Replacing.of({"onNewQuery": "replace"})
    vars(new).update(root=sink.root, recorder=sink.recorder)
    if dies:
        commit = Commit(new)
        monkeypatch.setattr(commit, "_record", _crash)
        with pytest.raises(Crash):
            commit.finish(batch(0, "new"), staged("b"))
    new = Replacing.of({"onNewQuery": policy})
    vars(new).update(root=sink.root, recorder=sink.recorder)
    Commit(new).finish(batch(0, "new"), staged("c"))
    Commit(new).finish(batch(1, "new"), staged("d"))
    assert work(sink) == [("replace", 0), ("publish", 1)]


def _crash(*about: object) -> bool:
    raise Crash


def test_a_frame_that_takes_the_place_of_others_says_so_to_the_committer(sink: Toy) -> None:
    new = Replacing.of({"onNewQuery": "replace"})
    vars(new).update(root=sink.root, recorder=sink.recorder)
    commit = Commit(new)
    commit.committer = committer = Claims()
    for number, query in [(0, "new"), (7, "old")]:
        commit.begin(batch(number, query))
        commit.commit_frame(object(), batch(number, query))
    assert committer.replacements == ["new"]
