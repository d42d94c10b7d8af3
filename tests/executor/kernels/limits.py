"""How far a sum of rows that were cast can be from the exact one, relative in any norm.

A cast changes each value by at most half of the last place: 2^-4 of the value for e4m3 (3 explicit
bits), 2^-8 for bf16 (7). What e4m3 cannot hold as a normal number is below 2^-6 / 448 of its group's
largest, whose square does not count here. Triton's interpreter cuts off what it casts: twice as much.
All terms of the sums under test have the same sign, so that relative errors of terms are those of sums.
"""

from executor.kernels.interpreted import INTERPRETED

FP8_CAST = 2**-3 if INTERPRETED else 2**-4
BF16_CAST = 2**-7 if INTERPRETED else 2**-8

# The results of the experts, and the sum, are cast to bf16.
BF16_EXCHANGE = (1 + BF16_CAST) ** 2 - 1
# Besides, the rows that are sent are cast to FP8.
FP8_EXCHANGE = (1 + FP8_CAST) * (1 + BF16_CAST) ** 2 - 1
