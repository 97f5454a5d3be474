import random
from collections import Counter
from itertools import pairwise

import pytest

from palermo.core.fair_scheduling import RANDOM, TURN, StrideScheduler, is_tenant, stride


def wheel(order: str = TURN, **shares: float) -> StrideScheduler:
    made = StrideScheduler(order, random.Random(7).random)
    for tenant, share in shares.items():
        made.join(tenant, share)
    return made


def turns(made: StrideScheduler, count: int, **shares: float) -> list[str]:
    found = []
    for _ in range(count):
        tenant = made.next()
        assert tenant is not None
        made.served(tenant, shares.get(tenant, 1.0))
        found.append(tenant)
    return found


def test_tenants_have_their_turns_one_after_the_other() -> None:
    assert [stride(share, TURN, 0.0) for share in (1, 4, 0.5)] == [1, 0.25, 2]
    made = wheel(a=1, b=1, c=1)
    assert turns(made, 7) == list("abcabca")
    made.leave("a")
    made.leave("c")
    assert (made.next(), len(made), "a" in made, "b" in made) == ("b", 1, False, True)
    made.leave("b")
    assert made.next() is None


@pytest.mark.parametrize(("shares", "wanted"), [((2, 1), (200, 100)), ((1, 0.5), (200, 100)), ((10, 1), (273, 27))])
def test_a_share_says_how_often(shares: tuple[float, float], wanted: tuple[int, int]) -> None:
    given = {"a": shares[0], "b": shares[1]}

    found = Counter(turns(wheel(**given), 300, **given))

    assert abs(found["a"] - wanted[0]) <= 1
    assert found["a"] + found["b"] == 300


def test_a_tenant_that_comes_late_or_again_and_again_has_its_share() -> None:
    made = wheel(a=1, b=1)
    turns(made, 1_000)
    made.join("c")
    late = turns(made, 9)
    assert late.index("c") <= 2
    assert Counter(late) == {"a": 3, "b": 3, "c": 3}

    made = wheel(a=1)
    found = []
    for _ in range(100):
        made.join("b")
        tenant = made.next()
        assert tenant is not None
        made.served(tenant)
        if tenant == "b":
            made.leave("b")
        found.append(tenant)

    assert 45 <= found.count("b") <= 55


def test_random_draws_follow_the_shares_and_are_independent() -> None:
    given = {"a": 3.0, "b": 1.0}

    found = turns(wheel(RANDOM, **given), 4_000, **given)

    assert 0.72 < found.count("a") / 4_000 < 0.78
    after_a = [then for now, then in pairwise(found) if now == "a"]
    assert 0.71 < after_a.count("a") / len(after_a) < 0.79


def test_the_waits_of_a_thousand_tenants_stay_within_twice_the_ideal() -> None:
    made = wheel(**{f"{number}": 1 for number in range(1_000)})
    last, longest = dict.fromkeys(made._marks, 0), 0
    for now, tenant in enumerate(turns(made, 20_000)):
        longest = max(longest, now - last[tenant])
        last[tenant] = now

    assert longest <= 2 * 1_000


def test_what_may_name_a_tenant() -> None:
    assert [is_tenant(name) for name in ("a", "ü" * 127, "x" * 255)] == [True] * 3
    assert [is_tenant(name) for name in ("x" * 256, "", " a", None)] == [False] * 4


def test_looking_at_the_coming_turns_changes_nothing() -> None:
    shares = {"a": 3.0, "b": 1.0, "c": 0.5}
    made, like = wheel(**shares), wheel(**shares)
    made.join("gone")
    made.leave("gone")

    assert made.coming(40, shares.__getitem__) == made.coming(40, shares.__getitem__) == turns(like, 40, **shares)
    assert turns(made, 40, **shares) == made.coming(0, shares.__getitem__) + turns(wheel(**shares), 40, **shares)
    assert wheel().coming(5, shares.__getitem__) == []
