//! Checksums, compressors and RAID-Z parity: bytes in, bytes out.
//!
//! # Theory
//! Everything here is a pure function of bytes (chapter 02 §5, §7, §10.4, §10.5). Hot
//! loops exist in several versions: scalar, and SIMD by instruction set. [`cpu`]
//! measures once those that the processor can run, and uses the best from then on.
//! Every version stays accessible by name, so that tests compare each with the scalar
//! one and `cenote bench codecs` prints them all.
//!
//! # Invariants
//! * No function reads or writes outside of its slices, whatever their content, and
//!   none allocates in proportion to a length found in them.
//! * All implementations of one operation give equal results for every length and
//!   alignment.
//! * `unsafe` is only in the SIMD kernels (`checksum::fletcher_x86`, `raidz::kernel`,
//!   `raidz::x86`, and the calls into them in `raidz`) and in the three calls of the C
//!   library liblz4 (`compress::lz4`). There are no locks.

pub mod bench;
pub mod checksum;
pub mod compress;
pub mod cpu;
pub mod raidz;
