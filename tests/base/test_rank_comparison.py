"""What is said where ranks told other things."""

import pytest

from tfdp.base import rank_comparison
from tfdp.errors import RankMismatchError


def said_of(*told):
    with pytest.raises(RankMismatchError) as raised:
        rank_comparison.check("Rank 1: ", "`fit`", told, "Mend that.")
    return str(raised.value)


def test_ranks_that_told_the_same_are_not_refused_and_no_number_is_a_number_like_another():
    told = [{"rate": float("nan"), "layers": [1, 2]} for _ in range(3)]
    rank_comparison.check("", "`fit`", told, "")


def test_the_first_name_that_differs_is_told_with_each_value_and_its_ranks():
    said = said_of({"a": 1, "b": 2, "c": 0}, {"a": 1, "b": 3, "c": 1}, {"a": 1, "b": 2, "c": 2})
    assert said.startswith(
        "Rank 1: `fit` must be alike on all ranks, but b is 2 on ranks 0, 2 and 3 on rank 1. Mend"
    )


def test_what_one_rank_alone_told_is_none_on_the_others():
    assert "but seed is None on rank 0 and 7 on rank 1." in said_of({}, {"seed": 7})


def test_of_many_values_the_first_are_told():
    said = said_of(*({"seed": rank} for rank in range(99)))
    assert "3 on rank 3 and others on other ranks." in said
