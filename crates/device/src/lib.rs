//! Leaf devices: files, block devices, memory; submit and complete.
