import pytest

from palermo.core.text import exactly, fits


@pytest.mark.parametrize(
    ("name", "fitting", "others"),
    [
        ("mail", ["mail", "AI", "m*l", "*", "=mail", "x,mail", " mail "], ["mall", "l*m", "=mai", "=MAIL", ",", "x,y"]),
        ("shop.Send", ["send", "SHOP*end", "p.S"], ["=Send", "send*shop"]),
        ("a,b", ["=a,b", "a*b", "b"], ["=a"]),
        ("x*y", ["=x*y", "x*y"], ["=x"]),
        ("aXbX", ["x*x"], ["x*x*x"]),
        ("", ["=", "*"], ["a"]),
    ],
)
def test_a_wanted_text_is_found_anywhere_in_any_letter_case(name: str, fitting: list[str], others: list[str]) -> None:
    assert [text for text in fitting if not fits(name, text)] == []
    assert [text for text in others if fits(name, text)] == []
    assert fits(name, exactly(name))
