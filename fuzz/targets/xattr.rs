#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ondisk::fuzzing2::fuzz_xattr(data));
