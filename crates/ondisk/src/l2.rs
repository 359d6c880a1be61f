//! L2ARC device structures.
