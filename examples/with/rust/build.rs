//! Compiles gpusync.c, and says what to link with: Metal, or the softmetal of `make softmetal`.
use std::env;

fn main() {
    let mut build = cc::Build::new();
    build.include("../../..").file("gpusync.c");
    println!("cargo:rerun-if-env-changed=SOFTMETAL");
    if let Ok(softmetal) = env::var("SOFTMETAL") {
        build.define("GPUSYNC_OBJC", "1");
        println!("cargo:rustc-link-search={softmetal}");
        println!("cargo:rustc-link-arg=-Wl,-rpath,{softmetal}");
    }
    build.compile("gpusync"); // before what it needs: linkers go through libraries in order
    if env::var_os("SOFTMETAL").is_some() {
        println!("cargo:rustc-link-lib=softmetal");
    } else if env::var("CARGO_CFG_TARGET_VENDOR").unwrap() == "apple" {
        for framework in ["Metal", "CoreGraphics", "Foundation"] {
            println!("cargo:rustc-link-lib=framework={framework}");
        }
        println!("cargo:rustc-link-lib=objc");
    }
}
