"""The paper's base model on WMT14, English to German: 4.5 million pairs, 100,000 updates.

Command    python -m transformer_jax train experiments/wmt14_en_de_base.py
           python -m transformer_jax evaluate runs/wmt14_en_de_base --average-last 5
8 GPUs     experiments/launch/one_host.sh train experiments/wmt14_en_de_base.py
           --run-directory runs/wmt14_en_de_base
v5e-16     experiments/launch/tpu_vm.sh train experiments/wmt14_en_de_base.py
           --run-directory /mnt/shared/runs/wmt14_en_de_base
Needs      wmt14_translate/de-en of tfds in --data.directory (~/tensorflow_datasets where none is
           given); the first run downloads 1.7 GB for it. newstest2013 (3,000 pairs) is scored
           while training, newstest2014 (3,003) at the end. 6 GB of disk for checkpoints
Score      27.3 on newstest2014 in the paper (table 2: tokenised text, compounds split, mean of the
           last 5 checkpoints, beam 4, alpha 0.6); not run here
Curve      The paper's: after 100,000 updates perplexity 4.92 and BLEU 25.8 on newstest2013 (table
           3, one checkpoint). By formula: the loss begins just above ln 37,000 = 10.5, the rate of
           learning rises to 7.0e-4 at update 4,000 and falls to 1.4e-4 at the end. An expectation
           that nobody measured here: perplexity below 10 and BLEU above 20 by update 20,000, then
           less and less; where that fails, look for a mistake before waiting for the end
Time       12 hours in the paper, 0.4 s an update; not measured here. An update is about 10 TFLOP
           (6 x 63 million parameters x 25,000 tokens)
Hardware   8 P100 in the paper; here any number of devices, which divides 96 if none is to idle

An update takes 96 rows of 256 tokens on each side, 24,576 with a few per cent of padding, whatever
the number of devices. The paper writes a checkpoint every 10 minutes; at its 0.4 s that is every
1,500 updates, and so the last 5 span as much of the training as they did there. Validations come at
multiples of that, since they write checkpoints too. bfloat16 is ours, not the paper's.
"""

from dataclasses import replace

from transformer_jax.config import CheckpointConfig, Config, DataConfig, TokenizerConfig
from transformer_jax.presets import PRESETS


def get_config() -> Config:
    model, loss, train = PRESETS["base"]
    return Config(
        run_directory="runs/wmt14_en_de_base",
        data=DataConfig(
            corpus="tfds",
            tfds_name="wmt14_translate/de-en",
            source_language="en",
            target_language="de",
            dev="validation",
            test="test",
            max_length=256,
            tokens_per_update=96 * 256,
        ),
        tokenizer=TokenizerConfig(vocab_size=37_000),
        model=replace(model, dtype="bfloat16"),
        loss=loss,
        train=replace(train, dev_loss_interval=1_500, dev_bleu_interval=6_000),
        checkpoint=CheckpointConfig(interval=1_500, keep_newest=5),
    )
