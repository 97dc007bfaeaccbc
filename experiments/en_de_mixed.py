"""English to German from eleven public sources of all kinds: 421,876 pairs.

Command    python -m transformer_jax train experiments/en_de_mixed.py --data.directory DIR
           python -m transformer_jax evaluate runs/en_de_mixed --average-last 8
           the same with --sources DIR/dev/tatoeba.dev.en --references DIR/dev/tatoeba.dev.de
Needs      DIR with train/NAME.en.xz and .de.xz of the names below, and dev/newstest2013 and
           dev/newstest2014 (3,003 lines) as .en and .de
Score      sacreBLEU 3.88 on newstest2014, 33.39 on Multi30k's test_2016_flickr, 34.40 on Tatoeba
           (signature and other scores in README.md beside this file), mean of the checkpoints of
           steps 4,250 to 6,000, beam 4, alpha 0.6, seed 0
Hardware   2 cores of an AMD EPYC, no accelerator, for two hours: 1.7 passes over the text, too
           little for news

Captions, everyday sentences and news come more often than their share, the Bible and what comes
with software less: a weight is how often a pair comes in an epoch.
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
        run_directory="runs/en_de_mixed",
        data=DataConfig(
            train=(
                *("train/multi30k=2", "train/tatoeba", "train/mlqe-pe"),
                *("train/wmt-news=2", "train/onmt-wmt10k=2"),
                *("train/bible=0.25", "train/man=0.5", "train/wesnoth=0.5"),
                *("train/ddtp=0.5", "train/lo-help=0.5", "train/lo-ui=0.5"),
            ),
            dev="dev/newstest2013",
            test="dev/newstest2014",
            max_length=96,
            tokens_per_update=2_400,
        ),
        tokenizer=TokenizerConfig(vocab_size=8_000),
        model=ModelConfig(num_layers=3, d_model=256, d_ff=1_024, num_heads=4, norm="pre"),
        optimizer=OptimizerConfig(learning_rate_scale=0.75, warmup_steps=1_000),
        train=TrainConfig(num_steps=6_000, dev_loss_interval=1_000, dev_bleu_interval=0),
        checkpoint=CheckpointConfig(interval=250, keep_newest=10),
    )
