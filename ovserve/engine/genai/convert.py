"""GGUF to OpenVINO IR, by the library's own reader: `python -m ovserve.engine.genai.convert FILE.gguf`.

A process of its own, started by `ovserve/pull/convert.py`: the reader crashes on some files, and takes three
times their size of memory. It writes openvino_model, openvino_tokenizer and openvino_detokenizer beside the
file; weights stay as they are quantised.
"""

from __future__ import annotations

import sys

import openvino_genai as ov_genai


def main() -> None:
    try:
        ov_genai.LLMPipeline(sys.argv[1], "CPU", enable_save_ov_model=True)
    except RuntimeError as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    main()
