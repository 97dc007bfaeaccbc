"""English to German dates, numbers, currencies, units and names, from the Unicode CLDR.

Command    python -m transformer_jax train experiments/quickstart.py
Needs      nothing but the package: the corpus is built in memory, about 30,000 pairs
Score      sacreBLEU 97.63 on the held-out test split of 500 pairs (nrefs:1|case:mixed|eff:no|
           tok:13a|smooth:exp|version:2.6.0), beam 4, seed 0
Time       2.6 minutes for 700 updates
Hardware   2 cores of an AMD EPYC with AVX-512, no accelerator
"""

from transformer_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
)


def get_config() -> Config:
    return Config(
        run_directory="runs/quickstart",
        data=DataConfig(
            corpus="cldr",
            source_language="en",
            target_language="de",
            max_length=48,
            tokens_per_update=2_304,
        ),
        tokenizer=TokenizerConfig(vocab_size=1_500),
        model=ModelConfig(num_layers=2, d_model=128, d_ff=512, num_heads=4, dropout_rate=0.1),
        optimizer=OptimizerConfig(learning_rate_scale=1.0, warmup_steps=500),
        train=TrainConfig(
            num_steps=700, log_interval=50, dev_loss_interval=350, dev_bleu_interval=350
        ),
        checkpoint=CheckpointConfig(interval=350, keep_newest=2),
    )
