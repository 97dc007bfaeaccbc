"""Multi30k, English to German."""

import os

from transformer_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    DecodeConfig,
    ModelConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainConfig,
)


def get_config() -> Config:
    return Config(
        run_directory="runs/multi30k_en_de",
        data=DataConfig(
            directory=os.environ.get("MULTI30K_DIR", ""),
            source_language="en",
            target_language="de",
            train=("train",),
            dev="val",
            test="test_2016_flickr",
            max_length=64,
            tokens_per_update=2_048,
        ),
        tokenizer=TokenizerConfig(vocab_size=5_000),
        model=ModelConfig(
            num_layers=3, d_model=256, d_ff=512, num_heads=4, dropout_rate=0.3, norm="pre"
        ),
        optimizer=OptimizerConfig(learning_rate_scale=0.75, warmup_steps=1_000),
        train=TrainConfig(num_steps=8_000, dev_loss_interval=500, dev_bleu_interval=2_000),
        checkpoint=CheckpointConfig(interval=250, keep_newest=10),
        decode=DecodeConfig(beam_size=5),
    )
