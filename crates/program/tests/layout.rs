//! The structures have the same sizes and offsets in C (`include/farfork_protocol.h`), Rust and Python.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use farfork_program::layout::{LAYOUTS, MAGIC, PAGES_MAGIC, VERSION};

/// Structure and field (empty for the structure itself), with its offset and size in bytes.
type Table = BTreeMap<(String, String), (usize, usize)>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn in_rust() -> Table {
    let row = |name: &str, field: &str, offset, bytes| ((name.to_owned(), field.to_owned()), (offset, bytes));
    LAYOUTS
        .iter()
        .flat_map(|layout| {
            let fields = layout.fields.iter().map(|(field, offset, bytes)| row(layout.name, field, *offset, *bytes));
            fields.chain([row(layout.name, "", 0, layout.bytes)])
        })
        .collect()
}

/// Lines `structure field offset bytes`, with `-` for no field.
fn parse(output: &Output) -> Table {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, field, offset, bytes] = words[..] else { panic!("{line}") };
        let field = if field == "-" { "" } else { field };
        ((name.to_owned(), field.to_owned()), (offset.parse().unwrap(), bytes.parse().unwrap()))
    };
    text.lines().map(row).collect()
}

/// A C program that prints the same rows for the structures of the header.
fn c_source() -> String {
    let mut source = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"farfork_protocol.h\"\n\
         #define ROW(s, f) printf(#s \" \" #f \" %zu %zu\\n\", offsetof(struct farfork_##s, f), sizeof(((struct farfork_##s *)0)->f))\n",
    );
    source += &format!(
        "_Static_assert(FARFORK_MAGIC == {MAGIC}u && FARFORK_PROTOCOL_VERSION == {VERSION} &&\n\
         FARFORK_PAGES_MAGIC == {PAGES_MAGIC}u, \"constants\");\n\
         int main(void) {{\n"
    );
    for layout in LAYOUTS {
        let name = layout.name;
        source += &format!("printf(\"{name} - 0 %zu\\n\", sizeof(struct farfork_{name}));\n");
        for (field, ..) in layout.fields {
            source += &format!("ROW({name}, {field});\n");
        }
    }
    source + "}\n"
}

#[test]
fn c_has_the_same_structures() {
    let directory = tempfile::tempdir().unwrap();
    let (source, binary) = (directory.path().join("layout.c"), directory.path().join("layout"));
    std::fs::write(&source, c_source()).unwrap();
    let mut compiler = Command::new(std::env::var("CC").unwrap_or_else(|_| "gcc".into()));
    let include = root().join("include");
    let compiled =
        compiler.arg("-I").arg(include).arg(&source).arg("-o").arg(&binary).output().expect("gcc is installed");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    assert_eq!(parse(&Command::new(&binary).output().unwrap()), in_rust());
}

#[test]
fn python_has_the_same_structures() {
    const SCRIPT: &str = "
from farfork import _protocol
for row in _protocol.layout():
    print(*row)
";
    let python = std::env::var("FARFORK_PYTHON").unwrap_or_else(|_| "python3".into());
    let output = Command::new(python).args(["-c", SCRIPT]).env("PYTHONPATH", root().join("python")).output();
    assert_eq!(parse(&output.expect("Python is installed")), in_rust());
}
