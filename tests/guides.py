"""Commands of the guides that docs/migrate.md is for, as their readers type them after `run --`.

Standard library only: the environments of stacks have no more.
"""

import os
from dataclasses import dataclass
from pathlib import Path

STAND_IN = Path(__file__).with_name("stand_in_script.py")  # replaces scripts that are not available


@dataclass(frozen=True)
class Guide:
    """A command of a guide.

    Attributes:
        typed: the command in the guide.
        advised: the command after ftcluster's advice was followed to the letter.
    """

    typed: str
    advised: str

    @property
    def script(self) -> str:
        """The script's file name."""
        return self.advised.partition(" ")[0]


ICE_LAKE, MANY_CPUS = "the Ice Lake post", "Hugging Face's guide for many CPUs"
GUIDES = {
    ICE_LAKE: Guide(
        "mpirun -f hostfile -np 2 -ppn 1 -genv I_MPI_PIN_DOMAIN=[0xfffffff0] "
        "-genv OMP_NUM_THREADS=28 python run_glue.py "
        "--model_name_or_path distilbert-base-uncased --task_name mrpc --do_train --do_eval "
        "--max_seq_length 128 --per_device_train_batch_size 32 --learning_rate 2e-5 "
        "--num_train_epochs 3 --output_dir /tmp/mrpc/ --overwrite_output_dir True "
        "--xpu_backend ccl --no_cuda True",
        "run_glue.py --model_name_or_path distilbert-base-uncased --task_name mrpc --do_train "
        "--do_eval --max_seq_length 128 --per_device_train_batch_size 32 --learning_rate 2e-5 "
        "--num_train_epochs 3 --output_dir /tmp/mrpc/ --use_cpu True",
    ),
    "the Sapphire Rapids post": Guide(
        "mpirun -f /root/hosts -n 8 -ppn 2 -genv OMP_NUM_THREADS=24 "
        "-genv LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libtcmalloc.so python3 run_qa.py "
        "--model_name_or_path distilbert-base-uncased --dataset_name squad --do_train --do_eval "
        "--per_device_train_batch_size 32 --num_train_epochs 1 --output_dir /tmp/debug_squad/ "
        "--overwrite_output_dir --no_cuda --xpu_backend ccl --bf16",
        "run_qa.py --model_name_or_path distilbert-base-uncased --dataset_name squad --do_train "
        "--do_eval --per_device_train_batch_size 32 --num_train_epochs 1 "
        "--output_dir /tmp/debug_squad/ --use_cpu --bf16",
    ),
    MANY_CPUS: Guide(
        "mpirun -f hostfile -n 4 -ppn 2 -genv OMP_NUM_THREADS=23 python3 run_qa.py "
        "--model_name_or_path bert-large-uncased --dataset_name squad --do_train --do_eval "
        "--per_device_train_batch_size 12 --learning_rate 3e-5 --num_train_epochs 2 "
        "--max_seq_length 384 --doc_stride 128 --output_dir /tmp/debug_squad/ --no_cuda "
        "--ddp_backend ccl --use_ipex --bf16",
        "run_qa.py --model_name_or_path bert-large-uncased --dataset_name squad --do_train "
        "--do_eval --per_device_train_batch_size 12 --learning_rate 3e-5 --num_train_epochs 2 "
        "--max_seq_length 384 --doc_stride 128 --output_dir /tmp/debug_squad/ --use_cpu --bf16",
    ),
    "Intel's nanoGPT module": Guide(
        "accelerate launch --config_file ./single_config.yaml main.py", "main.py"
    ),
}  # fmt: skip


def script_folder(script: str) -> Path | None:
    """Return the folder of a script below FTCLUSTER_TEST_SCRIPTS, or None."""
    below = os.environ.get("FTCLUSTER_TEST_SCRIPTS")
    found = sorted(Path(below).rglob(script)) if below else []
    return found[0].parent if found else None
