"""Which rows galley trains on in which step, so that another trainer can be given the same batches.

The same pure functions of the seed as engine/core/random.cc, hash.cc and trainer/data_order.cc, written again in
Python: XXH3 (Yann Collet's xxHash specification, inputs of 4 to 16 bytes), Philox 4x32-10 (Salmon et al., SC'11),
Fisher-Yates.
Only for one data file without weights. Who uses it compares the tokens and targets of every step afterwards.
"""

MASK = (1 << 64) - 1
SECRET = bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
                       "cb79e64eccc0e578825ad07dccff7221b8084674f743248e")  # the first 56 bytes of XXH3's


def little(data, at, size=8):
    return int.from_bytes(data[at:at + size], "little")


def rotate(value, bits):
    return (value << bits | value >> (64 - bits)) & MASK


def swapped(value, size):
    return int.from_bytes(value.to_bytes(size, "little"), "big")


def xxh3_4_to_8(data, seed):
    seed ^= swapped(seed & 0xFFFFFFFF, 4) << 32
    flip = ((little(SECRET, 8) ^ little(SECRET, 16)) - seed) & MASK
    value = (little(data, len(data) - 4, 4) + (little(data, 0, 4) << 32)) ^ flip
    value ^= rotate(value, 49) ^ rotate(value, 24)
    value = value * 0x9FB21C651E98DF25 & MASK
    value ^= (value >> 35) + len(data)
    value = value * 0x9FB21C651E98DF25 & MASK
    return value ^ value >> 28


def xxh3_9_to_16(data, seed):
    low = little(data, 0) ^ ((little(SECRET, 24) ^ little(SECRET, 32)) + seed) & MASK
    high = little(data, len(data) - 8) ^ ((little(SECRET, 40) ^ little(SECRET, 48)) - seed) & MASK
    product = low * high
    value = (len(data) + swapped(low, 8) + high + ((product & MASK) ^ product >> 64)) & MASK
    value ^= value >> 37
    value = value * 0x165667919E3779F9 & MASK
    return value ^ value >> 32


def hash64(data, seed=0):
    if not 4 <= len(data) <= 16:
        raise ValueError("only inputs of 4 to 16 bytes")
    return xxh3_4_to_8(data, seed) if len(data) <= 8 else xxh3_9_to_16(data, seed)


def philox(counter, key):
    """Four words of 32 bits from a counter of four and a key of two."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = p1 >> 32 ^ b ^ k0, p1 & 0xFFFFFFFF, p0 >> 32 ^ d ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d


def draws_of(seed, stream):
    """The endless sequence of 64-bit draws, two words each."""
    block = 0
    while True:
        words = philox((block & 0xFFFFFFFF, block >> 32, stream & 0xFFFFFFFF, stream >> 32),
                       (seed & 0xFFFFFFFF, seed >> 32))
        yield words[0] | words[1] << 32
        yield words[2] | words[3] << 32
        block += 1


def permutation(seed, stream, count):
    order, draws = list(range(count)), draws_of(seed, stream)
    for i in range(count, 1, -1):
        limit = MASK - (MASK % i + 1) % i
        draw = next(draw for draw in draws if draw <= limit)
        order[i - 1], order[draw % i] = order[draw % i], order[i - 1]
    return order


def epoch_order(seed, epoch, num_rows):
    stream = hash64(epoch.to_bytes(8, "little"), hash64(b"data_order"))
    return permutation(seed, stream, num_rows)


def batches(seed, num_rows, batch_rows, num_steps):
    """Row numbers of steps 1 .. num_steps; the last batch of an epoch may be short."""
    found, epoch = [], 0
    while len(found) < num_steps:
        order = epoch_order(seed, epoch, num_rows)
        found += [order[at:at + batch_rows] for at in range(0, num_rows, batch_rows)]
        epoch += 1
    return found[:num_steps]
