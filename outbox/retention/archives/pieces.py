"""Pack CSV into pieces of `PIECE` bytes, each a zstandard frame that can be read alone, and unpack it.

A sequence of frames is one valid file (RFC 8878, 3), so `zstd -d` reads all of it. Release 0.1.0 and early
checkouts of 0.2.0 wrote one frame for the whole CSV, which `unpack` reads as one long piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import zstandard

PIECE = 1 << 20
_LEVEL = 6


def pack(csv: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a frame for each piece of the CSV, whose chunks may have any size."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    piece = bytearray()
    for data in csv:
        piece += data
        while len(piece) >= PIECE:
            yield compressor.compress(piece[:PIECE])
            del piece[:PIECE]
    if piece:
        yield compressor.compress(piece)


def unpack(packed: Iterable[bytes], bounds: list[tuple[int, int]] | None = None) -> Iterator[bytes]:
    """Yield the CSV of a file of frames, or of some frames of it.

    Append to `bounds` the position of each frame in the CSV and in the file, and at last the end of both.
    Raise `ZstdError` unless `packed` consists of whole frames.
    """
    decompressor = zstandard.ZstdDecompressor()
    frame = None
    in_csv = in_file = 0
    bounds = [] if bounds is None else bounds
    for data in packed:
        while data:
            if frame is None:
                bounds.append((in_csv, in_file))
                frame = decompressor.decompressobj()
            csv, rest = frame.decompress(data), frame.unused_data
            in_csv, in_file = in_csv + len(csv), in_file + len(data) - len(rest)
            frame, data = (None if frame.eof else frame), rest
            yield csv
    if frame is not None:
        raise zstandard.ZstdError("the last frame is not complete")
    bounds.append((in_csv, in_file))
