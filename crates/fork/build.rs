//! Builds the stub and the restorer (`restorer/`) into one small position-independent program, which the library embeds.
//! Also prints the C layout of the plan's structures, for `src/restore/plan_layout.rs` to compare with its own.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiler flags for freestanding code without relocations, address tables (GOT) and vector registers.
const FLAGS: &[&str] = &[
    "-std=gnu11",
    "-O2",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-ffreestanding",
    "-fpie",
    "-mgeneral-regs-only",
    "-fno-stack-protector",
    "-fcf-protection=none",
    "-fno-jump-tables",
    "-fno-asynchronous-unwind-tables",
    "-fno-tree-loop-distribute-patterns",
    "-fvisibility=hidden",
    "-static-pie",
    "-nostdlib",
    "-nostartfiles",
    "-Wl,--no-dynamic-linker",
    "-Wl,-z,norelro",
    "-Wl,-z,max-page-size=4096",
    "-Wl,--build-id=none",
    "-Wl,--strip-all",
];

const SOURCES: [&str; 14] = [
    "stub.c",
    "request.c",
    "fork.c",
    "shared_memory_process.c",
    "zygote.c",
    "privileged_forker.c",
    "restore.c",
    "address_space.c",
    "syscalls.c",
    "file_descriptors.c",
    "process_tree.c",
    "zombie.c",
    "credentials.c",
    "threads.c",
];

fn run(command: &mut Command) -> Vec<u8> {
    let output =
        command.output().unwrap_or_else(|error| panic!("{command:?} could not be started: {error}; install gcc"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed:\n{errors}");
    output.stdout
}

fn main() {
    let source = Path::new("restorer");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rerun-if-changed=restorer");
    println!("cargo::rerun-if-env-changed=CC");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "gcc".into());

    let script = format!("-Wl,-T,{}", source.join("restorer.ld").display());
    run(Command::new(&compiler)
        .args(FLAGS)
        .arg(script)
        .args(SOURCES.map(|name| source.join(name)))
        .arg("-o")
        .arg(out.join("stub")));

    let layout = out.join("layout");
    run(Command::new(&compiler).arg(source.join("plan_layout.c")).arg("-o").arg(&layout));
    std::fs::write(out.join("layout.rs"), run(&mut Command::new(&layout))).expect("OUT_DIR can be written");
}
