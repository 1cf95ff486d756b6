"""Causal language models as rerankers: a prompt that asks for yes or no, and the logits of these two tokens.

The form is that of Qwen3-Reranker. The model is cut before its last matrix, of which two rows are used
instead of a vocabulary.
Source: https://huggingface.co/Qwen/Qwen3-Reranker-0.6B, read 2026-11-22
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as op

from ovserve.errors import LoadError
from ovserve.kinds.encoders.worker.pairs import PairForm
from ovserve.kinds.encoders.worker.tokens import TextTokenizer

SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
BEFORE = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
QUESTION = "<Instruct>: {}\n<Query>: {}\n<Document>:"  # tokenised as one text, because tokens cross its seams
LEAD = " "  # before a document: the space belongs to its first token
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
WORDS = ("no", "yes")


class Template:
    """The tokens of the prompt around a query and a document."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._before, self._after = (tuple(r.tolist()) for r in tokenizer.encode([BEFORE, AFTER], False))
        ids = [row.tolist() for row in tokenizer.encode(list(WORDS), False)]
        if any(len(one) != 1 for one in ids):
            raise LoadError(f"a reranker by yes and no needs one token for each; this tokenizer has {ids}")
        self.answers = [one[0] for one in ids]  # those of WORDS

    def form(self, instruction: str, query: str) -> PairForm:
        """Return what stands around each document; the query is a part of it."""
        (question,) = self._tokenizer.encode([QUESTION.format(instruction or INSTRUCTION, query)], False)
        return PairForm((*self._before, *question.tolist()), (), self._after, typed=False)


def is_causal(model: ov.Model) -> bool:
    """Return whether the model answers with a logit per token of its vocabulary at each position."""
    return any("logits" in o.get_names() and len(o.get_partial_shape()) == 3 for o in model.outputs)


def cut(model: ov.Model, template: Template) -> tuple[ov.Model, NDArray[np.float32]]:
    """Return the model up to the last token's hidden state, [rows, hidden], and the weights [hidden, 2] that
    make the logits of no and yes of it.

    The product is left to float32 outside: in bf16 a logit of 20 has steps of 0.125. Raises LoadError.
    """
    logits = next(o for o in model.outputs if "logits" in o.get_names())
    head = _head(logits.get_node().input_value(0).get_node())
    mask = model.input("attention_mask")
    length = op.gather(op.shape_of(mask), op.constant(1), op.constant(0))
    places = op.range(op.constant(np.int64(0)), length, op.constant(np.int64(1)), output_type=ov.Type.i64)
    last = op.reduce_max(op.multiply(places, op.convert(mask, ov.Type.i64)), op.constant(np.array([1])))
    hidden = op.gather(head.input_value(0), last, op.constant(np.int64(1)), 1)
    weights = _weights(head, template.answers)
    inputs = [i.get_node() for i in model.inputs]
    return ov.Model([op.result(hidden)], model.get_sinks(), inputs, "causal_reranker"), weights


def _head(node: Any) -> Any:
    """The matrix of the logits. Raises LoadError where something else than a conversion follows it."""
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    if node.get_type_name() != "MatMul":
        raise LoadError(f"the logits are made by {node.get_type_name()}; expected a MatMul")
    return node


def _weights(head: Any, answers: list[int]) -> NDArray[np.float32]:
    """Compute the rows of two tokens, which may be stored in a compressed form."""
    by_row = bool(head.get_attributes()["transpose_b"])
    axis = op.constant(np.int64(0 if by_row else 1))
    rows = op.gather(head.input_value(1), op.constant(np.array(answers, np.int64)), axis)
    small = ov.Model([op.result(op.convert(rows, ov.Type.f32))], [], "answers")
    (product,) = ov.Core().compile_model(small, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})({}).to_tuple()
    weights: NDArray[np.float32] = product.T.copy() if by_row else product.copy()
    return weights
