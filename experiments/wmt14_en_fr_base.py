"""The paper's base model on WMT14, English to French: 36 million pairs, 100,000 updates.

Command    python -m transformer_jax train experiments/wmt14_en_fr_base.py
           python -m transformer_jax evaluate runs/wmt14_en_fr_base --average-last 5
8 GPUs     experiments/launch/one_host.sh train experiments/wmt14_en_fr_base.py
           --run-directory runs/wmt14_en_fr_base
v5e-16     experiments/launch/tpu_vm.sh train experiments/wmt14_en_fr_base.py
           --run-directory /mnt/shared/runs/wmt14_en_fr_base
Needs      wmt14_translate/fr-en of tfds; the first run downloads several GB for it, and the tokens
           take about 5 GB in the run's directory. Otherwise as wmt14_en_de_base.py
Score      38.1 on newstest2014 in the paper (table 2: tokenised text, mean of the last 5
           checkpoints); not run here
Curve      The paper gives none for French. By formula: the loss begins just above ln 32,000 =
           10.4; the rate of learning is that of wmt14_en_de_base.py. An expectation that nobody
           measured here: the same shape, some 10 BLEU higher; the corpus is seen about twice
Time       12 hours in the paper, 0.4 s an update; not measured here
Hardware   8 P100 in the paper; here as wmt14_en_de_base.py

What differs from German: the language and the vocabulary, 32,000 pieces as in section 5.1.
"""

from dataclasses import replace
from pathlib import Path

from transformer_jax.config import Config, TokenizerConfig
from transformer_jax.experiment import load_experiment


def get_config() -> Config:
    german = load_experiment(str(Path(__file__).with_name("wmt14_en_de_base.py")))
    return replace(
        german,
        run_directory="runs/wmt14_en_fr_base",
        data=replace(german.data, tfds_name="wmt14_translate/fr-en", target_language="fr"),
        tokenizer=TokenizerConfig(vocab_size=32_000),
    )
