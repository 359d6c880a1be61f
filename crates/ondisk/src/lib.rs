//! Every on-disk structure of ZFS, parsed from untrusted bytes into checked types.
