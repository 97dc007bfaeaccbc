"""Any row of the paper's table 3: variations on the base model, scored on newstest2013.

Command    python -m transformer_jax train experiments/table3.py:A1 --data.directory wmt14_en_de
Rows       base, A1 ... A4, B1, B2, C1 ... C7, D1 ... D4, E, big, and tiny (not in the paper), as
           `transformer_jax/presets.py` lists them; base where none is named
Needs      train.en, train.de, newstest2013.en, newstest2013.de of WMT14 in the folder, raw text
           (plain, .gz or .xz); the variable WMT14_EN_DE_DIR may name it
Score      not run here; the paper's, with its own BLEU protocol, which is not sacreBLEU's:

           row    changes                         PPL   BLEU  parameters
           base   -                               4.92  25.8   65 M
           A1     1 head of 512                   5.29  24.9
           A2     4 heads of 128                  5.00  25.5
           A3     16 heads of 32                  4.91  25.8
           A4     32 heads of 16                  5.01  25.4
           B1     d_k 16                          5.16  25.1   58 M
           B2     d_k 32                          5.01  25.4   60 M
           C1     2 layers                        6.11  23.7   36 M
           C2     4 layers                        5.19  25.3   50 M
           C3     8 layers                        4.88  25.5   80 M
           C4     d_model 256, d_k = d_v = 32     5.75  24.5   28 M
           C5     d_model 1024, d_k = d_v = 128   4.66  26.0  168 M
           C6     d_ff 1024                       5.12  25.4   53 M
           C7     d_ff 4096                       4.75  26.2   90 M
           D1     no dropout                      5.77  24.6
           D2     dropout 0.2                     4.95  25.5
           D3     no label smoothing              4.67  25.3
           D4     label smoothing 0.2             5.47  25.7
           E      learned positions               4.92  25.7
           big    d_model 1024, d_ff 4096,        4.33  26.4  213 M
                  16 heads, dropout 0.3,
                  300,000 updates
"""

import os

from transformer_jax.config import Config, DataConfig, DecodeConfig, TokenizerConfig
from transformer_jax.errors import UserError
from transformer_jax.presets import PRESETS


def get_config(row: str = "base") -> Config:
    if row not in PRESETS:
        raise UserError(f"no row {row!r} in table 3; the rows are {', '.join(PRESETS)}")
    model, loss, train = PRESETS[row]
    return Config(
        run_directory=f"runs/table3_{row}",
        data=DataConfig(
            directory=os.environ.get("WMT14_EN_DE_DIR", ""),
            dev="newstest2013",
            test="newstest2013",
        ),
        tokenizer=TokenizerConfig(vocab_size=37_000),
        model=model,
        loss=loss,
        train=train,
        decode=DecodeConfig(beam_size=4, length_penalty=0.6),
    )
