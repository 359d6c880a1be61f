//! FUSE transport: the kernel ABI, a session, a file system trait.
