"""The sentences that people read keep to the rules of tests/sentences.py."""

from tests import sentences


def test_no_head_begins_with_a_question_and_no_sentence_is_about_whoever() -> None:
    found = [
        f"{path.relative_to(sentences.ROOT)}:{wrong}"
        for path in sentences.all_files()
        for wrong in sentences.wrongs(path, path.read_text())
    ]

    assert not found, "\n".join(found)


def test_the_check_finds_each_kind_of_wrong_sentence() -> None:
    code = '"""What carries errands."""\n\n\ndef carry():\n    """Carry it for whoever asks."""\n    # whoever\n'

    found = [*sentences.wrongs(sentences.ROOT / "a.py", code), *sentences.wrongs(sentences.ROOT / "a.md", "Whoever.")]

    assert [wrong.split(":")[0] for wrong in found] == ["1", "5", "6", "1"]
    long = '"""' + "word " * 26 + 'end."""'
    assert list(sentences.wrongs(sentences.ROOT / "a.py", long)) == [
        "1: the first sentence has 27 words, 25 are enough"
    ]
