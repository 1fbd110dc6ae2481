//! The C library counts the CPUs of the kernel's lists (`/sys/devices/system/cpu/possible`).

use std::path::Path;
use std::process::Command;

const MAIN: &str = r#"
#include "library.h"
#include <stdio.h>
int main(int count, char **lists) {
    for (int i = 1; i < count; i++) printf("%d\n", processor_count_list(lists[i]));
}
"#;

/// Returns the count of each list, by the code of the library.
fn count_lists(lists: &[&str]) -> Vec<i32> {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("main.c"), folder.path().join("main"));
    std::fs::write(&source, MAIN).unwrap();
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("c");
    let mut compiler = Command::new("gcc");
    compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I../../include", "-Ic", "-o"]);
    compiler.arg(&program).arg(&source).arg(library.join("processor.c")).current_dir(env!("CARGO_MANIFEST_DIR"));
    assert!(compiler.status().unwrap().success());
    let output = Command::new(&program).args(lists).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn a_list_with_gaps_is_counted() {
    let lists = ["0", "0-7", "0-3,8", "0,2,4-5\n", "0-3,8-11"];
    assert_eq!(count_lists(&lists), [1, 8, 5, 4, 8]);
}

#[test]
fn text_that_is_no_list_counts_as_unknown() {
    assert_eq!(count_lists(&["", "x", "0-", "3-1", "0-3;8", "0-3 8"]), [0; 6]);
}
