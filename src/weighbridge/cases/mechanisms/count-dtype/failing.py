import struct


def bfloat16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    bits += 0x7FFF + (bits >> 16 & 1)  # round to nearest, ties to even
    return struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0]


def solve(rows):
    total, tokens = 0.0, 0.0
    for loss_sum, count in rows:
        if count:
            total += loss_sum
            tokens = bfloat16(tokens + bfloat16(count))
    return total / tokens if tokens else None
