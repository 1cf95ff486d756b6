"""Words that the dictionaries lack: the real library with a tiny model, which plays a tone for each
phoneme."""

from __future__ import annotations

import pytest

from ovserve.kinds.voice.spec import TextToSpeechSpec
from ovserve.kinds.voice.worker import pipeline as module
from ovserve.kinds.voice.worker.pipeline import Pipeline, phonemes
from tests.voices import PER_TOKEN, tiny_voice


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "find_espeak", lambda: None)
        return Pipeline(TextToSpeechSpec(str(tiny_voice(tmp_path_factory.mktemp("voice")))))


def sounds(voice: Pipeline, text: str, language: str = "en-us") -> int:
    """The phonemes, spaces included."""
    said = voice.in_words(text, language)
    return len(voice.speak(said, "af_one", language, 1.0)) // PER_TOKEN


WORDS = ["ovserve", "café", "kubernetes", "Zoë", "O'Brien", "gpus", "GPU's", "zzyzx", "x", "OVMS", "HTTPS", "ｗｉｄｅ", "ﬁ",
     "Москва", "東京", "\U0001f600", "hrvst", "a-blorp", "naïve-ship", "5", "&", "xiqqe", "ships'", "mmm", "world's"]  # fmt: skip


@pytest.mark.parametrize("language", ["en-us", "en-gb"])
def test_every_word_is_spoken_and_so_are_those_around_it(
    voice: Pipeline, language: str, subtests: pytest.Subtests
) -> None:
    around = sounds(voice, "hello world", language)
    for word in WORDS:
        with subtests.test(word):
            assert sounds(voice, f"hello {word} world", language) >= around + 2
            assert sounds(voice, f"hello {word}, world.", language) >= around + 2


def test_a_known_word_is_not_replaced(voice: Pipeline) -> None:
    pronunciation = voice._pronunciations["en-us"]
    assert pronunciation.complete("Hello, ships and blorp-ship.") == (
        f"Hello, ships [and](/{phonemes('and')}/) [blorp](/{phonemes('blorp')}/) ship."
    )
    assert pronunciation.complete("[world](/wˈɜɹld/)") == "[world](/wˈɜɹld/)"


@pytest.mark.parametrize(
    ("word", "sound"),
    [
        ("blorping", "blˈɔɹpɪŋ"),
        ("zane", "zˈAn"),
        ("FBI", "ˈɛf bˈi ˈI"),
        ("GPUs", "ʤˈi pˈi jˈuz"),
        ("shroom", "ʃɹˈum"),
    ],
)
def test_phonemes_follow_the_spelling(word: str, sound: str) -> None:
    assert phonemes(word) == sound
