"""Limits of what a reader takes from files, indexes and documents of others: one table.

A file that somebody else wrote says how large its parts are. The rule kept here: what it claims is compared with its
limit before memory is taken for it. Each limit is far above what honest data need, and far below what a machine has.
"""

MAX_JSON_VALUES = 2**21
"""Values in one JSON text: manifests, indexes of shards, headers of tensor files. About 200 MB in memory."""

MAX_MIX_BYTES = 1024**2
"""Size of the file of a mix."""
MAX_MANIFEST_BYTES = 256 * 1024**2
"""Size of a manifest of content hashes: 16 bytes for each block, of 4 TB in blocks of 256 KiB."""

MAX_ROW_GROUP_BYTES = 256 * 1024**2
"""Size of the decoded row group of a parquet file, or record batch of an Arrow file."""
MAX_RECORDS_BYTES = 32 * 1024**2
"""Size of the rows that become JSON records together, and so of a single one."""
MAX_ARROW_HEAD_BYTES = 16 * 1024**2
"""Size of the head of a part of an Arrow file."""
MAX_ARROW_BATCHES = 2**20
"""Record batches of one Arrow file."""

MAX_LINE_BYTES = 8 * 1024**2
"""Size of one line of JSON lines, and of a text or record in a tar file; twice as much in a batch."""
MAX_IMAGE_BYTES = 5_000_000
"""Size of an image in a sample, or at a location that a sample names: as much as a request of a training service."""
MAX_SAMPLE_CHUNKS = 1024
"""Chunks of text and images in one sample."""
MAX_SAMPLE_IMAGES = 64
"""Images of one sample, and locations of images together."""
MAX_LOCATION_CHARS = 2048
"""Characters of the location of an image."""
MAX_LOSS_INPUTS = 16
"""Arrays that the loss of one sample needs."""
MAX_LINES = 2**28
"""Records of one file of JSON lines; their places take 16 bytes each."""
MAX_TAR_HEADER_BYTES = 1024**2
"""Size of the extended header, or the long name, of a member of a tar file."""
MAX_TAR_MEMBERS = 2**24
"""Members of one tar file."""
MAX_TAR_END_BYTES = 1024**2
"""Zeros after the end mark of a tar file; GNU tar fills up to 10 KiB."""
MAX_NPY_HEADER_BYTES = 4096
"""Size of the header of a NumPy file."""

MAX_ZSTD_WINDOW_BYTES = 128 * 1024**2
"""Memory that a zstd file may ask for (its window: `zstd --long=27`)."""
MAX_EXPANSION = 200
"""Times its size to which a file may unpack whose unpacked size nobody announces; text does to 3 to 20."""
ALWAYS_UNPACKED_BYTES = 64 * 1024**2
"""Unpacked size that is allowed however small the file is."""

MAX_TENSOR_HEADER_BYTES = 16 * 1024**2
"""Size of the header of a tensor file (safetensors): about 100,000 tensors."""
