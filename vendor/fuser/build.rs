fn main() {
    println!("cargo::rustc-cfg=fuser_mount_impl=\"pure-rust\"");
}
