#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| watchlock_proofs::fuzzing::events(data)
    .iter()
    .for_each(watchlock::decoding::read_event));
