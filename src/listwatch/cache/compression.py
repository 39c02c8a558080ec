"""Packs cached objects, to keep more of them in less memory. Needs the extra `zstandard`."""

import threading
from typing import Any

import msgspec

from listwatch.errors import ConfigError

#: A dictionary of this size, trained on this many objects, at this level: measured as the best
#: trade of time for memory on varied pods.
_DICTIONARY_BYTES = 64 * 1024
_SAMPLES = 500
_LEVEL = 1
#: A dictionary can't be trained on less than this, in bytes.
_LEAST_SAMPLE_BYTES = 16 * 1024


class CompressionStatistics(msgspec.Struct, frozen=True):
    """What a codec has packed.

    Attributes:
        objects: how many objects.
        raw_bytes: their size before.
        packed_bytes: their size after.
        trained: the dictionary is in use.
    """

    objects: int
    raw_bytes: int
    packed_bytes: int
    trained: bool


class ZstdCodec:
    """Packs the bytes of objects with zstandard and a dictionary: a `Codec`.

    The first objects are packed without a dictionary and collected; it is trained on them, and
    used from then on. Those first ones stay as they are until their next change. For any thread.

    Args:
        dictionary: one that was trained before (`ZstdCodec.dictionary`), to use from the start.

    Raises:
        ConfigError: zstandard is not installed.
    """

    def __init__(self, dictionary: bytes | None = None) -> None:
        try:
            import zstandard  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigError(
                'compression needs zstandard: install it with pip install "listwatch[zstandard]"'
            ) from None
        self._zstd = zstandard
        self._samples: list[bytes | bytearray | memoryview] | None = []
        self._dictionary: Any = None
        self._local = threading.local()
        self._packing = threading.Lock()  # a compressor that serves two threads at once crashes
        self._plain = self._packer = zstandard.ZstdCompressor(level=_LEVEL)
        self._objects = self._raw_bytes = self._packed_bytes = 0
        if dictionary is not None:
            self._use(dictionary)

    @property
    def dictionary(self) -> bytes | None:
        """The trained dictionary, to be kept for the next start; None until it is trained."""
        return None if self._dictionary is None else bytes(self._dictionary.as_bytes())

    def statistics(self) -> CompressionStatistics:
        """Return what was packed until now."""
        return CompressionStatistics(
            objects=self._objects,
            raw_bytes=self._raw_bytes,
            packed_bytes=self._packed_bytes,
            trained=self._dictionary is not None,
        )

    def pack(self, raw: bytes) -> bytes:
        """Return the bytes to store."""
        with self._packing:
            if self._samples is not None:
                self._collect(raw)
            # The library gives its results more memory than they need; a copy has what it needs.
            packed = bytes(memoryview(self._packer.compress(raw)))
            self._objects += 1
            self._raw_bytes += len(raw)
            self._packed_bytes += len(packed)
        return packed

    def _collect(self, raw: bytes) -> None:
        assert self._samples is not None  # noqa: S101 - the caller asks first; for the type checker
        self._samples.append(raw)
        if len(self._samples) < _SAMPLES or sum(map(len, self._samples)) < _LEAST_SAMPLE_BYTES:
            return
        samples, self._samples = self._samples, None
        try:
            trained = self._zstd.train_dictionary(_DICTIONARY_BYTES, samples, level=_LEVEL)
        except self._zstd.ZstdError:
            return  # too much alike, or too little in them: packed without a dictionary for good
        self._use(trained.as_bytes())

    def _use(self, dictionary: bytes) -> None:
        self._samples = None
        # One that serves two levels, or packing and unpacking, can crash the library.
        packing = self._zstd.ZstdCompressionDict(dictionary)
        packing.precompute_compress(level=_LEVEL)
        self._dictionary = self._zstd.ZstdCompressionDict(dictionary)
        self._packer = self._zstd.ZstdCompressor(level=_LEVEL, dict_data=packing)

    def unpack(self, packed: bytes) -> bytes:
        """Return what was given to `pack`."""
        with_dictionary = self._zstd.get_frame_parameters(packed).dict_id != 0
        unpacker = self._unpacker(with_dictionary=with_dictionary)
        return bytes(unpacker.decompress(packed))

    def _unpacker(self, *, with_dictionary: bool) -> Any:
        """Return a decompressor of this thread's own: one must not serve two at once."""
        name = "trained" if with_dictionary else "plain"
        unpacker = getattr(self._local, name, None)
        if unpacker is None:
            if with_dictionary:
                dictionary = self._zstd.ZstdCompressionDict(self._dictionary.as_bytes())
                unpacker = self._zstd.ZstdDecompressor(dict_data=dictionary)
            else:
                unpacker = self._zstd.ZstdDecompressor()
            setattr(self._local, name, unpacker)
        return unpacker
