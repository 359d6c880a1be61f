//! Checksums, compressors and RAID-Z parity: bytes in, bytes out.
