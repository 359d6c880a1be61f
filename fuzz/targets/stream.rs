#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| stream::fuzzing::fuzz_stream(data));
