"""Who does not know the secret is no rank, says so himself, and ends nothing."""

import logging

import meeting
import pytest

from tfdp.cluster import secret
from tfdp.cluster.rendezvous import meet
from tfdp.cluster.rendezvous_server import Gathering
from tfdp.errors import ClusterError

ONE, OTHER = secret.made(), secret.made()


def met(*secrets):
    """What each rank's meeting with the others ends with."""
    described = meeting.clusters(len(secrets))
    return meeting.on_all(
        *(
            lambda c=c, s=s: meet(c, {}, meeting.no_difference, 60.0, s)
            for c, s in zip(described, secrets, strict=True)
        )
    )


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_ranks_that_share_a_secret_meet_without_a_warning(caplog):
    assert [len(one.introductions) for one in met(ONE, ONE, ONE)] == [3, 3, 3]
    assert warnings(caplog) == []


def test_ranks_without_one_meet_and_rank_0_warns_once(caplog):
    assert [len(one.introductions) for one in met(None, None, None)] == [3, 3, 3]
    (text,) = warnings(caplog)
    assert text.startswith("Rank 0: the ranks have no secret")
    assert "`TFDP_SECRET`" in text
    assert "`TFDP_SECRET_FILE`" in text


@pytest.mark.parametrize(
    ("theirs", "has", "says"),
    [
        (OTHER, "has another", "rank 0 has another than this rank"),
        (None, "has none", "rank 0 has one and this rank has none"),
    ],
    ids=["another", "none"],
)
def test_a_rank_with_another_secret_or_none_says_so_and_rank_0_waits_for_the_right_one(
    theirs, has, says, caplog, monkeypatch
):
    refuse = Gathering._refuse

    def refuse_at_the_last_moment(self, *arguments):
        refuse(self, *arguments)
        self._over.set_exception(TimeoutError())

    monkeypatch.setattr(Gathering, "_refuse", refuse_at_the_last_moment)
    first, wrong = met(ONE, theirs)
    assert isinstance(wrong, ClusterError)
    assert f"Rank 1: all ranks must have the same secret, but {says}" in str(wrong)
    (text,) = warnings(caplog)
    assert f"what came from 127.0.0.1 as rank 1 {has}, and was sent away" in text
    assert "rank 1 of 2 did not connect" in str(first)
    assert f"as rank 1 {has}" in str(first)  # when its time is over it knows why
    for message in (text, str(wrong), str(first)):
        assert "`TFDP_SECRET`" in message
        assert ONE not in message


def test_a_rank_with_a_secret_ends_a_start_without_one_on_all():
    first, second = met(None, ONE)
    assert "rank 1 (from 127.0.0.1) has one and rank 0 has none" in str(first)
    assert "this rank has one and rank 0 has none" in str(second)


def test_a_false_rank_takes_nobodys_place(caplog):
    described = meeting.clusters(2)

    def false_then_right():
        for _ in range(3):
            with pytest.raises(ClusterError, match="rank 0 has another"):
                meet(described[1], {"who": "false"}, meeting.no_difference, 60.0, OTHER)
        return meet(described[1], {"who": "right"}, meeting.no_difference, 60.0, ONE)

    first, second = meeting.on_all(
        lambda: meet(described[0], {"who": "first"}, meeting.no_difference, 60.0, ONE),
        false_then_right,
    )
    for one in (first, second):
        assert [said["who"] for said in one.introductions] == ["first", "right"]
    assert len(warnings(caplog)) == 1


def test_a_secret_is_read_from_the_environment_or_a_file(tmp_path):
    path = tmp_path / "secret"
    path.write_text(f"  {ONE}\n")
    assert secret.in_environment({}) is None
    assert secret.in_environment({"TFDP_SECRET_FILE": str(path)}) == ONE
    both = {"TFDP_SECRET_FILE": str(path), "TFDP_SECRET": OTHER}
    assert secret.in_environment(both) == OTHER


@pytest.mark.parametrize("content", [None, b"", b"short\n", b"\xff" * 40])
def test_a_secret_that_is_none_is_named_and_not_shown(content, tmp_path):
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ClusterError, match="`TFDP_SECRET_FILE` must") as caught:
        secret.in_environment({"TFDP_SECRET_FILE": str(path)})
    assert "short" not in str(caught.value)
    for text in ("", "short"):
        with pytest.raises(ClusterError, match=f"`TFDP_SECRET` must.*holds {len(text)}"):
            secret.in_environment({"TFDP_SECRET": text})
