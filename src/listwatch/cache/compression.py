"""Compresses cached objects to save memory. Needs the extra `zstandard`."""

import threading
from typing import Any

import msgspec

from listwatch.errors import ConfigError

#: Dictionary size, number of training objects, and level: the best trade of time for memory
#: measured on varied pods.
_DICTIONARY_BYTES = 64 * 1024
_SAMPLES = 500
_LEVEL = 1
#: Minimum bytes to train a dictionary on.
_LEAST_SAMPLE_BYTES = 16 * 1024


class CompressionStatistics(msgspec.Struct, frozen=True):
    """What a codec has compressed.

    Attributes:
        objects: number of objects.
        raw_bytes: their size before.
        packed_bytes: their size after.
        trained: the dictionary is in use.
    """

    objects: int
    raw_bytes: int
    packed_bytes: int
    trained: bool


class ZstdCodec:
    """A `Codec` that compresses objects with zstandard and a trained dictionary.

    The codec compresses the first objects without a dictionary, trains the dictionary on them, and
    uses it from then on. Those first objects stay as they are until their next change. Thread-safe.

    Args:
        dictionary: a dictionary trained earlier (`ZstdCodec.dictionary`), used from the start.

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
        self._packing = threading.Lock()  # a compressor used by two threads at once crashes
        self._plain = self._packer = zstandard.ZstdCompressor(level=_LEVEL)
        self._objects = self._raw_bytes = self._packed_bytes = 0
        if dictionary is not None:
            self._use(dictionary)

    @property
    def dictionary(self) -> bytes | None:
        """The trained dictionary, to save for the next start; None until it is trained."""
        return None if self._dictionary is None else bytes(self._dictionary.as_bytes())

    def statistics(self) -> CompressionStatistics:
        """Return statistics so far."""
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
            # The library over-allocates its results; a copy has the exact size.
            packed = bytes(memoryview(self._packer.compress(raw)))
            self._objects += 1
            self._raw_bytes += len(raw)
            self._packed_bytes += len(packed)
        return packed

    def _collect(self, raw: bytes) -> None:
        assert self._samples is not None  # noqa: S101 - for the type checker: the caller checks first
        self._samples.append(raw)
        if len(self._samples) < _SAMPLES or sum(map(len, self._samples)) < _LEAST_SAMPLE_BYTES:
            return
        samples, self._samples = self._samples, None
        try:
            trained = self._zstd.train_dictionary(_DICTIONARY_BYTES, samples, level=_LEVEL)
        except self._zstd.ZstdError:
            return  # too uniform or too small: no dictionary from now on
        self._use(trained.as_bytes())

    def _use(self, dictionary: bytes) -> None:
        self._samples = None
        # A dictionary shared by two levels, or by packing and unpacking, can crash the library.
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
        """Return this thread's own decompressor: one must not serve two threads at once."""
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
