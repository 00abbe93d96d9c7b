//! See `Cargo.toml` beside this folder: how to run it.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = (bytes_tests::log::CHANGE.read)(bytes);
});
