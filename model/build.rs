//! Lets the library's sources know that they are built for the model: their unit tests belong to the library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(modelled)");
    println!("cargo::rustc-cfg=modelled");
}
