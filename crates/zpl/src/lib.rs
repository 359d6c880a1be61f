//! The POSIX file system in an object set, read side.
