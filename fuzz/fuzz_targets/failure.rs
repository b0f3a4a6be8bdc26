#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| watchlock_proofs::fuzzing::failures(data)
    .iter()
    .for_each(watchlock::decoding::read_failure));
