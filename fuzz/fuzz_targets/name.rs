#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    watchlock::decoding::read_name(&String::from_utf8_lossy(data));
    watchlock_proofs::fuzzing::ids(data)
        .iter()
        .for_each(watchlock::decoding::read_id);
});
