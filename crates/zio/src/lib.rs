//! Block pointer to buffer: checksum, compression, gang blocks, ditto copies.
