"""GGUF to OpenVINO IR: openvino_model, openvino_tokenizer and openvino_detokenizer.

    python -m ovserve.kinds.text.worker.gguf.convert FILE.gguf DIRECTORY [merge] [fp16] [round]

A process of its own, started by `ovserve/pull/convert.py`, because the server imports no openvino. Weights
are read from the mapped file and written chunk by chunk, so that it takes a few hundred megabytes for a model
of any size. `fp16` unpacks the weights, for processors whose kernels for 16 bits are faster where a step has
many tokens, and keeps them packed in a second network, PACKED.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

import openvino
from openvino.passes import Manager, Serialize
from openvino_tokenizers import tokenizer_pipeline as steps
from openvino_tokenizers.utils import change_inputs_type, change_outputs_type

from ovserve.engine.host.cpu import processor
from ovserve.engine.model.files import PACKED
from ovserve.engine.model.gguf import GGUF, GGUFError
from ovserve.engine.model.gguf_model import GGUFModel, read_model
from ovserve.engine.model.gguf_tokens import BYTE_LEVEL, CONTROL, UNKNOWN, USER_DEFINED, Tokens, token_types
from ovserve.kinds.text.worker.gguf.network import MERGE, ROUND, UNPACK, Network
from ovserve.kinds.text.worker.gguf.weights import Constant, WeightsFile
from ovserve.kinds.text.worker.kernels.library import KernelError, open_library
from ovserve.llm.token_bytes import byte_of_character

NETWORK = "openvino_model.xml"
SPACE = "▁"  # SentencePiece's
CACHED_PIECES = 20_000  # pieces whose tokens are remembered
NO_TOKEN = steps.SpecialToken("\U0010ffff")  # stands in no text, see `build_tokenizer`
KEPT_SPACES = ("<s>", "<unk>", "<|endoftext|>")  # tokens of Phi-3 behind which spaces are not dropped
Merges = list[tuple[bytes, bytes]]


def main() -> None:
    source, directory, options = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    threading.Thread(target=_compile_kernels, name="compile kernels").start()
    try:
        model = read_model(source)
        for graph, name in zip(build_tokenizer(model), ("tokenizer", "detokenizer"), strict=True):
            openvino.save_model(graph, directory / f"openvino_{name}.xml", compress_to_fp16=False)
        if UNPACK in options:
            _write(model, directory / PACKED, [MERGE, *(step for step in options if step == ROUND)])
        _write(model, directory / NETWORK, options)
    except (GGUFError, OSError, RuntimeError) as error:
        sys.exit(f"{error}")


def _compile_kernels() -> None:
    """Compile them while weights are read and written, so that the first load need not wait for it."""
    if processor().has_kernels:
        with suppress(KernelError):  # the load says why
            open_library()


def _write(model: GGUFModel, target: Path, options: list[str]) -> None:
    with target.with_suffix(".bin").open("wb") as file:
        weights = WeightsFile(file)
        network = Network(model, weights, options)
        write_network(network.build(), network.constants, weights, target)


def write_network(
    model: openvino.Model, constants: Mapping[str, Constant], weights: WeightsFile, target: Path
) -> None:
    """Write the XML file. Small constants are appended to the weights.

    The weights are in a file already. OpenVINO's writer would need all of them in memory or mapped, and write
    them a second time.
    """
    small = target.with_suffix(".small")
    manager = Manager()
    manager.register_pass(Serialize(str(target), str(small)))
    manager.run_passes(model)
    begin = weights.append(small.read_bytes())
    small.unlink()
    tree = ElementTree.parse(target)
    for layer in tree.iterfind("layers/layer"):
        data = layer.find("data")
        if data is None:
            continue
        if layer.get("type") == "Const":
            data.set("offset", str(begin + int(data.attrib["offset"])))
        elif (constant := constants.get(layer.get("name", ""))) is not None:
            layer.set("type", "Const")
            data.set("offset", str(constant.offset))
            data.set("size", str(constant.size))
            data.set("shape", data.attrib["shape"].replace(",", ", "))
    tree.write(target, encoding="utf-8", xml_declaration=True)


# ---- the tokenizer, as the two graphs that the library loads, without transformers


def build_tokenizer(model: GGUFModel) -> tuple[openvino.Model, openvino.Model]:
    """Return tokenizer and detokenizer. Raises GGUFError."""
    gguf, tokens = model.gguf, model.tokens
    texts = [str(text) for text in gguf.array("tokenizer.ggml.tokens")]
    types = token_types(gguf, texts)
    added = {i for i, kind in enumerate(types) if kind in (CONTROL, USER_DEFINED, UNKNOWN) and texts[i]}
    byte_level = tokens.model == BYTE_LEVEL
    vocabulary = _bytes_of(texts, added) if byte_level else [text.encode() for text in texts]
    merges = (
        _merges(gguf, texts) if byte_level else _merges_by_score(texts, gguf.array("tokenizer.ggml.scores"))
    )
    pipeline = steps.TokenizerPipeline()
    special = [
        steps.SpecialToken(texts[i], strip_right=tokens.strips and texts[i] not in KEPT_SPACES) for i in added
    ]
    # The library drops an input of the next step, which only this one adds.
    pipeline.add_steps(steps.SpecialTokensSplit(special or [NO_TOKEN]))
    pipeline.add_steps(_splits(tokens))
    bpe = steps.BPETokenizationStep(
        vocab=vocabulary,
        merges=merges,
        byte_fallback=not byte_level,
        fuse_unk=not byte_level,
        cache_capacity=CACHED_PIECES,
        added_tokens={vocabulary[i]: i for i in sorted(added)},
    )
    pipeline.add_steps(bpe)
    pipeline.vocab = vocabulary
    # Off, but without it the library finds no place to switch special tokens off, and returns no tokens.
    pipeline.add_steps(steps.TruncationStep(max_length=model.parameters.length))
    pipeline.add_steps(steps.CombineSegmentsStep(_segments(tokens)))
    padding = next(i for i in (tokens.padding, tokens.eos, tokens.bos, 0) if i is not None)
    pipeline.add_steps(steps.PaddingStep(token=texts[padding], _token_id=padding, pad_right=False))
    hidden = [i for i, kind in enumerate(types) if kind == CONTROL]
    pipeline.add_steps(steps.VocabDecoderStep(vocabulary, hidden))
    pipeline.add_steps(_decoding(tokens))
    tokenizer = change_outputs_type(pipeline.get_tokenizer_ov_subgraph(), openvino.Type.i64)
    detokenizer = change_inputs_type(pipeline.get_detokenizer_ov_subgraph(), openvino.Type.i64)
    for key, value in (
        ("bos_token_id", tokens.bos),
        ("eos_token_id", tokens.eos),
        ("pad_token_id", padding),
        ("chat_template", gguf.metadata.get("tokenizer.chat_template")),
    ):
        if value is not None:
            tokenizer.set_rt_info(value, key)
    for graph in (tokenizer, detokenizer):
        # Without it the library ignores add_special_tokens and skip_special_tokens.
        graph.set_rt_info(metadata.version("openvino-tokenizers"), "openvino_tokenizers_version")
    return tokenizer, detokenizer


def _splits(tokens: Tokens) -> list[steps.BasePipelineStep]:
    """Return what is done to a text before pairs are merged."""
    if tokens.model == BYTE_LEVEL:
        values = [steps.NormalizeUnicode("NFC")] if tokens.rule.nfc else []
        return values + [
            steps.RegexSplitStep(pattern, behaviour="isolate", mergeable=False)
            for pattern in tokens.rule.splits
        ]
    prefix = [steps.RegexNormalizationStep.prepend_regex(SPACE)] if tokens.add_prefix else []
    return [*prefix, steps.RegexNormalizationStep.replace_spaces_metaspace()]


def _segments(tokens: Tokens) -> list[steps.TokenWithTypeId]:
    begin = [] if tokens.begin is None else [steps.AddToken(_token_id=tokens.begin)]
    end = [] if tokens.end is None else [steps.AddToken(_token_id=tokens.end)]
    return [*begin, steps.Sequence(), *end]


def _decoding(tokens: Tokens) -> list[steps.BasePipelineStep]:
    if tokens.model == BYTE_LEVEL:
        return [steps.FuseStep(), steps.UTF8ValidateStep(steps.UTF8ReplaceMode.REPLACE)]
    return [
        steps.RegexDecodingStep.replace_sp_spaces(),
        steps.ByteFallbackStep(),
        steps.FuseStep(),
        steps.UTF8ValidateStep(steps.UTF8ReplaceMode.REPLACE),
        *([steps.RegexDecodingStep("^ ", "")] if tokens.add_prefix else []),
    ]


def _bytes_of(texts: Sequence[str], plain: set[int]) -> list[bytes]:
    """Return the bytes that tokens stand for. `plain`: tokens whose texts are what they stand for."""
    table = byte_of_character()
    values = []
    for i, text in enumerate(texts):
        is_escaped = i not in plain and all(character in table for character in text)
        values.append(bytes(table[character] for character in text) if is_escaped else text.encode())
    return values


def _merges(gguf: GGUF, texts: Sequence[str]) -> Merges:
    table, vocabulary = byte_of_character(), set(texts)
    values = []
    for line in gguf.array("tokenizer.ggml.merges"):
        left, _, right = str(line).partition(" ")
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise GGUFError(f"tokenizer.ggml.merges: {str(line)[:80]!r} merges what is no token")
        if all(c in table for c in left + right):  # else nothing in a text can be such a token
            values.append((bytes(table[c] for c in left), bytes(table[c] for c in right)))
    return values


def _merges_by_score(texts: Sequence[str], scores: Sequence[str | float | bool]) -> Merges:
    """Return the pairs that SentencePiece merges: any two tokens that make a third, by its score."""
    ids = {text: i for i, text in enumerate(texts)}
    pairs = []
    for text, i in ids.items():
        for at in range(1, len(text)):
            left, right = text[:at], text[at:]
            if left in ids and right in ids:
                pairs.append((-float(scores[i]), ids[left], ids[right], left, right))
    pairs.sort()
    return [(left.encode(), right.encode()) for *_, left, right in pairs]


if __name__ == "__main__":
    main()
