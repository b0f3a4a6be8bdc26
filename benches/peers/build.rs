//! Names the compiler of this build to the program, which writes it down with its numbers.

use std::{env, process::Command};

fn main() {
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(compiler).arg("--version").output().ok();
    let version = version.and_then(|output| String::from_utf8(output.stdout).ok());
    println!(
        "cargo:rustc-env=PEERS_COMPILER={}",
        version.as_deref().map_or("unknown", str::trim)
    );
    println!("cargo:rerun-if-changed=build.rs");
}
