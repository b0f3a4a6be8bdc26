//! Lets the waitlist's sources know that they are built for the model.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(modelled)");
    println!("cargo::rustc-cfg=modelled");
}
