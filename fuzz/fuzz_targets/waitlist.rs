#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    watchlock_proofs::fuzzing::waitlist(data);
});
