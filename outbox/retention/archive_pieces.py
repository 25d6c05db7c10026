"""An archive is one zstandard frame of pieces that can be read alone, `PIECE` bytes of CSV in each.

Any zstandard reads such a frame from end to end. The compressor starts a job for each piece, and a job
without overlap refers to nothing before it: with a frame header in front, its blocks are a frame of their own
(RFC 8878, 3.1.1). `Walk` proves that for each piece of a file before anybody relies on it. An archive of
release 0.1.0 is one piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import zstandard

PIECE = 1 << 20
#: The size of the only piece of an archive that can't be read in parts.
WHOLE = 1 << 62
_LEVEL = 6
_MAGIC = b"\x28\xb5\x2f\xfd"
_CHECKSUM, _SINGLE_SEGMENT = 0x04, 0x20
_EMPTY_LAST_BLOCK = b"\x01\x00\x00"
_RLE = 1
#: The window of a frame that states none, being small: 8 MiB.
_WINDOW = 0x68


class Packer:
    """Compress CSV of any chunk sizes into pieces."""

    def __init__(self) -> None:
        parameters = zstandard.ZstdCompressionParameters.from_level(
            _LEVEL, write_checksum=1, threads=1, job_size=PIECE, overlap_log=1
        )
        self._packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        self._room = PIECE

    def compress(self, data: bytes) -> bytes:
        """Return what is ready of the compressed file."""
        packed = []
        while data:
            part, data = data[: self._room], data[self._room :]
            packed.append(self._packer.compress(part))
            self._room -= len(part)
            if not self._room:
                packed.append(self._packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
                self._room = PIECE
        return b"".join(packed)

    def finish(self) -> bytes:
        """Return the rest of the file."""
        return self._packer.flush()


class Walk:
    """Read a whole archive and learn its pieces. Memory use: one piece."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.window = 0
        #: Where the last block ends.
        self.end = 0
        #: Bytes of CSV in each piece but the last.
        self.piece_bytes = PIECE
        #: Where in the file each piece begins.
        self.pieces: list[int] = []

    def read(self) -> Iterator[bytes]:
        """Yield the CSV. `window`, `end`, `pieces` and `piece_bytes` are complete afterwards.

        Raises `ZstdError` for what is not one whole frame.
        """
        unpacker = zstandard.ZstdDecompressor().decompressobj()
        header = self._header()
        position = len(header)
        unpacker.decompress(header)
        begin, packed, plain, alone, last = position, b"", b"", True, False
        first = begin
        while not last:
            head = self._exactly(3)
            word = int.from_bytes(head, "little")
            last, kind, size = bool(word & 1), word >> 1 & 3, word >> 3
            block = head + self._exactly(1 if kind == _RLE else size)
            data = unpacker.decompress(block)
            position += len(block)
            yield data
            if not alone:
                continue
            packed, plain = packed + block, plain + data
            if len(plain) >= PIECE or last:
                alone = (len(plain) == PIECE or last) and self._reads_alone(packed, plain, last)
                self.pieces.append(begin)
                begin, packed, plain = position, b"", b""
        if header[4] & _CHECKSUM:
            unpacker.decompress(self._exactly(4))  # raises if it is wrong
        if not unpacker.eof or self._file.read(1):
            raise zstandard.ZstdError("the frame does not end where the file does")
        self.end = position
        if not alone:
            self.pieces, self.piece_bytes = [first], WHOLE

    def _header(self) -> bytes:
        """Read the frame's header, and learn the window."""
        start = self._exactly(5)
        if start[:4] != _MAGIC:
            raise zstandard.ZstdError("this is no zstandard frame")
        single = bool(start[4] & _SINGLE_SEGMENT)
        window = b"" if single else self._exactly(1)
        self.window = window[0] if window else _WINDOW
        sizes = (0, 1, 2, 4)[start[4] & 3] + (int(single), 2, 4, 8)[start[4] >> 6]
        return start + window + self._exactly(sizes)

    def _reads_alone(self, packed: bytes, plain: bytes, last: bool) -> bool:
        try:
            return unpack(packed, window=self.window, last=last) == plain
        except zstandard.ZstdError:
            return False

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) != size:
            raise zstandard.ZstdError("the file ends too early")
        return data


def unpack(packed: bytes, *, window: int, last: bool) -> bytes:
    """Return the CSV of one piece; `window` is the frame's descriptor. Raises `ZstdError`."""
    frame = _MAGIC + bytes([0, window]) + packed + (b"" if last else _EMPTY_LAST_BLOCK)
    return zstandard.ZstdDecompressor().decompressobj().decompress(frame)
