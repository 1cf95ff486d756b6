"""Write tests/vectors/encoders: what transformers and sentence-transformers say, and the tiny models they said it of.

    python -m scripts.encoder_goldens MINILM    # the directory of all-MiniLM-L6-v2 with model.safetensors

It needs torch, transformers and sentence-transformers, in an environment of its own; the tests need none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parents[1] / "tests/vectors/encoders"
PAIRS = [
    ("the ship", "left the harbour"),
    ("how do i change the oil", "of a diesel engine please send the invoice"),
    ("prices", ""),
    ("a small orchestra", "she plays the cello in a small orchestra before sunrise"),
]
SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 66,
    "initializer_range": 0.4,  # large, so that scores differ
}


def texts() -> list[str]:
    """200 texts in ten languages: each sentence alone, and texts of up to eight sentences."""
    made = []
    for sentences in json.loads((HERE / "sentences.json").read_text("utf-8")).values():
        made += sentences
        made += [" ".join(sentences[(i + j) % 6] for j in range(2 + i % 7)) for i in range(14)]
    return made


def main(minilm: str) -> None:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.manual_seed(7)
    model = SentenceTransformer(minilm, device="cpu")
    model.max_seq_length = 512
    vectors = model.encode(texts(), batch_size=1, normalize_embeddings=True)
    np.save(HERE / "minilm.npy", vectors.astype(np.float16))
    goldens = {name: _tiny(name) for name in ("bert", "bert-two", "xlm-roberta", "roberta", "mpnet")}
    goldens["qwen3"] = _causal()
    goldens |= {name: _classifier(name) for name in LABELS}
    (HERE / "tiny.json").write_text(json.dumps(goldens, indent=1) + "\n")


def _words() -> list[str]:
    sentences = json.loads((HERE / "sentences.json").read_text("utf-8"))["en"]
    return sorted({w.strip(".?,").lower() for s in sentences for w in s.split()})


def _tokenizer(*, bert: bool) -> tuple[Any, dict[str, Any]]:
    """Return a tokenizer of words, and the configuration of a tiny model with it."""
    import transformers as tf
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"] if bert else ["<s>", "<pad>", "</s>", "<unk>"]
    vocab = {w: i for i, w in enumerate([*special, *_words()])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=special[1] if bert else "<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    first, last = ("[CLS]", "[SEP]") if bert else ("<s>", "</s>")
    middle = last if bert else f"{last} {last}"
    kind = 1 if bert else 0
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {middle} $B:{kind} {last}:{kind}",
        special_tokens=[(first, vocab[first]), (last, vocab[last])],
    )
    names = (
        {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
        if bert
        else {
            "bos_token": "<s>",
            "eos_token": "</s>",
            "cls_token": "<s>",
            "sep_token": "</s>",
            "pad_token": "<pad>",
            "unk_token": "<unk>",
        }
    )
    fast = tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    return fast, SMALL | {"vocab_size": len(vocab), "pad_token_id": vocab[special[0] if bert else "<pad>"]}


def _tiny(name: str) -> dict[str, Any]:
    """Make a tiny random model with its tokenizer; return its answers to PAIRS."""
    import torch
    import transformers as tf

    bert = name.startswith("bert")
    fast, common = _tokenizer(bert=bert)
    if bert:
        labels = 2 if name == "bert-two" else 1
        model: Any = tf.BertForSequenceClassification(tf.BertConfig(**common, num_labels=labels))
    elif name == "xlm-roberta":
        model = tf.XLMRobertaForSequenceClassification(
            tf.XLMRobertaConfig(**common, num_labels=1, type_vocab_size=1, bos_token_id=0, eos_token_id=2)
        )
    elif name == "roberta":
        model = tf.RobertaModel(
            tf.RobertaConfig(**common, type_vocab_size=1, bos_token_id=0, eos_token_id=2),
            add_pooling_layer=False,
        )
    else:
        model = tf.MPNetModel(tf.MPNetConfig(**common), add_pooling_layer=False)
    model = model.eval()
    _save(name, model, fast)
    answers = []
    for query, document in PAIRS:
        pair = hasattr(model, "classifier")
        rows = [(query, document)] if pair else [query]
        encoded = fast(rows, return_tensors="pt", return_token_type_ids=bert and pair)
        if bert and pair:
            assert encoded["token_type_ids"].max() == 1, "types make a difference"
        with torch.no_grad():
            out = model(**encoded)
        value = out.logits[0] if pair else out.last_hidden_state[0].mean(0)
        answers.append({"query": query, "document": document, "values": [round(float(v), 7) for v in value]})
    return {"answers": answers}


def _save(name: str, model: Any, fast: Any) -> None:
    directory = HERE / name
    model.save_pretrained(directory)
    fast.save_pretrained(directory)
    config = json.loads((directory / "config.json").read_text())
    config["max_position_embeddings"] = SMALL["max_position_embeddings"]
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")


LABELS = {  # of classifiers: the first has one label per text, the second any number
    "bert-labels": ["harbour", "engine", "Café ☕"],
    "roberta-labels": ["music", "oil", "sea", "prices"],
}


def _classifier(name: str) -> dict[str, Any]:
    """Make a tiny random classifier; return its logits of texts, and what transformers' pipeline says of them."""
    import torch
    import transformers as tf

    torch.manual_seed(7)
    bert = name.startswith("bert")
    fast, common = _tokenizer(bert=bert)
    common |= {"id2label": dict(enumerate(LABELS[name]))}
    common |= {"label2id": {label: i for i, label in enumerate(LABELS[name])}}
    if bert:
        model: Any = tf.BertForSequenceClassification(tf.BertConfig(**common))
    else:
        common |= {"problem_type": "multi_label_classification", "bos_token_id": 0, "eos_token_id": 2}
        model = tf.XLMRobertaForSequenceClassification(tf.XLMRobertaConfig(**common, type_vocab_size=1))
    model = model.eval()
    _save(name, model, fast)
    fast.model_input_names = ["input_ids", "attention_mask"]
    pipeline = tf.pipeline("text-classification", model=model, tokenizer=fast, top_k=None)
    answers = []
    for text in dict.fromkeys(text for pair in PAIRS for text in pair):
        with torch.no_grad():
            logits = model(**fast([text], return_tensors="pt")).logits[0]
        scores = {one["label"]: one["score"] for one in pipeline([text])[0]}
        answers.append(
            {
                "text": text,
                "logits": [round(float(v), 7) for v in logits],
                "scores": [round(scores[label], 7) for label in LABELS[name]],
            }
        )
    return {"answers": answers}


INSTRUCTIONS = ("Given a web search query, retrieve relevant passages that answer the query", "oil or music")
SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)


def _causal() -> dict[str, Any]:
    """Make a tiny random Qwen3 as OpenVINO IR; return its logits of no and yes to PAIRS, as the model card of
    Qwen3-Reranker computes them."""
    import openvino as ov
    import torch
    import transformers as tf
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    words = {*_words(), *"".join((SYSTEM, *INSTRUCTIONS)).replace('"', " ").replace(".", " ").split()}
    letters = {chr(c) for c in range(33, 127)}
    vocab = {w: i for i, w in enumerate(["<unk>", "yes", "no", "\n", "\n\n", *sorted(words | letters)])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation()]
    )
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True) for t in ("<|im_start|>", "<|im_end|>", "<think>", "</think>")]
    )
    fast = tf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<unk>", unk_token="<unk>", padding_side="left"
    )
    torch.manual_seed(7)
    small = SMALL | {"num_hidden_layers": 1, "num_key_value_heads": 1, "head_dim": 8}
    config = tf.Qwen3Config(**small | {"vocab_size": len(fast), "max_position_embeddings": 256})
    model = tf.Qwen3ForCausalLM._from_config(config, attn_implementation="eager").eval().requires_grad_(False)
    answers = []
    for instruction in INSTRUCTIONS:
        for query, document in PAIRS:
            text = (
                f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
                f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
                "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
            )
            with torch.no_grad():
                logits = model(**fast([text], return_tensors="pt", return_token_type_ids=False)).logits[0, -1]
            values = [round(float(logits[vocab[word]]), 7) for word in ("no", "yes")]
            answers.append(
                {"instruction": instruction, "query": query, "document": document, "values": values}
            )

    class Logits(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            # The mask of the library itself cannot be traced.
            places = attention_mask.cumsum(1)
            seen = (places[:, :, None] >= places[:, None, :]) & attention_mask[:, None, :].bool()
            mask = (1 - seen[:, None].float()) * -1e9
            positions = (places - 1).clamp(min=0)
            given = {"attention_mask": mask, "position_ids": positions, "use_cache": False}
            return model(input_ids=input_ids, **given).logits

    ids = torch.ones(2, 5, dtype=torch.long)
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    with torch.no_grad():
        made = ov.convert_model(Logits(), example_input={"input_ids": ids, "attention_mask": mask})
    for port, name in zip(made.inputs, ("input_ids", "attention_mask"), strict=True):
        port.get_tensor().set_names({name})
    made.outputs[0].get_tensor().set_names({"logits"})
    made.reshape({port: ov.PartialShape([-1, -1]) for port in made.inputs})
    directory = HERE / "qwen3"
    directory.mkdir(exist_ok=True)
    ov.save_model(made, directory / "openvino_model.xml", compress_to_fp16=False)
    config.save_pretrained(directory)
    fast.save_pretrained(directory)
    return {"answers": answers}


if __name__ == "__main__":
    main(sys.argv[1])
