#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ondisk::fuzzing::fuzz_nvlist(data));
