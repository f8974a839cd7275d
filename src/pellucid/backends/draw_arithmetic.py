"""The constants of weights and noise, which the definition (execution/odds.py, randomness.py) and the kernels of
devices share. `csrc/kernels` has them natively."""

import numpy as np

# Weights below 2^MIN_EXPONENT count as zero: no noise lets a token of such a weight win.
MIN_EXPONENT = -100
# The unit of masses, as a share of the likeliest token's weight. A vocabulary of 2^22 tokens
# keeps sums below 2^53, where float64 adds whole numbers exactly in any order.
MASS_UNIT = 2.0**-30
ROUND = 12582912.0  # 1.5 * 2^23: adding it to a float32 leaves no bits for fractions

# 2^x on [-1/2, 1/2]: the best of degree 5 that is 1 at 0. Each is a float32, the highest power first.
POLYNOMIAL = tuple(
    float(np.float32(float.fromhex(coefficient)))
    for coefficient in (
        "0x1.5a5592p-10",
        "0x1.3ce8bp-7",
        "0x1.c6badp-5",
        "0x1.ebf9c4p-3",
        "0x1.62e426p-1",
        "0x1p0",
    )
)

# Philox4x32-10 (Salmon et al. 2011).
WORD = 2**32
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
NUM_ROUNDS = 10

# Eight tokens share a block, 16 bits each, so that sixteen neighbours find theirs in sixteen neighbouring
# blocks: token t has half t / 64 % 2 (0: the lower bits) of word t / 16 % 4 of block 16 (t / 128) + t % 16.
GROUP, HALF_GROUP, LANES = 128, 64, 16

LOG_2 = 0.6931471805599453
ROOT_OF_HALF = 0.7071067811865476
LAST_ODD = 23  # of the series of atanh: its next term is below 2^-60 of the first
